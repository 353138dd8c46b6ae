"""What differs between two candidates, activation by activation, and where the difference begins.

With a and b the two values of an activation, f(·) the oracle's step on each one's own parents, and σ the sigma of each one's
rounding,

    difference        (a − b)                          in units of what both have accumulated since the token ids
    begins here       (a − f(parents of a)) − (b − f(parents of b))      in units of √(σ_a² + σ_b²)

so that a difference that was there before is not blamed on the steps that it passes through.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from conformance.checkpoint import Checkpoint, rounded_weights
from conformance.errors import UsageError
from conformance.judge.reference import reference
from conformance.judge.segment import Segment
from conformance.judge.selection import Mask, judged_elements
from conformance.judge.statistics import max_threshold, rms_threshold, share
from conformance.numerics.arithmetic import Hypothesis, hypotheses
from conformance.numerics.formats import Array
from conformance.oracle import Network
from conformance.traces.trace import Trace


@dataclass(frozen=True)
class Difference:
    """One activation's.

    Attributes:
        only: `A` or `B` where the other does not expose it; then nothing else is known.
        largest, index: the largest |a − b| and where it is.
        accumulated: RMS of a − b, in sigma of both accumulated errors; None where there is none.
        local, limit: RMS of what begins here, in sigma, and the largest that two correct candidates have; None at exact ones.
        begins: whether more than both roundings begins here.
    """

    batch: str
    activation: str
    only: str = ""
    largest: float = 0.0
    index: tuple[int, ...] = ()
    accumulated: float | None = None
    local: float | None = None
    limit: float | None = None
    begins: bool = False


def compare(a: Trace, b: Trace, checkpoint: Checkpoint) -> Iterator[Difference]:
    """Every activation that either exposes, in the order of computation.

    Raises:
        UsageError: they did not run on the same inputs.
    """
    require_same_inputs(a, b)
    for name, batch in a.batches.items():
        networks = tuple(Network(checkpoint.architecture, rounded_weights(checkpoint, t.dtype), batch) for t in (a, b))
        yield from _batch(name, networks, (a, b))


def require_same_inputs(a: Trace, b: Trace) -> None:
    """Raise `UsageError` where two traces are of other networks or other inputs."""
    ours, theirs = ({n: batch.arrays() for n, batch in t.batches.items()} for t in (a, b))
    same = ours.keys() == theirs.keys() and all(
        ours[n].keys() == theirs[n].keys() and all(np.array_equal(ours[n][k], theirs[n][k]) for k in ours[n]) for n in ours
    )
    if a.golden != b.golden or not same:
        raise UsageError(f"{a.name} ran on {a.golden}, {b.name} on {b.golden} or on other inputs: run both on the same")


def _batch(name: str, networks: tuple[Network, ...], traces: tuple[Trace, Trace]) -> Iterator[Difference]:
    ours, theirs = (t.activations[name] for t in traces)
    models = tuple(next(h for h in hypotheses(t.dtype) if h.arithmetic.rounding == "modular") for t in traces)
    sigmas = zip(*(reference(n, h.arithmetic) for n, h in zip(networks, models, strict=True)), strict=True)
    alpha = share(2 * len(networks[0].table))
    for (activation, _, sigma_a), (_, _, sigma_b) in sigmas:
        if activation not in ours and activation not in theirs:
            continue
        if activation not in ours or activation not in theirs:
            yield Difference(name, activation, "A" if activation in ours else "B")
            continue
        difference = ours[activation] - theirs[activation]
        row = networks[0].table[activation]
        judged = judged_elements(row, networks[0].batch, difference.shape)
        if not judged.any():
            continue
        difference = np.where(judged, difference, 0.0)
        index = np.unravel_index(int(np.abs(difference).argmax()), difference.shape)
        both = np.broadcast_to(np.sqrt(sigma_a**2 + sigma_b**2), difference.shape)[judged]
        accumulated = float(np.sqrt(np.mean((difference[judged] / both) ** 2))) if both.all() else None
        local, limit, begins = _local(activation, networks, models, (ours, theirs), judged, alpha)
        place = tuple(int(i) for i in index)
        yield Difference(name, activation, "", float(np.abs(difference).max()), place, accumulated, local, limit, begins)


def _local(
    activation: str,
    networks: tuple[Network, ...],
    models: tuple[Hypothesis, ...],
    values: tuple[Mapping[str, Array], ...],
    judged: Mask,
    alpha: float,
) -> tuple[float | None, float | None, bool]:
    """RMS in sigma of what begins here, its limit, and whether it is beyond it."""
    residual, variance, bound = np.zeros(()), np.zeros(()), np.zeros(())
    sign, exact, rows = 1.0, True, 1
    for network, model, found in zip(networks, models, values, strict=True):
        order = list(network.table)
        before = {n: v for n, v in found.items() if order.index(n) < order.index(activation)}
        segment = Segment(network, activation, before)
        residual = residual + sign * (found[activation] - segment.value)
        variance = variance + segment.propagate(segment.leaf_variance(_unrounded(model)), model)
        bound = bound + segment.bound(model)
        exact = exact and all(step.site.activation.exact for step in segment.steps.values())
        rows = int(network.batch.mask.any(1).sum())
        sign = -1.0
    if exact:
        return None, None, bool(residual[judged].any())
    scaled = (np.maximum(np.abs(residual) - bound, 0.0) / np.sqrt(variance))[judged]
    rms, limit = float(np.sqrt((scaled**2).mean())), rms_threshold(rows, alpha)
    return rms, limit, rms > limit or float(scaled.max()) > max_threshold(scaled.size, alpha)


def _unrounded(model: Hypothesis) -> Hypothesis:
    """The wider reading of the parents: a difference is blamed on a step only when neither reading explains it."""
    return Hypothesis(model.arithmetic, "unrounded")
