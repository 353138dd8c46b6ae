"""Scores, mask, softmax and heads."""

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from conformance.faults.altered import Altered, Rearranged
from conformance.faults.fault import Change, Fault, FaultContext, Parameter, with_batch
from conformance.model.attention import attended_keys
from conformance.model.batch import Ids
from conformance.numerics.formats import Array
from conformance.numerics.memo import cached_property
from conformance.oracle import Step
from conformance.oracle.products import merge_heads, split_heads
from conformance.oracle.softmax import Probabilities

_HEADS = "Split with x.view(B, S, h, d).transpose(1, 2), and merge with x.transpose(1, 2).reshape(B, S, h · d)."
_MASK = (
    "Set the scores of keys with attention_mask 0 to −∞ (or the format's lowest number) before the softmax; mask[:, None, None, :]."
)

NOT_COMPUTED = 1.0 / np.finfo(np.float64).eps  # the variance of what may be anything: no float64 result is known beside it

Mask = npt.NDArray[np.bool_]
SUMMED = frozenset({"scores_sum"})
SCORES, PROBS, CONTEXT = frozenset({"scores"}), frozenset({"probs"}), frozenset({"context"})


def _heads(step: Step) -> int:
    return int(step.parents[-1].shape[-1]) // step.site.architecture.head_size


def _keys(step: Step) -> Mask:
    """(B, 1, Q, S): which keys may be attended to."""
    return attended_keys(step.site.activation, step.site.batch)[:, None]


def _of_tokens(step: Step) -> bool:
    """Whether the keys are the tokens, and not an encoder's states."""
    return "key" in step.site.activation.axes


def _softmax(s: Array, keys: Mask, axis: int = -1, more: float = 0.0) -> Array:
    """exp(s) / (more + Σ exp(s)) over an axis of the unmasked scores; 0 at masked ones and where all are masked."""
    masked = np.where(keys, s, -np.inf)
    top = masked.max(axis, keepdims=True, initial=0.0 if more else -np.inf)
    top = np.where(np.isfinite(top), top, 0.0)
    weights = np.exp(masked - top)
    total = weights.sum(axis, keepdims=True) + (more * np.exp(-top) if more else 0.0)
    return np.asarray(weights / np.where(total > 0, total, 1.0))


def _probabilities(f: Callable[[Array, Mask], Array]) -> Callable[[Step, FaultContext], Step]:
    """f of the scores and the keys that are attended to, (B, 1, Q, S), in place of the probabilities."""

    def change(step: Step, _: FaultContext) -> Step:
        return Altered(step, lambda inner: f(inner.parents[0], _keys(step)))

    return change


def _with_keys(f: Callable[[Mask, Ids], Mask]) -> Change:
    """In a decoder, f of the keys that the mask lets through and of the positions, in place of those up to the query.

    Where none is left every score is the same lowest number.
    """

    def change(step: Step, _: FaultContext) -> Step | None:
        if not step.site.activation.causal:
            return None
        keys = f(step.site.batch.mask[:, None, None, :], np.arange(step.site.batch.length))
        some, uniform = keys.any(-1, keepdims=True), 1.0 / keys.shape[-1]
        return Altered(step, lambda inner: np.where(some, _softmax(inner.parents[0], keys), uniform))

    return change


def _scale(step: Step) -> float:
    return float(step.site.architecture.head_size**-0.5)


def _rescaled(step: Step, scale: float) -> Step:
    return Altered(step, lambda inner: inner.value * (scale / _scale(step)))


def _bias_unscaled(step: Step, place: FaultContext) -> Step | None:
    query = step.site.activation.parents[0]
    bias = place.network.site(query).parameters.get("bias")
    return None if bias is None else step.again(parents=(step.parents[0] + bias * (1.0 / _scale(step) - 1.0), step.parents[1]))


def _with_temperature(step: Step, temperature: float) -> Step:
    return step.again(parents=(step.parents[0] / temperature,))


class _OverAllKeys(Probabilities):
    """The softmax over every key, masked or not."""

    @property
    def keys(self) -> Mask:
        return np.ones_like(super().keys)


def _weighing(step: Step, weight: float) -> Step:
    """Masked keys keep a share of their weight: e^c where c is added to their scores."""

    class Weighed(_OverAllKeys):
        @cached_property
        def value(self) -> Array:
            weights = np.exp(self._shifted) * np.where(_keys(step), 1.0, weight)
            return np.asarray(weights / weights.sum(-1, keepdims=True))

    return step.recast(Weighed)


def _after_softmax(step: Step, _: FaultContext) -> Step:
    return Altered(step.recast(_OverAllKeys), lambda inner: inner.value * _keys(step))


