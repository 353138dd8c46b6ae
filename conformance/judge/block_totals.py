"""Totals over the blocks of an activation: its error under each hypothesis, and the effect of each fault that is looked for.

The filters of faults that are not gross (`fault_effects`) are sums over blocks. Rows or numbers that repeat in several blocks share
their noise; the resulting variance is added at the end.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from operator import add

import numpy as np

from conformance.judge.fault_directions import Direction
from conformance.judge.fault_effects import Effect, GrossEffects
from conformance.judge.filters import ProjectionSums, is_gross
from conformance.judge.judged_elements import Hashes, repeats_of
from conformance.judge.noise import LocalSums, of_segment
from conformance.judge.observation import Observation
from conformance.judge.segment import Segment
from conformance.judge.threads import on_all_cores
from conformance.numerics.arithmetic import Hypothesis
from conformance.numerics.formats import Array


@dataclass(frozen=True)
class BlockTotals:
    """The results for an activation, or for a block of it, under one hypothesis.

    Attributes:
        errors: sums of the local residual.
        effects: effects of the faults that change the activation, by the fault's index.
        hashes: hashes of the rows (`Segment.hashes`).
    """

    errors: LocalSums
    effects: Mapping[int, Effect]
    hashes: Hashes

    def __add__(self, other: "BlockTotals") -> "BlockTotals":
        """Return the results for the elements of both operands."""
        both = {i: self.effects[i] + other.effects[i] for i in self.effects.keys() & other.effects.keys()}
        hashes = np.concatenate([self.hashes, other.hashes])
        return BlockTotals(self.errors + other.errors, {**self.effects, **other.effects, **both}, hashes)


def block_totals(observation: Observation, gross_effects: GrossEffects, hypotheses: Sequence[Hypothesis]) -> list[BlockTotals]:
    """Return the results under each hypothesis.

    Args:
        observation: the activation.
        gross_effects: the faults that are looked for, and the effects of gross ones.
        hypotheses: the hypotheses, for which each block is evaluated once.
    """
    gross = gross_effects.under(*hypotheses)
    coupling = {} if len(observation.rows) == 1 else gross_effects.coupling
    of_block = partial(_totals_of_block, observation, gross_effects, hypotheses, gross, coupling)
    # A device computes one block after another, so that only one takes its memory.
    parts = [of_block(rows) for rows in observation.rows] if observation.on_device else on_all_cores(of_block, observation.rows)
    totals = [reduce(add, of_hypothesis) for of_hypothesis in zip(*parts, strict=True)]
    if len(observation.rows) > 1:
        totals = _with_repeats(observation, gross_effects, hypotheses, totals)
    return [replace(total, effects={**total.effects, **known}) for total, known in zip(totals, gross, strict=True)]


def _totals_of_block(
    observation: Observation,
    gross_effects: GrossEffects,
    hypotheses: Sequence[Hypothesis],
    gross: Sequence[Mapping[int, Effect]],
    coupling: Mapping[int, Array | None],
    rows: slice,
) -> list[BlockTotals]:
    block, is_whole = observation.block(rows), len(observation.rows) == 1
    noises = [block.noise(h) if is_whole else of_segment(block.segment, h, block.judged, apart=True) for h in hypotheses]
    directions = gross_effects.on(block.segment) if is_whole else [d.on(block.segment) for d in gross_effects.directions]
    looked_for = {i: direction for i, direction in enumerate(directions) if not all(i in known for known in gross)}
    effects = {i: _cut(coupling[i], rows) if i in coupling else direction.effect for i, direction in looked_for.items()}
    changes = {i: change for i, change in effects.items() if change is not None}
    found = gross_effects.on_block(block, block.residual, changes, noises, apart=not is_whole)
    hashes = block.segment.hashes(hypotheses[0].arithmetic.storage)
    errors = [LocalSums.of(block.residual, noise, block.counted, block.first) for noise in noises]
    return [BlockTotals(of_block, subtle, hashes) for of_block, subtle in zip(errors, found, strict=True)]


def _cut(change: Array | None, rows: slice) -> Array | None:
    return None if change is None else change[rows]


def _with_repeats(
    observation: Observation,
    gross_effects: GrossEffects,
    hypotheses: Sequence[Hypothesis],
    totals: Sequence[BlockTotals],
) -> list[BlockTotals]:
    """Return the results with the noise that is shared between blocks."""
    directions, is_function = gross_effects.directions, observation.probe.segment.is_function
    rows_repeat = repeats_of(totals[0].hashes).any_of(observation.judged)
    effects, across = [], []  # for each hypothesis: all effects, and the indices of those to be computed on the whole activation
    for hypothesis, total in zip(hypotheses, totals, strict=True):
        inputs_repeat = is_function and hypothesis.parents == "as captured"  # unrounded inputs are not known
        with_parameter = {i for i in total.effects if directions[i].share is not None} if inputs_repeat else set()
        shared = _noise_of_equal_inputs(observation, directions, hypothesis, with_parameter)
        effects.append({**total.effects, **{i: total.effects[i] + added for i, added in shared}})
        subtle = {i for i, effect in total.effects.items() if not is_gross(effect.size, gross_effects.largest)}
        across.append(subtle - with_parameter if inputs_repeat or rows_repeat else set())
    on_whole = _effects_on_whole(observation, gross_effects, hypotheses, across)
    found = zip(totals, effects, on_whole, strict=True)
    return [replace(total, effects={**of_blocks, **of_whole}) for total, of_blocks, of_whole in found]


def _effects_on_whole(
    observation: Observation, gross_effects: GrossEffects, hypotheses: Sequence[Hypothesis], indices: Sequence[Collection[int]]
) -> Iterator[dict[int, Effect]]:
    """Yield the effects of faults on the whole activation; `indices` has those that are needed under each hypothesis."""
    if not any(indices):
        yield from ({} for _ in hypotheses)
        return
    whole = observation.whole
    changes = {i: gross_effects.directions[i].on(whole.segment).known_effect for wanted in indices for i in wanted}
    for hypothesis, wanted in zip(hypotheses, indices, strict=True):
        noise = of_segment(whole.segment, hypothesis, whole.judged)
        yield from gross_effects.on_block(whole, whole.residual, {i: changes[i] for i in wanted}, [noise])


def _noise_of_equal_inputs(
    observation: Observation, directions: Sequence[Direction], hypothesis: Hypothesis, indices: Collection[int]
) -> Iterator[tuple[int, Effect]]:
    """Yield (index, effect to add) for faults in an elementwise function: the variance of equal inputs, which have equal errors.

    n equal inputs have one error e, so the variance of Σ w e over them is n² w² Var(e), of which n w² Var(e) has been counted.
    """
    if indices:
        (parent,) = observation.activation.parents
        inputs, n = observation.repeated_inputs
        segment = Segment(observation.network, observation.name, {parent: inputs})
        noise = of_segment(segment, hypothesis, np.ones(inputs.shape, np.bool_), apart=True)
        for i in indices:
            effect = directions[i].on(segment).effect
            if effect is not None:
                variance, _ = noise.projected(noise.precision * effect * np.sqrt(n * (n - 1.0)))
                yield i, Effect(ProjectionSums(variance=variance), 0.0)
