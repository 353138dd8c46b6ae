"""Faults of attention masks: masked keys that are attended to, or unmasked keys that are not."""

from typing import Any

import numpy as np

from conformance.faults.attention import PROBS, keys_of, of_tokens, probabilities, softmax
from conformance.faults.changes import Altered, with_slack
from conformance.faults.edits import recast, variant
from conformance.faults.fault import ALONE, EVERY_LAYER, Change, Fault, FaultContext, Parameter, SameFunction, with_batch
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array, Mask, as_array
from conformance.numerics.memo import cached_property
from conformance.oracle import Step
from conformance.oracle.linear_maps import Roundings, Source, identity
from conformance.oracle.program import selected
from conformance.oracle.softmax import Probabilities
from conformance.oracle.trace import Effect

NOT_COMPUTED = 1.0 / np.finfo(np.float64).eps  # The variance of a result that may be arbitrary.


def _up_to_query(step: Step, keys: Mask) -> Mask:
    """Return, in a decoder, the keys (…, Q, S) up to the query's own position, else the keys."""
    return keys & np.tri(keys.shape[-1], dtype=np.bool_) if step.site.activation.causal else keys


class _OverAllKeys(Probabilities):
    """The softmax over all keys, masked or not."""

    @cached_property
    def keys(self) -> Mask:
        return np.ones_like(keys_of(self))


def _weighing(step: Step, weight: float) -> Step:
    """Return the softmax in which masked keys keep the share `weight` of their weight: e^c if c is added to their scores."""

    class Weighing(_OverAllKeys):
        def weights_of(self, *arguments: Any) -> Any:
            return super().weights_of(*arguments) * np.where(keys_of(self), 1.0, weight)

    return step.recast(Weighing)


def _filled(step: Step, weight: float) -> Step:
    """Return the softmax over all keys with ln `weight` in place of masked scores."""

    def value(inner: Step) -> Array:
        keys = np.broadcast_to(keys_of(step), inner.value.shape)
        filled = np.log(weight) if weight > 0.0 else -np.inf
        return softmax(np.where(keys, inner.parents[0], filled), np.ones_like(keys))

    return Altered(step, value)


def added_raw(step: Step, _: FaultContext) -> Step:
    """Return the softmax over all keys of the scores plus 1 at unmasked ones."""
    return step.replaced(parents=(step.parents[0] + keys_of(step),)).recast(_OverAllKeys)


def unmasked(step: Step, _: FaultContext) -> Step | None:
    """Return the softmax over all keys; None if none is masked."""
    batch, name = step.site.batch, "attention_mask" if of_tokens(step) else "encoder_attention_mask"
    return None if getattr(batch, name) is None or getattr(batch, name).all() else with_batch(step, **{name: None})


class _Inverted(Probabilities):
    """The softmax with the inverted mask.

    In a sequence without padding, the large constant c is added to every score, and absorbs all or some of its digits. Without
    any, the probabilities are 1/S, an error of 1/S − p. With some, the error of a score is less than without any, which is the
    standard deviation of the row's scores.
    """

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        own, unmasked = super().roundings(arithmetic), self.keys.all(-1, keepdims=True)
        lost = np.broadcast_to(self.parents[0].var(-1, keepdims=True), self.value.shape)
        variance = (1.0 / self.keys.shape[-1] - self.value) ** 2 + self.jacobians()[0].variance(lost)
        return Roundings((*own.sources, Source(np.where(unmasked, variance, 0.0), identity())), own.bound)


class _HiddenAlike(Probabilities):
    """The softmax; 1/S in a sequence with all S keys, to whose scores a constant is added that absorbs them."""

    def program(self, *parents: Any) -> Any:
        return super().program(selected(parents[0], as_array(~self.keys.all(-1, keepdims=True))))


def _over_masked(equation: type[Probabilities]) -> Change:
    """Return the change to this softmax over the masked keys, or over all keys where none is masked; None if no key is masked."""

    def change(step: Step, _: FaultContext) -> Step | None:
        batch = step.site.batch
        name, mask = ("attention_mask", batch.keys) if of_tokens(step) else ("encoder_attention_mask", batch.states_mask[:, None])
        if mask.all():
            return None
        other = np.where(mask.all(-1, keepdims=True), mask, ~mask).astype(np.int64)
        return with_batch(step, **{name: other[:, 0] if other.shape[1] == 1 else other}).recast(equation)

    return change


inverted = _over_masked(_Inverted)


def _by_token_types(step: Step, _: FaultContext) -> Step | None:
    """Return the softmax over the keys of a token type other than 0, uniform where there are none; None if all are of type 0."""
    types = step.site.batch.types
    if not of_tokens(step) or not types.any():
        return None
    keys = _up_to_query(step, (types != 0)[:, None, None, :])
    some, uniform = keys.any(-1, keepdims=True), 1.0 / keys.shape[-1]
    return Altered(step, lambda inner: np.where(some, softmax(inner.parents[0], keys), uniform))


