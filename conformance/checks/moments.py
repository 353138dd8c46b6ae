"""Mean and variance of the embedding and of every residual, as the theory has them.

After LayerNorm, z = (y − β)/γ has over the features of a token the mean 0 and the variance v/(v + ε), v the variance of what was
normalised (Ba, Kiros and Hinton 2016, equation 4). A candidate's own z may miss them by what rounding makes of a mean: at most the
mean of the elements' deviations, were they all to err together, times the threshold of that many tests.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from conformance.errors import CandidateError, NotApplicable
from conformance.judge.statistics import max_threshold, share
from conformance.judge.validate import accepted_array
from conformance.model.batch import Batch
from conformance.model.checkpoint import Checkpoint, rounded_weights
from conformance.numerics.arithmetic import Hypothesis, hypotheses
from conformance.numerics.formats import Array
from conformance.numerics.machine import this_machine
from conformance.oracle import Network, Step

Stream = Iterator[tuple[str, Any]]


def watched(checkpoint: Checkpoint, device: str, dtype: str, *, calls: int = 1) -> Callable[[Any, Stream], Stream]:
    """A check of a stream: raises `CandidateError` at the first wrong mean or variance, `NotApplicable` where none is exposed.

    Among `calls` calls, and the norms of each, the false-alarm probability of 1e-6 is shared.
    """

    def look(batch: Any, stream: Stream) -> Stream:
        network = Network(checkpoint.architecture, rounded_weights(checkpoint, dtype), batch.numpy().held_in(dtype))
        norms, legal = _norms(network), hypotheses(dtype, device, this_machine(device).accuracy)
        alpha, seen = share(calls * len(norms)), 0
        for name, value in stream:
            if name in norms:
                made = accepted_array(network.table[name], value, network.architecture, network.batch, dtype, device)
                _require_moments(name, np.asarray(made, np.float64), norms[name], network.batch, legal, alpha)
                seen += 1
            yield name, value
        if not seen:
            raise NotApplicable(f"none of {', '.join(norms)} is exposed, so there is no mean or variance to be seen")

    return look


def _norms(network: Network) -> dict[str, Step]:
    """The embedding's norm and the residuals', evaluated on the oracle's own values."""
    values: dict[str, Array] = {}
    norms = {}
    for name, value in network.walk():
        values[name] = value
        row = network.table[name]
        if row.kind == "norm" and not name.startswith("cls."):
            norms[name] = network.step(name, *(values[p] for p in row.parents))
    return norms


def _require_moments(name: str, made: Array, step: Step, batch: Batch, legal: Sequence[Hypothesis], alpha: float) -> None:
    gamma, beta = step.site.parameters["weight"], step.site.parameters["bias"]
    used = gamma != 0.0
    summed = np.asarray(sum(step.parents[1:], start=step.parents[0]))
    before = summed.var(-1)
    model = next(h.arithmetic for h in legal if h.arithmetic.rounding == "native" or not h.arithmetic.is_mixed)
    sigma = np.sqrt(step.roundings(model).variance())[..., used] / np.abs(gamma[used])
    z = (made - beta)[..., used] / gamma[used]
    threshold = max_threshold(2 * int(batch.mask.sum()), alpha)
    whole = bool(used.all())  # the theory speaks of all features
    tests = (
        ("mean", z.mean(-1), np.zeros(()), threshold * sigma.mean(-1)),
        ("variance", z.var(-1), before / (before + step.site.architecture.layer_norm_eps), _spread(z, sigma, threshold)),
    )
    for what, found, expected, room in tests:
        wrong = (np.abs(found - expected) > room) & batch.mask
        if whole and wrong.any():
            place = tuple(int(i) for i in np.argwhere(wrong)[0])
            right = float(np.broadcast_to(expected, found.shape)[place])
            raise CandidateError(
                f"{name}: (y − β)/γ of token {list(place)} has {what} {found[place]:.6g}, expected {right:.6g} ± {room[place]:.2g}"
            )


def _spread(z: Array, sigma: Array, threshold: float) -> Array:
    """How far a variance may be off: 2 |z| e + e², with errors e of `threshold` deviations."""
    error = threshold * sigma
    return np.asarray((2.0 * np.abs(z) * error + error**2).mean(-1))
