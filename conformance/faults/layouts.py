"""Faults of memory layouts: values, keys, tokens or rows of a weight that are read in another order than they were written.

Faults of a weight's layout and size: input features in another order than that of the heads, and rows of length 1.
"""

import numpy as np

from conformance.faults.attention import CONTEXT, SCORES, with_reshaped_heads
from conformance.faults.changes import Altered, Rearranged, with_stored_weight
from conformance.faults.fault import ALONE, ROWS, Change, Fault, FaultContext, with_parameters
from conformance.model.batch import Ids
from conformance.numerics.formats import Array, Mask, as_array
from conformance.oracle import Step
from conformance.oracle.bilinear import merge_heads, split_heads
from conformance.oracle.linear import Linear

_LINEAR = frozenset({"linear"})


def _as_channels(step: Step, _: FaultContext) -> Step | None:
    """Return the step with keys, or values, (S, H) read in memory order as (H, S); None if that is the same."""
    first, last = step.parents
    batch, length, width = last.shape
    if 1 in (length, width):
        return None
    return step.replaced(parents=(first, last.reshape(batch, width, length).swapaxes(-1, -2)))


def _to_the_left(step: Step, _: FaultContext) -> Step | None:
    """Return the context with the unmasked tokens of a row at its beginning, and zeros after them; None if they are there."""
    mask, (probs, value) = step.site.batch.mask, step.parents
    order = _packed_order(mask)
    if order is None or probs.shape[2] != mask.shape[1]:
        return None
    moved = np.take_along_axis(probs, order[:, None, :, None], 2)
    kept = _first_of(mask)
    return step.replaced(parents=(np.where(kept[:, None, :, None], moved, 0.0), value))


def _packed_order(mask: Mask) -> Ids | None:
    """Return the tokens of each row, (B, S), the unmasked ones first; None if they are first already."""
    order = np.argsort(~mask, axis=1, kind="stable")
    return None if (order == np.arange(mask.shape[1])).all() else order


def _first_of(mask: Mask) -> Mask:
    """Return which of the first positions hold a row's unmasked tokens once they are moved there, (B, S)."""
    return as_array(np.arange(mask.shape[1]) < mask.sum(1, keepdims=True))


def _result_to_the_left(step: Step, _: FaultContext) -> Step | None:
    """Return a norm with the results of a row's unmasked tokens at its beginning, and zeros after them, as `_to_the_left`."""
    mask = step.site.batch.mask
    order = _packed_order(mask)
    if order is None or step.value.shape[:2] != mask.shape:
        return None
    kept = _first_of(mask)[..., None]
    moved = Rearranged(step, lambda x: np.take_along_axis(x, order[..., None], 1))
    return Altered(moved, lambda inner: np.where(kept, inner.value, 0.0))


def _input_to_the_left(step: Step, _: FaultContext) -> Step | None:
    """Return a linear layer that reads the inputs of a row's unmasked tokens at its beginning, and zeros after them."""
    mask, (x,) = step.site.batch.mask, step.parents
    order = _packed_order(mask)
    if order is None or x.ndim != 3 or x.shape[:2] != mask.shape:
        return None
    return step.replaced(parents=(np.where(_first_of(mask)[..., None], np.take_along_axis(x, order[..., None], 1), 0.0),))


def _packed(step: Step, context: FaultContext) -> Step | None:
    kind = step.site.activation.kind
    change = _to_the_left if kind in CONTEXT else _input_to_the_left if kind in _LINEAR else _result_to_the_left
    return change(step, context)


def _rows_as_heads(step: Step, _: FaultContext) -> Step | None:
    """Return the context with (B, h, S, d) read in memory order as (h, B, S, d); None for one row or one head."""
    rows, width = len(step.value), step.site.architecture.head_size
    heads = step.value.shape[-1] // width
    if 1 in (rows, heads):
        return None

    def rearranged(x: Array) -> Array:
        of_heads = split_heads(x, width)
        return merge_heads(of_heads.reshape(heads, rows, *of_heads.shape[2:]).swapaxes(0, 1))

    return Rearranged(step, rearranged)