def _as_lengths(step: Step, _: FaultContext) -> Step | None:
    """Return the softmax over as many leading keys as there are tokens; None if the tokens are the leading keys.

    To a runtime that takes lengths, later queries are padding, for which it may compute nothing, so these rows may be arbitrary.
    A mask with other keys for each query has no lengths, and None is returned.
    """
    mask = step.site.batch.mask
    first = np.arange(mask.shape[1]) < mask.sum(-1, keepdims=True)
    if not of_tokens(step) or step.site.batch.keys.shape[1] > 1 or (first == mask).all():
        return None
    open_rows = np.where(first, 0.0, NOT_COMPUTED)[:, None, :, None]
    read = with_batch(step, attention_mask=first.astype(np.int64))
    return with_slack(read, lambda altered, _: np.broadcast_to(open_rows, altered.value.shape))


def causal(step: Step, context: FaultContext) -> Step | None:
    """Return the softmax over the unmasked keys up to the query's own position."""
    return probabilities(lambda s, keys: softmax(s, keys & np.tri(*s.shape[-2:], dtype=np.bool_)))(step, context)


class _Multiplied(_OverAllKeys):
    def program(self, *parents: Any) -> Any:
        return super().program(selected(parents[0], keys_of(self)))


def _on_queries(step: Probabilities) -> Mask:
    keys = np.broadcast_to(step.site.batch.keys[:, None].swapaxes(-1, -2), step.parents[0].shape)
    return _up_to_query(step, keys)


_ON_QUERIES = variant(Probabilities, keys=_on_queries)


CONSTANT = 10000.0  # That of the code of Devlin et al. 2019 (modeling.py): adder = (1.0 - attention_mask) * -10000.0.


def _raised(constant: float) -> Change:
    """Return the change to the softmax over the masked keys, where any are: `constant` is added to their scores, not subtracted.

    The order of a decoder's tokens still holds; a query without such a key is right. A score s keeps the digits that s + c has in
    the format, so its error is uniform over an ulp of c; the scores are equal if that is more than their range. None is returned if
    no key is masked, and for a finite constant that makes the scores equal: they are so with any larger one.
    """

    def change(step: Step, context: FaultContext) -> Step | None:
        without, is_finite = unmasked(step, context), bool(np.isfinite(constant))
        spacing = float(context.storage.ulp(as_array(constant))) if is_finite else 0.0
        if without is None or spacing > np.ptp(step.parents[0]):
            return None
        raised = keys_of(without) & ~keys_of(step)
        some = raised.any(-1, keepdims=True)

        def value(inner: Step) -> Array:
            s = inner.parents[0]
            return softmax(np.where(some & (not is_finite), 0.0, s), np.where(some, raised, keys_of(inner)))

        def slack(altered: Altered, _: Arithmetic) -> Array:
            p = altered.value
            return Effect(p.shape, p, {0: (-p, p)}).variance(np.where(raised, spacing**2 / 12.0, np.zeros_like(p)))

        return Altered(step, value, slack if is_finite else None)

    return change


# fmt: off
FAULTS: tuple[Fault, ...] = (
    Fault("mask-ignored", PROBS, "padded keys are attended to", unmasked),
    Fault("mask-inverted", PROBS, "only padded keys are attended to", inverted),
    Fault("mask-inverted-lowest", PROBS,
          "only padded keys are attended to; in a row without padding all keys are hidden, and get equal probabilities",
          _over_masked(_HiddenAlike), tried=ALONE),
    Fault("mask-on-queries", PROBS, "the mask is applied along the queries, not along the keys",
          lambda step, _: step.recast(_ON_QUERIES) if of_tokens(step) else None,
          same_as=SameFunction("mask-ignored", "the mask is applied to the queries instead of the keys")),
    Fault("mask-constant", PROBS, "masked keys keep {value} of their weight",
          parameter=Parameter("weight", lambda _: 0.0, lambda _: float(np.exp(-1.0)), _weighing, quantity="weight of masked keys")),
    Fault("mask-filled", PROBS, "masked scores are replaced by the logarithm of {value}, which is not low enough",
          parameter=Parameter("weight", lambda _: 0.0, lambda _: float(np.exp(-4.0)), _filled), tried=ALONE),
    Fault("mask-from-token-types", PROBS, "token types are used as the mask", _by_token_types),
    Fault("mask-as-lengths", PROBS, "the mask is read as a number of tokens, as if all padding were at the right", _as_lengths,
          extent=EVERY_LAYER),
    Fault("mask-sign", PROBS, "a large number is added at masked keys, not subtracted: they alone are attended to, all equally",
          _raised(np.inf), tried=ALONE),
    Fault("mask-sign-10000", PROBS, "10000 is added at masked keys, not subtracted: only they are attended to",
          _raised(CONSTANT), tried=ALONE),
    Fault("mask-after-softmax", PROBS, "the mask is applied after a softmax over all keys, and the rest is not rescaled",
          lambda step, _: Altered(step.recast(_OverAllKeys), lambda inner: inner.value * keys_of(step))),
    Fault("mask-multiplied", PROBS, "scores are multiplied by the mask: masked ones become 0, not −∞",
          recast(_Multiplied)),
    Fault("mask-causal", PROBS, "later keys are masked", causal),
    Fault("mask-added-raw", PROBS, "the ones and zeros of the mask are added to the scores", added_raw),
)
# fmt: on