def _added_raw(step: Step, _: FaultContext) -> Step:
    return step.again(parents=(step.parents[0] + _keys(step),)).recast(_OverAllKeys)


def _ignored(step: Step, _: FaultContext) -> Step | None:
    batch, name = step.site.batch, "attention_mask" if _of_tokens(step) else "encoder_attention_mask"
    return None if getattr(batch, name) is None or getattr(batch, name).all() else with_batch(step, **{name: None})


def _inverted(step: Step, _: FaultContext) -> Step | None:
    mask = step.site.batch.mask
    if mask.all():
        return None
    other = np.where(mask.all(-1, keepdims=True), mask, ~mask)
    return with_batch(step, attention_mask=other.astype(np.int64))


def _from_token_types(step: Step, _: FaultContext) -> Step | None:
    """Tokens of type 0 are masked; where all are, every score is the same lowest number."""
    types = step.site.batch.types
    if not types.any() or not _of_tokens(step):
        return None
    keys = (types != 0)[:, None, None, :]

    def masked(inner: Step) -> Array:
        return np.where(keys.any(-1, keepdims=True), _softmax(inner.parents[0], keys), 1.0 / types.shape[1])

    return Altered(step, masked)


def _shifted(step: Step, _: FaultContext) -> Step:
    mask = step.site.batch.mask
    return with_batch(step, attention_mask=np.concatenate([mask[:, :1], mask[:, :-1]], 1).astype(np.int64))


def _as_lengths(step: Step, _: FaultContext) -> Step | None:
    """As many keys as there are tokens, from the first on; None where the tokens are the first keys already.

    Queries behind those are no tokens to such a runtime, which may compute nothing there: what they get is left open.
    """
    mask = step.site.batch.mask
    first = np.arange(mask.shape[1]) < mask.sum(-1, keepdims=True)
    if not _of_tokens(step) or (first == mask).all():
        return None
    open_rows = np.where(first, 0.0, NOT_COMPUTED)[:, None, :, None]
    read = with_batch(step, attention_mask=first.astype(np.int64))
    return Altered(read, lambda inner: inner.value, slack=lambda altered, _: np.broadcast_to(open_rows, altered.value.shape))


def _causal(s: Array, keys: Mask) -> Array:
    return _softmax(s, keys & np.tri(*s.shape[-2:], dtype=np.bool_))


def _split_interleaved(x: Array, heads: int) -> Array:
    """Feature i goes to head i mod h."""
    return x.reshape(*x.shape[:-1], -1, heads).swapaxes(-1, -2).reshape(x.shape)


def _merged_interleaved(x: Array, heads: int) -> Array:
    """Feature d · h + head of what has feature head · d_k + d."""
    return x.reshape(*x.shape[:-1], heads, -1).swapaxes(-1, -2).reshape(x.shape)


