"""The local judgement: one activation compared with the oracle's result from the candidate's own parents, under each hypothesis.

An activation that passes under every arithmetic is judged by its sums over blocks alone; for any other, mistakes are looked for in
the whole activation (`failing_activation`), in memory.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

from conformance.faults.fault import ROWS
from conformance.judge.block_totals import BlockTotals, block_totals
from conformance.judge.depth import Depth
from conformance.judge.evidence import FilterResult, LocalJudgement
from conformance.judge.failing_activation import UnexposedLayers, judge_whole
from conformance.judge.fault_directions import Direction, possible_directions
from conformance.judge.fault_effects import GrossEffects, filter_result, of_each_size
from conformance.judge.filters import gross_result, is_gross, largest_element
from conformance.judge.gate import judged_by_gate
from conformance.judge.limits import STATISTICS, limits_of
from conformance.judge.observation import Observation
from conformance.judge.projections import product_of
from conformance.judge.screen import local_of, screened_exactly
from conformance.numerics.arithmetic import Hypothesis, as_captured, still_needed
from conformance.numerics.thresholds import Limits


def judge_locally(
    observation: Observation,
    hypotheses: Sequence[Hypothesis],
    alpha: float,
    unexposed_layers: UnexposedLayers | None = None,
    known: Collection[str] = (),
    depth: Depth = "exhaustive",
) -> tuple[LocalJudgement, ...]:
    """Return the judgement under each hypothesis that is needed, of a sample if the gate shows that every element passes.

    Args:
        observation: the activation.
        hypotheses: the hypotheses.
        alpha: total false-alarm probability of the activation.
        unexposed_layers: the search for mistakes in unexposed layers.
        known: names of the faults that explained other activations; they are tried first.
        depth: depth of the judgement, `full` or `exhaustive`.
    """

    def exactly(part: Observation) -> tuple[LocalJudgement, ...]:
        return _of_every_element(part, hypotheses, alpha, unexposed_layers, known)

    def of_sample(part: Observation) -> tuple[LocalJudgement, ...]:
        passes = any(local.passes for local in screened_exactly(part, hypotheses, alpha))
        return exactly(part) if passes else ()  # explanations of a failure are those of every element

    gated = () if depth == "exhaustive" else judged_by_gate(observation, hypotheses, alpha, of_sample)
    others = _without_effect_on_sample(observation, gated, hypotheses, alpha) if gated else None
    judgements = exactly(observation) if others is None else _with(gated, others)
    if unexposed_layers is not None and observation.has_unexposed_layers and any(local.passes for local in judgements):
        return unexposed_layers.with_layer_filters(observation.in_memory, judgements)
    return judgements


def _with(judgements: Sequence[LocalJudgement], others: Sequence[FilterResult]) -> tuple[LocalJudgement, ...]:
    return tuple(replace(local, filters=(*local.filters, *others)) for local in judgements)


def _without_effect_on_sample(
    observation: Observation, of_sample: Sequence[LocalJudgement], hypotheses: Sequence[Hypothesis], alpha: float
) -> list[FilterResult] | None:
    """Return the results of the mistakes that change no element of a passing sample, but others by more than their limits.

    A mistake that changes no element at all has no result. None is returned if one changes others that the gate, which shows them
    to be within their limits, does not tell from rounding: then its filter is to be evaluated on every element.
    """
    widest, is_projected = hypotheses[-1], product_of(observation) is not None
    possible = possible_directions(observation.probe.segment, widest.arithmetic.storage)
    filtered = {(f.name, f.step) for local in of_sample for f in local.filters}
    left = [direction for direction in possible if (direction.fault.name, direction.step) not in filtered]
    limit = Limits.of(1, observation.count, STATISTICS + len(possible), alpha).max
    results: list[FilterResult] = []
    for block in chain([observation.probe], map(observation.block, observation.rows)):
        for direction in tuple(left):
            effect = direction.on(observation.whole.segment if direction.fault.extent == ROWS else block.segment).effect
            if effect is None or not (block.judged & (effect != 0.0)).any():
                continue
            size = largest_element(effect, block.noise(widest))
            if is_projected or not is_gross(size, limit):
                return None
            results.append(gross_result(direction, size))
            left.remove(direction)
    return results


class _Filtered(NamedTuple):
    """The judgements with filters under the hypotheses with parents as captured, and what they are computed from."""

    judgements: tuple[LocalJudgement, ...]
    totals: Mapping[Hypothesis, BlockTotals]
    gross: GrossEffects


def _with_filters(observation: Observation, hypotheses: Sequence[Hypothesis], alpha: float) -> _Filtered:
    captured = as_captured(hypotheses)
    near = possible_directions(observation.probe.segment, hypotheses[0].arithmetic.storage)
    whole = (direction.on(observation.whole.segment) if direction.fault.extent == ROWS else direction for direction in near)
    directions = of_each_size(observation, list(whole), hypotheses[-1])
    widest = Limits.of(1, observation.count, STATISTICS + len(directions), alpha)
    gross = GrossEffects(observation, directions, widest.max, hypotheses[-1])
    totals = dict(zip(captured, block_totals(observation, gross, captured), strict=True))
    judgements = tuple(_local(observation, h, directions, of_blocks, alpha) for h, of_blocks in totals.items())
    return _Filtered(judgements, totals, gross)


def _of_every_element(
    observation: Observation,
    hypotheses: Sequence[Hypothesis],
    alpha: float,
    unexposed_layers: UnexposedLayers | None,
    known: Collection[str],
) -> tuple[LocalJudgement, ...]:
    """Return the judgement under each hypothesis that is needed, with explanations if the activation fails.

    Only hypotheses with parents as captured are needed if the activation passes under them: unrounded parents give a larger sigma,
    so it would pass with them as well.
    """
    judgements, totals, gross = _with_filters(observation, hypotheses, alpha)
    if all(local.passes for local in judgements):
        return judgements
    passed = {local.arithmetic for local in judgements if local.passes}
    unrounded = [hypothesis for hypothesis in still_needed(hypotheses, passed) if hypothesis not in totals]
    others = block_totals(observation, gross, unrounded) if unrounded else []
    totals = {**totals, **dict(zip(unrounded, others, strict=True))}
    return judge_whole(observation.in_memory, totals, alpha, gross, unexposed_layers, known)


def _local(
    observation: Observation, hypothesis: Hypothesis, directions: Sequence[Direction], found: BlockTotals, alpha: float
) -> LocalJudgement:
    rows = observation.independent_rows(hypothesis, found.hashes).size
    limits = limits_of(observation, hypothesis, found.hashes, len(found.effects), alpha)
    filters = (filter_result(directions[i], found.effects[i], limits) for i in sorted(found.effects))
    return replace(local_of(hypothesis, found, rows, limits), filters=tuple(f for f in filters if f))
