"""Differences between two candidates, activation by activation, and the steps at which they begin.

Let a and b be the two values of an activation, f(·) the oracle's step applied to each candidate's own parents, and σ_a and σ_b the
standard deviations of the two rounding errors. Two differences are computed:

    difference        (a − b)                          in units of the rounding errors of both, accumulated since the token ids
    begins here       (a − f(parents of a)) − (b − f(parents of b))      in units of √(σ_a² + σ_b²)

The second does not blame steps for a difference that they only pass on. Parents are the nearest activations that both candidates
expose; a difference that begins in a step that only one candidate exposes is reported at the next step that both expose.

The σ are those of library calls that each round once. Correct candidates may compute in wider arithmetics, so no difference begins
in steps that pass in both candidates, each judged under its own arithmetic.

`judged` judges a trace's activations against the oracle, as in a run.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch

from conformance.checks.trace import Trace, require_same_inputs
from conformance.judge.evidence import Verdict
from conformance.judge.global_error import reference
from conformance.judge.judge import Judge
from conformance.judge.judged_elements import judged_elements, sums_of_independent_rows
from conformance.judge.segment import Segment
from conformance.judge.select_arithmetic import select_arithmetic
from conformance.model.checkpoint import Checkpoint, rounded_weights
from conformance.numerics.arithmetic import Hypothesis, representative_hypothesis
from conformance.numerics.formats import Array, Mask
from conformance.numerics.thresholds import max_threshold, rms_threshold, sidak_share
from conformance.oracle import Network
from conformance.results.case import Case
from conformance.results.records import ActivationRecord
from conformance.results.result import Result
from conformance.results.to_records import activation_records

Places = Collection[tuple[str, str]]  # Names of batches, "" for the only one, each with the name of an activation.


@dataclass(frozen=True)
class Difference:
    """The difference between two candidates, a and b, at one activation on one batch.

    Attributes:
        only: `A` or `B` if only that candidate exposes the activation; the other attributes then have their defaults.
        largest, index, values: largest |a − b| over the judged elements, its index, and a and b there.
        accumulated: RMS of a − b in units of both accumulated rounding errors; None if that unit is 0 at any judged element.
        local, local_max: RMS and largest element of the difference that begins here, in sigma; None at exact activations.
        limit, max_limit: the largest `local` and `local_max` of two correct candidates; None at exact activations.
        begins: whether `local` or `local_max` exceeds its limit and a step fails in one of the candidates; at exact activations,
            whether any difference begins here.
    """

    batch: str
    activation: str
    only: str = ""
    largest: float = 0.0
    index: tuple[int, ...] = ()
    values: tuple[float, float] | None = None
    accumulated: float | None = None
    local: float | None = None
    limit: float | None = None
    local_max: float | None = None
    max_limit: float | None = None
    begins: bool = False

    @property
    def excess(self) -> float:
        """The larger ratio of the difference that begins here to its limit; at exact activations infinite or 0."""
        if self.local is None or self.limit is None or self.local_max is None or self.max_limit is None:
            return float("inf") if self.begins else 0.0
        return max(self.local / self.limit, self.local_max / self.max_limit)


def compare(a: Trace, b: Trace, checkpoint: Checkpoint, failed: Places | None = None) -> Iterator[Difference]:
    """Yield the difference at every activation that either trace exposes, batch by batch, in the order of computation.

    `failed` are the activations that fail in one of the traces or in both; None if the traces have not been judged.

    Raises:
        UsageError: the traces did not run on the same inputs.
    """
    require_same_inputs(a, b)
    weights = {dtype: rounded_weights(checkpoint, dtype) for dtype in {a.dtype, b.dtype}}
    for name, batch in a.batches.items():
        networks = tuple(Network(checkpoint.architecture, weights[t.dtype], batch.held_in(t.dtype)) for t in (a, b))
        label = name if len(a.batches) > 1 else ""
        of_batch = None if failed is None else {activation for batch, activation in failed if batch == label}
        yield from _batch(name, networks, (a, b), of_batch)


def _batch(
    name: str, networks: tuple[Network, ...], traces: tuple[Trace, Trace], failed: Collection[str] | None
) -> Iterator[Difference]:
    ours, theirs = (t.activations[name] for t in traces)
    models = tuple(representative_hypothesis(t.dtype, t.device) for t in traces)
    sigmas = zip(*(reference(n, h.arithmetic) for n, h in zip(networks, models, strict=True)), strict=True)
    alpha = sidak_share(2 * len(networks[0].table) * len(traces[0].batches))
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
        index = tuple(int(i) for i in np.unravel_index(int(np.abs(difference).argmax()), difference.shape))
        both = np.broadcast_to(np.sqrt(sigma_a**2 + sigma_b**2), difference.shape)[judged]
        yield Difference(
            name,
            activation,
            "",
            float(np.abs(difference).max()),
            index,
            (float(ours[activation][index]), float(theirs[activation][index])),
            float(np.sqrt(np.mean((difference[judged] / both) ** 2))) if both.all() else None,
            *_local(activation, networks, models, (ours, theirs), judged, alpha, failed),
        )


_Local = tuple[float | None, float | None, float | None, float | None, bool]


def _local(
    activation: str,
    networks: tuple[Network, ...],
    models: tuple[Hypothesis, ...],
    values: tuple[Mapping[str, Array], ...],
    judged: Mask,
    alpha: float,
    failed: Collection[str] | None,
) -> _Local:
    """Return the statistics of the difference that begins at an activation.

    These are its RMS and the limit, its largest element and the limit, all in sigma after subtracting the deterministic bounds
    (None at exact activations, and where a parent is not finite), and whether a difference begins.
    """
    residual, variance, bound = np.zeros(()), np.zeros(()), np.zeros(())
    common = set.intersection(*(set(found) for found in values))
    sign, exact, may_begin = 1.0, True, failed is None
    for network, model, found in zip(networks, models, values, strict=True):
        order = list(network.table)
        before = {n: _finite(n, v, network) for n, v in found.items() if n in common and order.index(n) < order.index(activation)}
        segment = Segment(network, activation, before)
        if not all(np.isfinite(leaf).all() for leaf in segment.leaves.values()):
            return None, None, None, None, False  # A difference that comes from a step before is not distinguished.
        residual = residual + sign * (found[activation] - segment.value)
        variance = variance + segment.propagate(segment.leaf_variance(_unrounded(model)), model)
        bound = bound + segment.bound(model)
        exact = exact and all(step.site.activation.exact for step in segment.steps.values())
        may_begin = may_begin or any(step in (failed or ()) for step in segment.steps)
        sign = -1.0
    if exact:
        return None, None, None, None, bool(residual[judged].any())
    scaled = (np.maximum(np.abs(residual) - bound, 0.0) / np.sqrt(variance))[judged]
    rows = sums_of_independent_rows(networks[0].table[activation], judged, coupled=True)
    rms, limit = float(np.sqrt((scaled**2).mean())), rms_threshold(rows, alpha)
    largest, largest_limit = float(scaled.max()), max_threshold(scaled.size, alpha)
    exceeds = not (rms <= limit and largest <= largest_limit)  # also if one is NaN
    return rms, limit, largest, largest_limit, may_begin and exceeds


def _finite(name: str, value: Array, network: Network) -> Array:
    """Return an activation with 0 at elements that are not finite and not judged: nothing that is judged may depend on them."""
    judged = judged_elements(network.table[name], network.batch, value.shape)
    return np.where(judged | np.isfinite(value), value, 0.0)


def _unrounded(model: Hypothesis) -> Hypothesis:
    """Return the hypothesis of unrounded parents, the wider of two: a step is blamed only if neither explains the difference."""
    return Hypothesis(model.arithmetic, "unrounded")


def judged(trace: Trace, checkpoint: Checkpoint) -> list[ActivationRecord]:
    """Return a record for each activation and batch of a trace; `findings` derives the mistakes from them."""
    weights, verdicts = rounded_weights(checkpoint, trace.dtype), list[Verdict]()
    for batch in trace.batches:
        network = Network(checkpoint.architecture, weights, trace.batches[batch].held_in(trace.dtype))
        judge = Judge(network, trace.dtype, trace.device, len(trace.batches), recorded=True)
        label = batch if len(trace.batches) > 1 else ""
        verdicts += [replace(v, batch=label) for v in select_arithmetic(judge.judge(_of_candidate(trace, batch)))]
    case = Case(trace.name, trace.golden, trace.device, trace.dtype)
    return activation_records(Result(case, "pass", "", 0, True, True, 0.0, tuple(verdicts)))


def _of_candidate(trace: Trace, batch: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the activations of a batch, converted from the float64 of a trace to the candidate's format, which is exact."""
    for name, value in trace.activations[batch].items():
        yield name, torch.tensor(value).to(getattr(torch, trace.dtype))
