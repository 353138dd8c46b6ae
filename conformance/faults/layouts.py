"""Faults of memory layouts: values, keys, tokens or rows of a weight that are read in another order than they were written.

Faults of a weight's layout and size: input features in another order than that of the heads, and rows of length 1.
"""

from collections.abc import Iterator

import numpy as np

from conformance.faults.attention import CONTEXT, SCORES, with_reshaped_heads
from conformance.faults.changes import Altered, Rearranged, with_stored_weight
from conformance.faults.fault import Change, Fault, FaultContext, with_parameters
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
def faults() -> Iterator[Fault]:
    """Yield the faults of memory layouts."""
    yield Fault("values-reshaped", CONTEXT, "the values of a head are reshaped where they must be transposed", "constructed",
                with_reshaped_heads, "values (S, d) read in memory order as (d, S)", after_failure=True,
                equation="c = p V, V read column by column from the elements of v",
                fix="Multiply the probabilities by the values as they are: probs @ value.")
    yield Fault("tokens-as-channels", SCORES | CONTEXT,
                "the keys, or the values, stored token by token, are read as if they were stored channel by channel",
                "constructed", _as_channels, "a cache that one kernel keeps transposed and another does not", after_failure=True,
                equation="the element (s, i) is read at i S + s in place of s H + i",
                fix="Read a buffer in the layout in which it was written, (S, H).")
    yield Fault("tokens-packed-left", CONTEXT | _LINEAR | {"norm"},
                "the unmasked tokens of a row are written to its beginning, the rest is zero", "constructed", _packed,
                "results without padding (variable lengths) that are put back as if padding were at the right",
                after_failure=True,
                equation="y_s = f of the s-th unmasked token, 0 after the last",
                fix="Put each token's result back at its own position: pad_input with the indices of unpad_input.",
                sentences={"linear": "it reads the unmasked tokens of a row from its beginning on, and zeros after them"})
    yield Fault("heads-rows-exchanged", CONTEXT, "rows and heads are exchanged: (rows, heads) is read as (heads, rows)",
                "constructed", _rows_as_heads, "products of (B · h, S, d) that are reshaped to (h, B, S, d)", after_failure=True,
                couples_rows=True,
                equation="element (i, j) of the shape (h, B) is element i B + j of the shape (B, h) in memory order",
                fix="Reshape to (B, h, S, d), the order in which rows and heads were joined.")
    for end, order, stored, read, shape, other in (
        ("", (2, -1), "halves", "interleaved pairs", "(2, d/2)", "(d/2, 2)"),
        ("-back", (-1, 2), "interleaved pairs", "halves", "(d/2, 2)", "(2, d/2)"),
    ):
        yield Fault(f"rotary-rows{end}", _LINEAR,
                    f"the rows of the weight within each head, but not the bias, are reordered from {stored} to {read}",
                    "constructed, after llama.cpp's permute", _rotary(order),
                    "a conversion for rotary positions, applied to a model without them", (".query", ".key"), after_failure=True,
                    equation=f"row (i, j) of a head, in the shape {shape}, becomes row (j, i) in the shape {other}",
                    fix="Leave the rows of query and key in the checkpoint's order.")
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
def weight_faults() -> Iterator[Fault]:
    """Yield the faults of a weight's layout and size."""
    for by_feature, end, stored, read in (
        (True, "by-feature", "(heads, head size)", "(head size, heads)"),
        (False, "by-head", "(head size, heads)", "(heads, head size)"),
    ):
        yield Fault(f"weight-inputs-{end}", _LINEAR,
                    f"the inputs of the weight, in the order {stored}, are read in the order {read}",
                    "constructed, after Flax's DenseGeneral", _inputs_reordered(by_feature=by_feature),
                    "a kernel with axes for heads and features, converted with these exchanged",
                    ("attention.output.dense",), after_failure=True,
                    equation=f"column (i, j) of the shape {stored} becomes column (j, i) of the shape {read}",
                    fix="Flatten the kernel with the axis of the heads before that of their features.")
    yield Fault("decoder-normalised", _LINEAR, "the rows of the decoder's weight are divided by their lengths", "constructed",
                _rows_of_length_one, "a head of cosines, as Baichuan 2's NormHead, on a table that was trained without",
                ("predictions.decoder",), after_failure=True,
                equation="y_v = x · e_v / ‖e_v‖ + b_v",
                fix="Multiply by the word embeddings as they are.")
# fmt: on