def _split_unmoved(x: Array, heads: int) -> Array:
    """(B, S, H) read as (B, h, S, d)."""
    batch, length, width = x.shape
    return merge_heads(x.reshape(batch, heads, length, width // heads))


def _split(f: Callable[[Array, int], Array]) -> Callable[[Step, FaultContext], Step]:
    """Query and key, or the values, split in another way."""

    def change(step: Step, _: FaultContext) -> Step:
        p = step.parents
        wrong = tuple(f(x, _heads(step)) for x in p) if step.site.activation.kind == "scores" else (p[0], f(p[1], _heads(step)))
        return step.again(parents=wrong)

    return change


def _of_first_head(step: Step, _: FaultContext) -> Step:
    """Keys, or values, of the first head in place of each head's own."""
    *others, last = step.parents
    first = np.tile(last[..., : step.site.architecture.head_size], _heads(step))
    return step.again(parents=(*others, first))


def _merged(f: Callable[[Array, int], Array]) -> Callable[[Step, FaultContext], Step]:
    return lambda step, _: Rearranged(step, lambda x: f(x, _heads(step)))


def _unmoved_merge(x: Array, heads: int) -> Array:
    return split_heads(x, x.shape[-1] // heads).reshape(x.shape)


def _reversed_heads(x: Array, heads: int) -> Array:
    return merge_heads(split_heads(x, x.shape[-1] // heads)[:, ::-1])


def _of_keys(step: Step, place: FaultContext) -> Step | None:
    keys = place.values.get(step.site.activation.name.removesuffix("context") + "key")
    return None if keys is None else step.again(parents=(step.parents[0], keys))


def _over_queries(step: Step, _: FaultContext) -> Step:
    """A masked key has no unmasked query to share with: what it gets, anything from 0 to 1, depends on the mask's constant."""
    keys = _keys(step)

    def over(inner: Step) -> Array:
        return _softmax(inner.parents[0], np.broadcast_to(keys, inner.parents[0].shape), axis=-2)

    return Altered(step, over, slack=lambda altered, _: np.where(keys, np.zeros_like(altered.value), 1.0))


class _Multiplied(Probabilities):
    @cached_property
    def value(self) -> Array:
        s = self.parents[0] * self.keys
        return _softmax(s, np.ones_like(s, np.bool_))


class _OnQueries(Probabilities):
    @cached_property
    def value(self) -> Array:
        return _softmax(self.parents[0], np.broadcast_to(self.keys.swapaxes(-1, -2), self.parents[0].shape))


# fmt: off
def faults() -> Iterator[Fault]:
    """The faults of scores, mask, softmax and heads."""
    yield Fault(
        "scale-missing", SCORES | SUMMED, "the scores are multiplied by {value}, not by 1/√d = {right}",
        "mlc-llm#3426, flexflow#467",
        cause="the division by √d left out, or by the whole width", parameter=Parameter("scale", _scale, lambda _: 1.0, _rescaled),
        equation="s = c q kᵀ, c ≠ 1/√d",
        fix="Divide the scores by √d, d = hidden_size / num_attention_heads.",
    )
    yield Fault("scale-without-bias", SCORES, "1/√d is folded into the query's weight, and not into its bias", "constructed",
                _bias_unscaled, "constants folded into weights by hand, or by an exporter",
                equation="s = (x Wᵀ/√d + b) kᵀ",
                fix="Multiply the query's bias by 1/√d as well, or scale the scores.")
    yield Fault("scores-transposed", SCORES, "query and key are exchanged in the product: k qᵀ", "constructed",
                lambda step, _: step.again(parents=step.parents[::-1]),
                equation="s = k qᵀ / √d",
                fix="Multiply query by the transposed key: query @ key.transpose(-1, -2).")
    yield Fault("scores-clipped", SCORES, "the scores are clipped to ±1", "constructed",
                lambda step, _: Altered(step, lambda inner: np.clip(inner.value, -1.0, 1.0)),
                equation="s = min(max(q kᵀ / √d, −1), 1)",
                fix="Leave the scores as they are.")
    yield Fault(
        "softmax-temperature", PROBS, "softmax has the temperature {value}, not {right}", "constructed",
        cause="the scores are scaled twice, or by another root",
        parameter=Parameter("temperature", lambda _: 1.0, lambda _: 2.0, _with_temperature),
        equation="p = softmax(s / T)",
        fix="Scale the scores once, by 1/√d, and apply the softmax to them.",
    )
    yield Fault("softmax-queries", PROBS, "softmax runs over the queries, not over the keys", "constructed",
                _over_queries, "a wrong axis",
                equation="p_ij = exp(s_ij) / Σ_i exp(s_ij)",
                fix="Apply the softmax over the last axis, the keys.")
    yield Fault("softmax-missing", PROBS, "there is no softmax", "flexflow#467",
                _probabilities(lambda s, keys: np.where(keys, s, 0.0)), "commented out",
                equation="p = s, 0 at masked keys",
                fix="Apply the softmax over the last axis, the keys.")
    yield Fault("softmax-plus-one", PROBS, "softmax has one more in its denominator", "constructed",
                _probabilities(lambda s, keys: _softmax(s, keys, more=1.0)), "softmax-one",
                equation="p_j = exp(s_j) / (1 + Σ_k exp(s_k))",
                fix="Use the plain softmax.")
    yield Fault("mask-ignored", PROBS, "padded keys are attended to", "candle#1552, candle#1798", _ignored,
                "the mask is not handed on, or built as all ones",
                equation="p = softmax(s) over all keys",
                fix=_MASK)
    yield Fault("mask-inverted", PROBS, "only padded keys are attended to", "constructed", _inverted,
                "True means masked in one API and kept in another",
                fix=f"{_MASK} 1 in attention_mask means that a key is attended to.")
    yield Fault("mask-on-queries", PROBS, "the mask lies along the queries, not along the keys", "constructed",
                lambda step, _: step.recast(_OnQueries) if _of_tokens(step) else None, "mask[:, :, None] for mask[:, None, :]",
                equation="mask[:, None, :, None] in place of mask[:, None, None, :]",
                fix=_MASK)
    yield Fault(
        "mask-constant", PROBS, "masked keys keep {value} of their weight", "constructed",
        cause="too small a number is added at masked keys",
        parameter=Parameter("weight", lambda _: 0.0, lambda _: float(np.exp(-1.0)), _weighing),
        equation="p_j ∝ w exp(s_j) at masked keys, w > 0",
        fix=_MASK,
    )
    yield Fault("mask-from-token-types", PROBS, "token types are taken as the mask", "transformers#1788, pytorch#52667",
                _from_token_types, "inputs given by position in another order",
                fix="Pass attention_mask and token_type_ids by keyword.")
    yield Fault("mask-shifted", PROBS, "the mask is off by one position", "constructed", _shifted, "a special token not counted",
                equation="key j has the mask of key j − 1",
                fix="Apply attention_mask[:, j] to key j.")
    yield Fault("mask-as-lengths", PROBS, "the mask is read as a number of tokens, as if all padding were at the right",
                "constructed", _as_lengths,
                "a runtime that takes lengths (attention_mask.sum(1)), as CTranslate2, given padding at the left or inside",
                whole=True, equation="p = softmax over the keys j < Σ_k mask_k",
                fix=f"{_MASK} A runtime that takes lengths needs padding at the right.")
    yield Fault("mask-after-softmax", PROBS, "the mask is applied behind the softmax, over all keys, and the rest is not rescaled",
                "constructed", _after_softmax, "a mask that is multiplied with the probabilities",
                equation="p = softmax(s) · mask",
                fix=_MASK)
    yield Fault("mask-multiplied", PROBS, "scores are multiplied by the mask: masked ones become 0, not −∞", "constructed",
                lambda step, _: step.recast(_Multiplied), "masked before softmax as one would after it",
                equation="p = softmax(s · mask)",
                fix=_MASK)
    yield Fault("mask-causal", PROBS, "later keys are hidden", "constructed", _probabilities(_causal), "a decoder's attention",
                equation="p = softmax over the keys j ≤ i",
                fix="Let every token attend to all unmasked keys (is_causal=False).")
    yield Fault("mask-not-causal", PROBS, "later keys are attended to, in a decoder", "constructed",
                _with_keys(lambda keys, _: keys), "an encoder's attention; is_decoder of the config not read",
                equation="p = softmax over all keys, not over the keys j ≤ i",
                fix="In a decoder let a token attend to itself and to what is before it alone (is_causal=True).")
    yield Fault("mask-causal-strict", PROBS, "a token does not attend to itself, in a decoder", "constructed",
                _with_keys(lambda keys, i: keys & (i[:, None] > i)), "tril(diagonal=-1) for tril()",
                equation="p = softmax over the keys j < i",
                fix="Let a token attend to the keys j ≤ i, itself among them.")
    yield Fault("mask-causal-late", PROBS, "a token attends to the next one too, in a decoder", "constructed",
                _with_keys(lambda keys, i: keys & (i[:, None] + 1 >= i)), "tril(diagonal=1) for tril()",
                equation="p = softmax over the keys j ≤ i + 1",
                fix="Let a token attend to the keys j ≤ i alone.")
    yield Fault("mask-added-raw", PROBS, "ones and zeros of the mask are added to the scores", "transformers#1788, pytorch#52667",
                _added_raw,
                "the mask not turned into 0 and −∞, or another input in its place",
                equation="p = softmax(s + mask)",
                fix=_MASK)
    unmoved = "the tensor is reshaped where an axis must be moved (transpose)"
    yield Fault("head-order", CONTEXT, "heads are merged without moving the head axis back", "constructed",
                _merged(_unmoved_merge), unmoved,
                fix=_HEADS)
    yield Fault("head-merge-interleaved", CONTEXT, "heads are merged with their features in turns", "constructed",
                _merged(_merged_interleaved), "the last two axes exchanged before the reshape",
                fix=_HEADS)
    yield Fault("heads-reversed", CONTEXT, "heads are merged in reverse order", "constructed", _merged(_reversed_heads),
                fix="Concatenate the heads in their order: head 0 first.")
    yield Fault("heads-share-first", SCORES | CONTEXT, "every head reads the keys, or the values, of the first", "constructed",
                _of_first_head, "multi-query attention; a broadcast over heads",
                fix="Give each head its own keys and values.")
    yield Fault("context-of-keys", CONTEXT, "probabilities weigh the keys, not the values", "constructed", _of_keys,
                equation="c = p k",
                fix="Multiply the probabilities by the values.")
    yield Fault("head-split-interleaved", SCORES | CONTEXT, "heads are split with the features in turns",
                "DeepLearningExamples#528",
                _split(_split_interleaved), "(d, h) for (h, d) in the reshape",
                fix=_HEADS)
    yield Fault("head-split-unmoved", SCORES | CONTEXT, "heads are split by a reshape, without moving the axis", "constructed",
                _split(_split_unmoved), unmoved,
                fix=_HEADS)
# fmt: on