def _rotary(order: tuple[int, int]) -> Change:
    """Return the change that reorders the rows of each head from `order`, two of which one is −1, to the transpose."""

    def change(step: Step, _: FaultContext) -> Step | None:
        width = step.site.architecture.head_size
        if width % 2:
            return None
        weight = step.site.parameters["weight"]
        return with_parameters(step, weight=_exchanged(weight, width, order))

    return change


def _exchanged(weight: Array, width: int, order: tuple[int, int]) -> Array:
    heads = weight.reshape(-1, width, weight.shape[1])
    return heads.reshape(len(heads), *(n if n > 0 else width // 2 for n in order), -1).swapaxes(1, 2).reshape(weight.shape)


# fmt: off
FAULTS: tuple[Fault, ...] = (
    Fault("values-reshaped", CONTEXT, "the values of a head are reshaped where they must be transposed", with_reshaped_heads,
          tried=ALONE),
    Fault("tokens-as-channels", SCORES | CONTEXT,
          "the keys, or the values, stored token by token, are read as if they were stored channel by channel", _as_channels,
          tried=ALONE),
    Fault("tokens-packed-left", CONTEXT | _LINEAR | {"norm"},
          "the unmasked tokens of a row are written to its beginning, the rest is zero", _packed, tried=ALONE,
          sentences={"linear": "it reads the unmasked tokens of a row from its beginning on, and zeros after them"}),
    Fault("heads-rows-exchanged", CONTEXT, "rows and heads are exchanged: (rows, heads) is read as (heads, rows)", _rows_as_heads,
          extent=ROWS, tried=ALONE),
    *(
        Fault(f"rotary-rows{end}", _LINEAR,
              f"the rows of the weight within each head, but not the bias, are reordered from {stored} to {read}", _rotary(order),
              only=(".query", ".key"), tried=ALONE)
        for end, order, stored, read in (
            ("", (2, -1), "halves", "interleaved pairs"), ("-back", (-1, 2), "interleaved pairs", "halves"),
        )
    ),
)
# fmt: on


def _inputs_reordered(*, by_feature: bool) -> Change:
    """Return the change that reads columns of shape (heads, head size) as (head size, heads), or the other way round."""

    def change(step: Step, _: FaultContext) -> Step | None:
        weight, width = step.site.parameters["weight"], step.site.architecture.head_size
        heads = weight.shape[1] // width
        if 1 in (heads, width):
            return None
        columns = weight.reshape(len(weight), *((heads, width) if by_feature else (width, heads)))
        return with_parameters(step, weight=columns.swapaxes(1, 2).reshape(weight.shape))

    return change


def _rows_of_length_one(step: Step, _: FaultContext) -> Step | None:
    """Return the layer with each row of the weight divided by its length; the quotients may be rounded."""
    weight = step.site.parameters["weight"]
    lengths = np.linalg.norm(weight, axis=1, keepdims=True)
    if not (lengths > 0.0).all():
        return None
    unit = weight / lengths
    return with_stored_weight(step, unit) if isinstance(step, Linear) else with_parameters(step, weight=unit)


# fmt: off
WEIGHT_FAULTS: tuple[Fault, ...] = (
    *(
        Fault(f"weight-inputs-{end}", _LINEAR, f"the inputs of the weight, in the order {stored}, are read in the order {read}",
              _inputs_reordered(by_feature=end == "by-feature"), only=("attention.output.dense",), tried=ALONE)
        for end, stored, read in (
            ("by-feature", "(heads, head size)", "(head size, heads)"), ("by-head", "(head size, heads)", "(heads, head size)"),
        )
    ),
    Fault("decoder-normalised", _LINEAR, "the rows of the decoder's weight are divided by their lengths", _rows_of_length_one,
          only=("predictions.decoder",), tried=ALONE),
)
# fmt: on
