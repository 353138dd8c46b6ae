"""Faults of attention scores, softmax and heads, and of the memory layouts of what they read and return."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from conformance.faults.changes import Altered, Rearranged, with_rounded_parent, with_slack
from conformance.faults.edits import beside, capped, operand, operands, reads, rewritten, with_operand
from conformance.faults.fault import ALONE, ROWS, Change, Fault, FaultContext, Parameter, SameFunction
from conformance.model.activation import attended_keys
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array, Mask, as_array
from conformance.oracle import Step
from conformance.oracle.bilinear import merge_heads, split_heads

SUMMED = frozenset({"scores_sum"})
_LINEAR = frozenset({"linear"})
SCORES, PROBS, CONTEXT = frozenset({"scores"}), frozenset({"probs"}), frozenset({"context"})


def _heads(step: Step) -> int:
    return int(step.parents[-1].shape[-1]) // step.site.architecture.head_size


def keys_of(step: Step) -> Mask:
    """Return which keys may be attended to, (B, 1, Q, S)."""
    return attended_keys(step.site.activation, step.site.batch)[:, None]


def of_tokens(step: Step) -> bool:
    """Return whether the keys are the tokens of the sequence, not the states of an encoder."""
    return "key" in step.site.activation.axes


def softmax(s: Array, keys: Mask, axis: int = -1, more: float = 0.0) -> Array:
    """Return exp(s) / (more + Σ exp(s)) with the sum over the unmasked scores along `axis`.

    The result is 0 at masked scores, and 0 everywhere if all scores along the axis are masked.
    """
    masked = np.where(keys, s, -np.inf)
    top = masked.max(axis, keepdims=True, initial=0.0 if more else -np.inf)
    top = np.where(np.isfinite(top), top, 0.0)
    weights = np.exp(masked - top)
    total = weights.sum(axis, keepdims=True) + (more * np.exp(-top) if more else 0.0)
    return as_array(weights / np.where(total > 0, total, 1.0))


def probabilities(f: Callable[[Array, Mask], Array]) -> Callable[[Step, FaultContext], Step]:
    """Return the change that replaces the probabilities by f of the scores and the attended keys, (B, 1, Q, S)."""

    def change(step: Step, _: FaultContext) -> Step:
        return Altered(step, lambda inner: f(inner.parents[0], keys_of(step)))

    return change


def _scale(step: Step) -> float:
    return float(step.site.architecture.head_size**-0.5)


def _rescaled(step: Step, scale: float) -> Step:
    by = scale / _scale(step)
    if step.site.activation.kind in SCORES:  # The query is scaled, so that a bias of the scores is not.
        return with_operand(step, step.parents[0] * by)
    return Altered(step, lambda inner: inner.value * by)


def _bias_unscaled(step: Step, context: FaultContext) -> Step | None:
    """Return the scores of the query plus b (√d − 1), which is (x Wᵀ/√d + b) √d; this sum may be rounded."""
    bias = context.network.site(step.site.activation.parents[0]).parameters.get("bias")
    if bias is None:
        return None
    return with_rounded_parent(with_operand(step, step.parents[0] + bias * (1.0 / _scale(step) - 1.0)), 0)


def _with_temperature(step: Step, temperature: float) -> Step:
    return step.replaced(parents=(step.parents[0] / temperature,))


_LEAST_NORM = 1e-12  # The eps of torch.nn.functional.normalize.


def _cosines(step: Step, factor: float) -> Step:
    """Return the scores c · cos(q, k), for which norms and quotients are rounded as well."""
    width = step.site.architecture.head_size
    parts = (split_heads(x, width) for x in step.parents)
    query, key = (merge_heads(x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), _LEAST_NORM)) for x in parts)

    def slack(altered: Altered, arithmetic: Arithmetic) -> Array:
        stored = (4.0 * arithmetic.storage.rounding_variance(x) for x in altered.inner.parents)
        own = sum(j.variance(v) for j, v in zip(altered.inner.jacobians(), stored, strict=True))
        return as_array(own + arithmetic.storage.rounding_variance(altered.value))

    return with_slack(step.replaced(parents=(factor * width**0.5 * query, key)), slack)


@dataclass(frozen=True)
class _Order:
    """Elements x (B, S, h d) written in one order of the axes rows, tokens, heads and features, `rthf`, and read in another.

    Example:
        >>> _Order("rthf", "rtfh")(np.arange(6.0).reshape(1, 1, 6), 3)
        array([[[0., 2., 4., 1., 3., 5.]]])
    """

    written: str
    read: str

    def __call__(self, x: Array, size: int) -> Array:
        """Return the elements, with heads of `size` features, as they are read, (B, S, h d)."""
        rows, tokens, width = x.shape
        sizes = {"r": rows, "t": tokens, "h": width // size, "f": size}
        written = x.reshape([*sizes.values()]).transpose(["rthf".index(axis) for axis in self.written])
        read = written.reshape([sizes[axis] for axis in self.read])
        return read.transpose([self.read.index(axis) for axis in "rthf"]).reshape(x.shape)


_FEATURES_FIRST, _TO_FEATURES_FIRST = _Order("rthf", "rtfh"), _Order("rtfh", "rthf")
_HEADS_FIRST, _TO_HEADS_FIRST = _Order("rthf", "rhtf"), _Order("rhtf", "rthf")
_TOKENS_LAST, _TOKENS_LAST_IN_HEADS, _HEADS_OUTERMOST = _Order("rthf", "rhft"), _Order("rhtf", "rhft"), _Order("rhtf", "hrtf")


def _in_order(split: _Order | None = None, merge: _Order | None = None) -> Change:
    """Return the change of the order in which query and key, or the values, are split into heads, and the context is merged."""

    def change(step: Step, _: FaultContext) -> Step | None:
        size, probs = step.site.architecture.head_size, step.parents[: step.site.activation.kind in CONTEXT]
        if split:
            read = tuple(split(x, size) for x in step.parents[len(probs) :])
            if all(map(np.array_equal, read, step.parents[len(probs) :])):
                return None
            step = step.replaced(parents=(*probs, *read))
        if not merge or not probs:
            return step
        return None if np.array_equal(merge(step.value, size), step.value) else Rearranged(step, lambda x: merge(x, size))

    return change


def _last_in_order(order: _Order) -> Change:
    """Return the change of the order of the keys, or of the values."""

    def read(x: Array, step: Step) -> Array | None:
        in_order = order(x, step.site.architecture.head_size)
        return None if np.array_equal(in_order, x) else in_order

    return operand(read)


def _guarded(step: Step, epsilon: float) -> Step:
    """Return exp(s − m) / (ε + Σ exp(s − m)): the largest probability is 1 / Σ exp(s − m)."""
    return Altered(step, lambda inner: inner.value / (1.0 + epsilon * inner.value.max(-1, keepdims=True)))


def _softmax_over(axis: int) -> Callable[[Step, FaultContext], Step | None]:
    """Return the change to a softmax over the axis of the queries or of the heads.

    The probability of a masked key, from 0 to 1, then depends on the constant that masks it, so it is given the variance 1.
    """

    def change(step: Step, _: FaultContext) -> Step | None:
        keys, scores = keys_of(step), step.parents[0]
        if scores.shape[axis] == 1:
            return None

        def over(inner: Step) -> Array:
            return softmax(inner.parents[0], np.broadcast_to(keys, inner.parents[0].shape), axis)

        return Altered(step, over, slack=lambda altered, _: np.where(keys, np.zeros_like(altered.value), 1.0))

    return change


def _packed(step: Step, _: FaultContext) -> Step | None:
    """Return the step with a row's unmasked tokens at its beginning, and zeros after them; None if they are there.

    These are the queries of a context, the inputs of a linear layer, or the results of a norm.
    """
    mask, kind = step.site.batch.mask, step.site.activation.kind
    moved, axis = (step.value if kind == "norm" else step.parents[0]), (2 if kind in CONTEXT else 1)
    order = np.argsort(~mask, axis=1, kind="stable")
    if moved.ndim < 3 or moved.shape[axis] != mask.shape[1] or (order == np.arange(mask.shape[1])).all():
        return None
    shape = tuple(size if at in (0, axis) else 1 for at, size in enumerate(moved.shape))
    at, kept = order.reshape(shape), (np.arange(mask.shape[1]) < mask.sum(1, keepdims=True)).reshape(shape)

    def to_the_left(x: Array) -> Array:
        return as_array(np.take_along_axis(x, at, axis))

    if kind == "norm":
        return Altered(Rearranged(step, to_the_left), lambda inner: np.where(kept, inner.value, 0.0))
    return with_operand(step, np.where(kept, to_the_left(moved), 0.0))


# fmt: off
FAULTS: tuple[Fault, ...] = (
    Fault("scale-missing", SCORES | SUMMED, "the scores are multiplied by {value}, not by 1/√(the head size) = {right}",
          parameter=Parameter("scale", _scale, lambda _: 1.0, _rescaled, quantity="factor of the scores (1/√d)", is_of_sizes=True)),
    Fault("scale-without-bias", SCORES, "1/√d is folded into the query's weight, but not into its bias", _bias_unscaled),
    Fault("scores-transposed", SCORES, "query and key are exchanged in the product: k qᵀ",
          operands(lambda step: step.parents[::-1])),
    Fault("scores-of-keys", SCORES, "the key is multiplied by itself, not the query by the key",
          operands(lambda step: step.parents[1:] * 2), tried=ALONE),
    Fault("scores-of-queries", SCORES, "the query is multiplied by itself, not the query by the key",
          operands(lambda step: step.parents[:1] * 2), tried=ALONE),
    Fault("keys-reshaped", SCORES, "the keys of a head are reshaped where they must be transposed",
          _last_in_order(_TOKENS_LAST_IN_HEADS), tried=ALONE),
    Fault("scores-clipped", SCORES, "the scores are clipped to ±1", rewritten(lambda step: np.clip(step.value, -1.0, 1.0))),
    Fault("scores-capped", SCORES, "the scores z are capped by a tanh: tanh(k z) / k with k² = {value}",
          parameter=Parameter("k²", lambda _: 0.0, lambda _: 1.0 / 2500.0, capped), tried=ALONE),
    Fault("scores-cosine", SCORES, "the scores are cosines of query and key, multiplied by {value}",
          parameter=Parameter("factor", _scale, lambda _: 10.0, _cosines), tried=ALONE),
    Fault("softmax-temperature", PROBS, "softmax has the temperature {value}, not {right}",
          parameter=Parameter("temperature", lambda _: 1.0, lambda _: 2.0, _with_temperature,
                              quantity="temperature of the softmax"),
          same_as=SameFunction("scale-missing", "the softmax has a temperature of {value}")),
    Fault("softmax-queries", PROBS, "softmax runs over the queries, not over the keys", _softmax_over(-2)),
    Fault("softmax-heads", PROBS, "softmax runs over the heads, not over the keys", _softmax_over(1), tried=ALONE),
    Fault("softmax-missing", PROBS, "there is no softmax", probabilities(lambda s, keys: np.where(keys, s, 0.0))),
    Fault("softmax-plus-one", PROBS, "the softmax has an additional 1 in its denominator",
          probabilities(lambda s, keys: softmax(s, keys, more=1.0))),
    Fault("softmax-denominator-epsilon", PROBS, "{value} is added to the softmax's denominator",
          parameter=Parameter("epsilon", lambda _: 0.0, lambda _: 1e-6, _guarded), tried=ALONE),
    Fault("head-order", CONTEXT, "heads are merged without moving the head axis back", _in_order(merge=_TO_HEADS_FIRST)),
    Fault("head-merge-interleaved", CONTEXT, "heads are merged with their features interleaved",
          _in_order(merge=_TO_FEATURES_FIRST)),
    Fault("heads-share-first", SCORES | CONTEXT, "every head reads the keys, or the values, of the first head",
          operand(lambda x, step: np.tile(x[..., : step.site.architecture.head_size], _heads(step)))),
    Fault("context-of-keys", CONTEXT, "the probabilities are multiplied by the keys, not by the values", reads(beside("key"), 1)),
    Fault("head-split-interleaved", SCORES | CONTEXT, "heads are split with their features interleaved",
          _in_order(_FEATURES_FIRST)),
    Fault("head-split-unmoved", SCORES | CONTEXT, "heads are split by a reshape, without moving the axis", _in_order(_HEADS_FIRST)),
    Fault("heads-interleaved", SCORES | CONTEXT, "heads are split and merged with their features interleaved",
          _in_order(_FEATURES_FIRST, _TO_FEATURES_FIRST), tried=ALONE),
    Fault("heads-unmoved", SCORES | CONTEXT, "heads are split and merged by reshapes, without moving the axis",
          _in_order(_HEADS_FIRST, _TO_HEADS_FIRST), tried=ALONE),
)
# fmt: on

# fmt: off
LAYOUTS: tuple[Fault, ...] = (
    Fault("values-reshaped", CONTEXT, "the values of a head are reshaped where they must be transposed",
          _last_in_order(_TOKENS_LAST_IN_HEADS), tried=ALONE),
    Fault("tokens-as-channels", SCORES | CONTEXT,
          "the keys, or the values, stored token by token, are read as if they were stored channel by channel",
          _last_in_order(_TOKENS_LAST), tried=ALONE),
    Fault("tokens-packed-left", CONTEXT | _LINEAR | {"norm"},
          "the unmasked tokens of a row are written to its beginning, the rest is zero", _packed, tried=ALONE,
          sentences={"linear": "it reads the unmasked tokens of a row from its beginning on, and zeros after them"}),
    Fault("heads-rows-exchanged", CONTEXT, "rows and heads are exchanged: (rows, heads) is read as (heads, rows)",
          _in_order(merge=_HEADS_OUTERMOST),
          extent=ROWS, tried=ALONE),
)
# fmt: on
