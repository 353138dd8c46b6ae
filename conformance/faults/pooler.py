"""Faults of the pooler besides those of other tokens and functions: means, a result of length 1, and a second pooling."""

from collections.abc import Iterator

import numpy as np

from conformance.faults.altered import Altered, with_slack
from conformance.faults.fault import Change, Fault, FaultContext
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.arrays import as_array
from conformance.numerics.formats import Array
from conformance.oracle import Step

_FIX = "Feed the pooler the first token of the last hidden state, and each head the pooler's output."


def _mean(*, padding: bool, weighted: bool) -> Change:
    """Return the change by which the pooler reads the mean of the tokens, which may be weighted by their positions from 1."""

    def change(step: Step, _: FaultContext) -> Step | None:
        hidden, mask = step.parents[0], step.site.batch.mask
        if hidden.ndim != 3:
            return None
        counted = np.ones_like(mask) if padding else mask
        weights = counted * np.arange(1.0, hidden.shape[1] + 1.0) if weighted else as_array(counted, np.float64)
        weights = (weights / np.maximum(weights.sum(1, keepdims=True), 1.0))[..., None]
        mean, size = (hidden * weights).sum(1), (np.abs(hidden) * weights).sum(1)

        def slack(altered: Altered, arithmetic: Arithmetic) -> Array:
            rounded = np.zeros_like(hidden)
            rounded[:, 0] = arithmetic.storage.rounding_variance(size)  # The mean may be rounded; its partial sums are no larger.
            return altered.inner.jacobians()[0].variance(rounded)

        changed = step.replaced(parents=(np.concatenate([mean[:, None], hidden[:, 1:]], 1),))
        return with_slack(changed, slack)

    return change


def _of_length_one(step: Step, _: FaultContext) -> Step:
    """Return the pooler's tanh divided by its length; the quotient is rounded once more."""

    def value(inner: Step) -> Array:
        return as_array(inner.value / np.linalg.norm(inner.value, axis=-1, keepdims=True))

    return Altered(step, value, lambda altered, arithmetic: arithmetic.storage.rounding_variance(altered.value))


def _again(step: Step, context: FaultContext) -> Step | None:
    """Return the head of tanh(W p + b) for the pooler's output p and its own parameters; both results may be rounded."""
    (pooled,) = step.parents
    if "pooler.dense" not in context.network.table:
        return None
    own = context.network.site("pooler.dense").parameters
    if own["weight"].shape[1] != pooled.shape[-1]:
        return None
    product = pooled @ own["weight"].T + own["bias"]
    twice = np.tanh(product)

    def slack(altered: Altered, arithmetic: Arithmetic) -> Array:
        rounding = arithmetic.storage.rounding_variance
        size = np.abs(pooled) @ np.abs(own["weight"]).T + np.abs(own["bias"])  # The partial sums are no larger.
        return altered.inner.jacobians()[0].variance(rounding(size) * (1.0 - twice**2) ** 2 + rounding(twice))

    return with_slack(step.replaced(parents=(twice,)), slack)


# fmt: off
def faults() -> Iterator[Fault]:
    """Yield the further faults of the pooler."""
    pooled = frozenset({"first_token_linear"})
    for end, padding, which in (("", False, ""), ("-with-padding", True, ", including padding")):
        yield Fault(f"pooler-mean{end}", pooled, f"the mean over all tokens{which} is read, not the first token", "constructed",
                    _mean(padding=padding, weighted=False), "hidden.mean(1)" if padding else "a sentence embedding's pooling",
                    fix=_FIX)
        yield Fault(f"pooler-weighted-mean{end}", pooled,
                    f"the mean over all tokens{which}, weighted by their positions, is read, not the first token", "constructed",
                    _mean(padding=padding, weighted=True), "the pooling of SGPT (Muennighoff 2022)", ("pooler.dense",),
                    after_failure=True,
                    equation="y = (Σ_s s x_s / Σ_s s) Wᵀ + b, s from 1", fix=_FIX)
    yield Fault("pooler-normalised", frozenset({"tanh"}), "the pooler's output is divided by its length", "constructed",
                _of_length_one, "the Normalize module of sentence-transformers, in front of a classifier", ("pooler.activation",),
                after_failure=True, equation="y = tanh(x) / ‖tanh(x)‖",
                fix="Return tanh as it is; normalise only where embeddings are compared.")
    yield Fault("pooler-twice", frozenset({"linear"}), "the head reads the pooler's output after the pooler once more",
                "constructed", _again, "a head that has a pooler of its own, given the pooled output",
                ("seq_relationship", "classifier"), after_failure=True,
                equation="y = tanh(W_p p + b_p) Wᵀ + b, p the pooler's output",
                fix=_FIX)
# fmt: on
