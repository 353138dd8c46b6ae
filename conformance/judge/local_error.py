"""The local judgement: an activation compared with the oracle's result from the candidate's own parents, under each hypothesis.

`screen` decides by RMS and largest error alone whether a step is correct, and names no mistakes. At the other depths, filters of
mistakes are evaluated as well. An activation that passes under every arithmetic is judged by its sums over blocks; for any other,
mistakes are looked for in the whole activation (`failing_activation`), in memory.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from conformance.faults.fault import ROWS
from conformance.judge import Depth
from conformance.judge.evidence import FilterResult, LocalJudgement
from conformance.judge.failing_activation import UnexposedLayers, judge_failing
from conformance.judge.fault_directions import possible_directions
from conformance.judge.fault_effects import BlockTotals, GrossEffects, of_each_size
from conformance.judge.filters import gross_result, is_gross, largest_element
from conformance.judge.gate import judged_by_gate
from conformance.judge.judged_array import STATISTICS, LocalTest, without_faults
from conformance.judge.judged_elements import zeroed
from conformance.judge.observation import Observation
from conformance.numerics.arithmetic import Hypothesis, as_captured, hypotheses, still_needed
from conformance.numerics.formats import Array
from conformance.numerics.function_error_bounds import FunctionErrorBounds
from conformance.numerics.thresholds import Limits, sidak_share
from conformance.oracle import Network


def judge_locally(
    observation: Observation,
    legal: Sequence[Hypothesis],
    alpha: float,
    unexposed_layers: UnexposedLayers | None = None,
    known: Collection[str] = (),
    depth: Depth = "exhaustive",
) -> tuple[LocalJudgement, ...]:
    """Return the judgement under each hypothesis that is needed, of a sample if the gate shows that every element passes.

    Args:
        observation: the activation.
        legal: the hypotheses.
        alpha: total false-alarm probability of the activation.
        unexposed_layers: the search for mistakes in unexposed layers.
        known: names of the faults that explained other activations; they are tried first.
        depth: depth of the judgement.
    """

    def exactly(part: Observation, *, explained: bool) -> tuple[LocalJudgement, ...]:
        if depth == "screen":
            return screened_exactly(part, legal, alpha)
        return _with_filters(part, legal, alpha, unexposed_layers, known, explained=explained)

    def of_sample(part: Observation) -> tuple[LocalJudgement, ...]:
        return exactly(part, explained=False)  # explanations of a failure are those of every element

    judgements = () if depth == "exhaustive" else judged_by_gate(observation, legal, alpha, of_sample, by_head=depth == "screen")
    if depth == "screen":
        return judgements or exactly(observation, explained=False)
    judgements = judgements and _with_other_filters(observation, judgements, legal, alpha)
    judgements = judgements or exactly(observation, explained=True)
    if unexposed_layers is not None and observation.has_unexposed_layers and any(local.passes for local in judgements):
        return unexposed_layers.with_layer_filters(observation.in_memory, judgements)
    return judgements


def _needed(test: LocalTest, legal: Sequence[Hypothesis]) -> tuple[dict[Hypothesis, BlockTotals], list[LocalJudgement]]:
    """Return the totals under each hypothesis that is needed, and the judgements under those with parents as captured.

    Unrounded parents are only needed with arithmetics under which the activation fails with those that are captured.
    """
    captured = as_captured(legal)
    totals = dict(zip(captured, test.gross.totals(captured), strict=True))
    judged = [test.of_totals(hypothesis, found) for hypothesis, found in totals.items()]
    passed = {local.arithmetic for local in judged if local.passes}
    if unrounded := [hypothesis for hypothesis in still_needed(legal, passed) if hypothesis not in totals]:
        totals.update(zip(unrounded, test.gross.totals(unrounded), strict=True))
    return totals, judged


def screened_exactly(observation: Observation, legal: Sequence[Hypothesis], alpha: float) -> tuple[LocalJudgement, ...]:
    """Return the judgement of every element by RMS and largest error, under each hypothesis that is needed."""
    test = LocalTest(observation, alpha, without_faults(observation))
    totals, judged = _needed(test, legal)
    judged += [test.of_totals(hypothesis, totals[hypothesis]) for hypothesis in list(totals)[len(judged) :]]
    by_operations = test.by_operations(legal[0], {local.arithmetic for local in judged if local.passes})
    return (by_operations,) if by_operations else tuple(judged)


def _with_filters(
    observation: Observation,
    legal: Sequence[Hypothesis],
    alpha: float,
    unexposed_layers: UnexposedLayers | None,
    known: Collection[str],
    *,
    explained: bool,
) -> tuple[LocalJudgement, ...]:
    """Return the judgement of every element, with filters, under each hypothesis that is needed.

    An activation that fails is explained, or, unless it is to be `explained`, has no judgements.
    """
    storage = legal[0].arithmetic.storage
    near = possible_directions(observation.probe.segment, storage)
    placed = [direction.on(observation.whole.segment) if direction.fault.extent == ROWS else direction for direction in near]
    directions = of_each_size(observation, placed, legal[-1])
    largest = Limits.of(1, observation.count, STATISTICS + len(directions), alpha).max
    test = LocalTest(observation, alpha, GrossEffects(observation, directions, largest, legal[-1]))
    totals, judged = _needed(test, legal)
    if len(judged) == len(totals):  # it passes under every arithmetic
        return tuple(judged)
    return judge_failing(replace(test, observation=observation.in_memory), totals, unexposed_layers, known, explained=explained)


def _with_other_filters(
    observation: Observation, of_sample: Sequence[LocalJudgement], legal: Sequence[Hypothesis], alpha: float
) -> tuple[LocalJudgement, ...]:
    """Return the judgements of a sample with the results of the mistakes that change none of its elements, but others.

    Where they change some by more than their limits, the gate, which shows every element to be within them, excludes the mistake.
    There are none if a mistake changes elements by less: then its filter is to be evaluated on every element.
    """
    widest, is_projected = legal[-1], of_sample[0].rests_on == "projections"
    possible = possible_directions(observation.probe.segment, widest.arithmetic.storage)
    filtered = {(f.name, f.step) for local in of_sample for f in local.filters}
    left = [direction for direction in possible if (direction.fault.name, direction.step) not in filtered]
    limit = Limits.of(1, observation.count, STATISTICS + len(possible), alpha).max
    others: list[FilterResult] = []
    for part in (None, *observation.rows) if left else ():
        block = observation.probe if part is None else observation.block(part)
        for direction in tuple(left):
            effect = direction.on(observation.whole.segment if direction.fault.extent == ROWS else block.segment).effect
            if effect is None or not (block.judged & (effect != 0.0)).any():
                continue
            size = largest_element(effect, block.noise(widest))
            if is_projected or not is_gross(size, limit):
                return ()
            others.append(gross_result(direction, size))
            left.remove(direction)
    return tuple(replace(local, filters=(*local.filters, *others)) for local in of_sample)


@dataclass(frozen=True)
class Screened:
    """The result of screening one activation.

    Attributes:
        activation: name of the activation.
        excess: its error over its limit, under the first hypothesis with which it passes, else under the one where that is
            smallest; infinite where an exact activation differs.
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
    """Screen every element of every exposed activation, in the order of computation.

    Args:
        network: the oracle's network.
        values: the exposed activations by name.
        dtype: the candidate's storage format.
        device: the candidate's device.
        tests: number of such calls that share the false-alarm probability.
        functions: error bounds of library functions, as for a `Judge`.
    """
    alpha, legal = sidak_share(tests * max(len(values), 1)), hypotheses(dtype, device, functions)
    seen: dict[str, Array] = {}
    results = []
    for name in (name for name in network.table if name in values):
        observation = Observation(network, name, values[name], dict(seen))
        if observation.count:
            results.append(_screened_activation(observation, legal, alpha))
        seen[name] = values[name]
    return results


def _screened_activation(observation: Observation, legal: Sequence[Hypothesis], alpha: float) -> Screened:
    block = observation.whole
    residual = zeroed(block.residual, block.judged)
    index = np.unravel_index(int(np.abs(residual).argmax()), residual.shape) if residual.ndim else ()
    place = tuple(int(i) for i in index)
    excess = 0.0
    if residual.any():
        judged = () if observation.is_exact else screened_exactly(observation, legal, alpha)
        passing = (local.excess for local in judged if local.passes)
        excess = next(passing, min((local.excess for local in judged), default=np.inf))
    return Screened(observation.name, excess, place, float(block.actual[place]), float(block.segment.value[place]))
