"""The screening judgement: RMS and maximum alone, for each hypothesis until one passes.

It decides whether a step is correct, and does not name mistakes. Sums, limits and hypotheses are those of a full judgement;
filters, global error and explanations are omitted.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from conformance.judge.block_totals import BlockTotals, block_totals
from conformance.judge.by_hand import passing_by_hand
from conformance.judge.error_distribution import ErrorDistribution
from conformance.judge.evidence import LocalJudgement
from conformance.judge.fault_effects import GrossEffects
from conformance.judge.gate import judged_by_gate
from conformance.judge.judged_elements import zeroed
from conformance.judge.limits import limits_for, limits_of
from conformance.judge.noise import of_segment
from conformance.judge.observation import Observation
from conformance.judge.segment import Segment
from conformance.judge.sums import LocalSums
from conformance.numerics.arithmetic import Hypothesis, as_captured, hypotheses, still_needed
from conformance.numerics.formats import Array
from conformance.numerics.function_error_bounds import FunctionErrorBounds
from conformance.numerics.thresholds import Limits, sidak_share
from conformance.oracle import Network


def screened_locally(observation: Observation, legal: Sequence[Hypothesis], alpha: float) -> tuple[LocalJudgement, ...]:
    """Return the judgement under each hypothesis, of a sample if the gate shows that every element passes (`judge.gate`)."""

    def exactly(part: Observation) -> tuple[LocalJudgement, ...]:
        return screened_exactly(part, legal, alpha)

    return judged_by_gate(observation, legal, alpha, exactly) or exactly(observation)


def screened_exactly(observation: Observation, legal: Sequence[Hypothesis], alpha: float) -> tuple[LocalJudgement, ...]:
    """Return the judgement under each hypothesis; unrounded parents are tried only where the captured ones fail."""
    found = _screened(observation, as_captured(legal), alpha)
    passed = {local.arithmetic for local in found if local.passes}
    found += _screened(observation, [h for h in still_needed(legal, passed) if h.parents == "unrounded"], alpha)
    handmade = passing_by_hand(
        observation, legal[0], passed, lambda actual: _of_whole(actual, observation.whole.segment, observation, legal[0], alpha)
    )
    return (handmade,) if handmade else tuple(found)


def fits(observation: Observation, faulty: Segment, legal: Sequence[Hypothesis], alpha: float) -> bool:
    """Return whether an activation passes under some hypothesis if it is computed by a faulty segment."""
    actual = observation.whole.actual
    return any(_of_whole(actual, faulty, observation, hypothesis, alpha).passes for hypothesis in legal)


def _of_whole(actual: Array, segment: Segment, observation: Observation, hypothesis: Hypothesis, alpha: float) -> LocalJudgement:
    """Return the judgement of an array by a segment; only the candidate's own array contains the segment's rounding errors."""
    block, storage = observation.whole, hypothesis.arithmetic.storage
    errors = LocalSums.of(actual - segment.value, of_segment(segment, hypothesis, block.judged), block.counted)
    found = BlockTotals(errors, {}, segment.hashes(storage))
    limits = limits_of(observation, hypothesis, found.hashes, 0, alpha)
    if actual is block.actual:
        limits = limits_for(errors.errors.rms, limits, observation, hypothesis, segment)
    return local_of(hypothesis, found, observation.independent_rows(hypothesis, found.hashes).size, limits)


def _screened(observation: Observation, legal: Sequence[Hypothesis], alpha: float) -> list[LocalJudgement]:
    """Return the judgement under each hypothesis; each block is evaluated once for all of them."""
    if not legal:
        return []
    found = block_totals(observation, GrossEffects(observation, [], math.inf), legal)
    return [_local(observation, hypothesis, totals, alpha) for hypothesis, totals in zip(legal, found, strict=True)]


def _local(observation: Observation, hypothesis: Hypothesis, found: BlockTotals, alpha: float) -> LocalJudgement:
    limits = limits_of(observation, hypothesis, found.hashes, 0, alpha)
    limits = limits_for(found.errors.errors.rms, limits, observation, hypothesis)
    return local_of(hypothesis, found, observation.independent_rows(hypothesis, found.hashes).size, limits)


def local_of(hypothesis: Hypothesis, found: BlockTotals, rows: int, limits: Limits) -> LocalJudgement:
    """Return the judgement that the totals over the blocks imply, without filters."""
    return LocalJudgement(
        str(hypothesis),
        hypothesis.arithmetic.name,
        found.errors.errors.error,
        found.errors.mean_nll * rows,
        limits.rms,
        limits.max,
        limits.filter,
        distribution=ErrorDistribution("sigma", tuple(int(n) for n in found.errors.counts)),
    )


@dataclass(frozen=True)
class Screened:
    """The result of screening one activation.

    Attributes:
        activation: name of the activation.
        excess: its error over its limit, under the hypothesis where that is smallest; infinite where an exact activation differs.
        index: index of the largest absolute residual.
        actual, expected: the candidate's and the oracle's value at that index.
    """

    activation: str
    excess: float
    index: tuple[int, ...]
    actual: float
    expected: float


def screened(
    network: Network,
    values: Mapping[str, Array],
    dtype: str,
    device: str = "cpu",
    tests: int = 1,
    functions: FunctionErrorBounds | None = None,
) -> list[Screened]:
    """Screen every exposed activation, in the order of computation.

    Args:
        network: the oracle's network.
        values: the exposed activations by name.
        dtype: the candidate's storage format.
        device: the candidate's device.
        tests: number of such calls that share the false-alarm probability.
        functions: error bounds of library functions, as for a `Judge`.
    """
    alpha = sidak_share(tests * max(len(values), 1))
    legal = hypotheses(dtype, device, functions)
    order = {name: i for i, name in enumerate(network.table)}
    seen: dict[str, Array] = {}
    found = []
    for name in sorted(values, key=order.__getitem__):
        observation = Observation(network, name, values[name], dict(seen))
        if observation.count:
            found.append(_screened_activation(observation, legal, alpha))
        seen[name] = values[name]
    return found


def _screened_activation(observation: Observation, legal: Sequence[Hypothesis], alpha: float) -> Screened:
    block = observation.whole
    residual = zeroed(block.residual, block.judged)
    index = np.unravel_index(int(np.abs(residual).argmax()), residual.shape) if residual.ndim else ()
    excess = 0.0
    if residual.any():
        excess = float("inf") if observation.is_exact else _excess(observation, legal, alpha)
    place = tuple(int(i) for i in index)
    return Screened(observation.name, excess, place, float(block.actual[place]), float(block.segment.value[place]))


def _excess(observation: Observation, legal: Sequence[Hypothesis], alpha: float) -> float:
    """Return the smallest excess under the hypotheses, until one passes, and if none does, under the orders of operations."""
    excess = min(local.excess for local in _until_one_passes(observation, legal, alpha))
    if excess <= 1.0:
        return excess
    by_hand = passing_by_hand(
        observation, legal[0], (), lambda actual: _of_whole(actual, observation.whole.segment, observation, legal[0], alpha)
    )
    return by_hand.excess if by_hand else excess


def _until_one_passes(observation: Observation, legal: Sequence[Hypothesis], alpha: float) -> Iterator[LocalJudgement]:
    for hypothesis in legal:
        local = _screened(observation, [hypothesis], alpha)[0]
        yield local
        if local.passes:
            return
