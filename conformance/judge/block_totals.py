"""Totals over the blocks of an activation: its error under each hypothesis, and the effect of each fault that is looked for.

A fault that is gross on a few rows (`filters.is_gross`) is detected without a filter; for most faults nothing else is computed. The
filters of the other faults are sums over blocks. Rows or numbers that repeat in several blocks share their noise; the resulting
variance is added at the end.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from operator import add

import numpy as np

from conformance.judge.effective_samples import Hashes, Repeats
from conformance.judge.evidence import FilterResult
from conformance.judge.fault_directions import Direction
from conformance.judge.filters import ProjectionSums, gross_result, is_gross, largest_element, projection_result
from conformance.judge.global_error import GlobalError
from conformance.judge.noise import Noise, of_segment
from conformance.judge.observation import SMALL, Observation
from conformance.judge.segment import Segment
from conformance.judge.sums import LocalSums
from conformance.judge.threads import on_all_cores
from conformance.numerics.arithmetic import Hypothesis
from conformance.numerics.formats import Array
from conformance.numerics.memo import cached_property
from conformance.numerics.thresholds import Limits


@dataclass(frozen=True)
class Effect:
    """The effect of a fault on an activation.

    Attributes:
        sums: the sums of its projection; empty if the fault is gross.
        size: its largest element, in sigma; 0 for a fault with a parameter, which is never gross.
    """

    sums: ProjectionSums
    size: float

    @classmethod
    def of(cls, direction: Direction, effect: Array, residual: Array, noise: Noise, largest: float) -> "Effect":
        """Return the effect of a fault on a block, given the change of the block by the fault; `largest` as for `GrossEffects`."""
        size = 0.0 if direction.parameter else largest_element(effect, noise)
        return cls(ProjectionSums() if is_gross(size, largest) else ProjectionSums.of(residual, effect, noise), size)

    def __add__(self, other: "Effect") -> "Effect":
        """Return the effect on the elements of both operands."""
        return Effect(self.sums + other.sums, max(self.size, other.size))


def filter_result(direction: Direction, effect: Effect, limits: Limits) -> FilterResult | None:
    """Return the result of one fault's filter; None if the fault changes no judged element."""
    if not direction.parameter and is_gross(effect.size, limits.max):
        return gross_result(direction, effect.size)
    projection = effect.sums.projection
    return None if projection is None else projection_result(direction, projection, limits.filter)


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


class GrossEffects:
    """The effects of the faults that are gross on the probe; a faulty step is evaluated once for all hypotheses of a call.

    On a small activation the faulty steps are kept for later calls; otherwise their memory is freed before the next is evaluated.

    Args:
        observation: the activation.
        directions: the faults that are looked for, on the probe; faults that couple the rows of the batch, on the whole
            activation.
        largest: upper limit of an element's error, in sigma; a fault that changes an element by twice as much is gross.
    """

    def __init__(self, observation: Observation, directions: Sequence[Direction], largest: float) -> None:
        """Bind the activation, the faults and the limit."""
        self._observation, self.largest = observation, largest
        self.directions = directions
        self._known: dict[Hypothesis, Mapping[int, Effect]] = {}
        self._on: tuple[Segment, list[Direction]] | None = None

    @cached_property
    def coupling(self) -> dict[int, Array | None]:
        """The change of the whole activation by each fault that couples the rows of the batch, by the fault's index."""
        return {i: direction.effect for i, direction in enumerate(self.directions) if direction.fault.couples_rows}

    def on(self, segment: Segment) -> list[Direction]:
        """Return the directions on a segment of the whole activation; the faulty steps are kept if it is asked for again."""
        if self._on is None or self._on[0] is not segment:
            self._on = segment, [direction.on(segment) for direction in self.directions]
        return self._on[1]

    def under(self, *hypotheses: Hypothesis) -> list[Mapping[int, Effect]]:
        """Return the effects under each hypothesis, by the fault's index."""
        if not self.directions:
            return [{} for _ in hypotheses]
        new = [hypothesis for hypothesis in hypotheses if hypothesis not in self._known]
        if new:
            self._known.update(zip(new, self._found([self._observation.probe.noise(h) for h in new]), strict=True))
        return [self._known[hypothesis] for hypothesis in hypotheses]

    def _found(self, noises: Sequence[Noise]) -> list[dict[int, Effect]]:
        is_small = self._observation.actual.size <= SMALL

        def sizes(direction: Direction) -> list[float]:
            couples_rows = direction.fault.couples_rows
            # A copy does not keep the effect.
            evaluated = direction if is_small or couples_rows else replace(direction)
            effect = None if direction.parameter else evaluated.effect
            if effect is None:
                return [0.0] * len(noises)
            on_probe = self._observation.on_probe(effect) if couples_rows else effect
            return [largest_element(on_probe, noise) for noise in noises]

        # Threads would spend more time on waiting for each other than on a small step.
        found = [sizes(direction) for direction in self.directions] if is_small else on_all_cores(sizes, self.directions)
        return [
            {i: Effect(ProjectionSums(), of[which]) for i, of in enumerate(found) if is_gross(of[which], self.largest)}
            for which in range(len(noises))
        ]


def block_totals(
    observation: Observation, gross_effects: GrossEffects, hypotheses: Sequence[Hypothesis], sigma: Array | None = None
) -> tuple[list[BlockTotals], GlobalError | None]:
    """Return the results under each hypothesis, and the global error if the accumulated sigma is given.

    Args:
        observation: the activation.
        gross_effects: the faults that are looked for, and the effects of gross ones.
        hypotheses: the hypotheses, for which each block is evaluated once.
        sigma: the rounding error accumulated since the token ids (`Observation.sigma`).
    """
    gross = gross_effects.under(*hypotheses)
    coupling = {} if len(observation.rows) == 1 else gross_effects.coupling
    of_block = partial(_totals_of_block, observation, gross_effects, hypotheses, gross, coupling, sigma)
    # A device computes one block after another, so that only one takes its memory.
    parts = [of_block(rows) for rows in observation.rows] if observation.on_device else on_all_cores(of_block, observation.rows)
    totals = [reduce(add, of_hypothesis) for of_hypothesis in zip(*(found for found, _ in parts), strict=True)]
    if len(observation.rows) > 1:
        totals = _with_repeats(observation, gross_effects, hypotheses, totals)
    totals = [replace(total, effects={**total.effects, **known}) for total, known in zip(totals, gross, strict=True)]
    global_errors = [global_error for _, global_error in parts if global_error]
    return totals, None if sigma is None else reduce(add, global_errors)


def _totals_of_block(
    observation: Observation,
    gross_effects: GrossEffects,
    hypotheses: Sequence[Hypothesis],
    gross: Sequence[Mapping[int, Effect]],
    coupling: Mapping[int, Array | None],
    sigma: Array | None,
    rows: slice,
) -> tuple[list[BlockTotals], GlobalError | None]:
    block, is_whole = observation.block(rows), len(observation.rows) == 1
    noises = [block.noise(h) if is_whole else of_segment(block.segment, h, block.judged, apart=True) for h in hypotheses]
    directions = gross_effects.on(block.segment) if is_whole else [d.on(block.segment) for d in gross_effects.directions]
    looked_for = {i: direction for i, direction in enumerate(directions) if not all(i in known for known in gross)}
    changes = {i: _cut(coupling[i], rows) if i in coupling else direction.effect for i, direction in looked_for.items()}
    hashes = block.segment.hashes(hypotheses[0].arithmetic.storage)
    totals = []
    for noise, known in zip(noises, gross, strict=True):
        effects = {
            i: Effect.of(looked_for[i], change, block.residual, noise, gross_effects.largest)
            for i, change in changes.items()
            if i not in known and change is not None
        }
        totals.append(BlockTotals(LocalSums.of(block.residual, noise, block.counted, block.first), effects, hashes))
    return totals, None if sigma is None else GlobalError.of(block, sigma)


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
    rows_repeat = Repeats.of(totals[0].hashes).share(observation.judged) < 1.0
    effects, across = [], []  # for each hypothesis: all effects, and the indices of those to be computed on the whole activation
    for hypothesis, total in zip(hypotheses, totals, strict=True):
        inputs_repeat = is_function and hypothesis.parents == "as captured"  # unrounded inputs are not known
        with_parameter = {i for i in total.effects if directions[i].parameter} if inputs_repeat else set()
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
    directions = {i: gross_effects.directions[i].on(whole.segment) for wanted in indices for i in wanted}
    for hypothesis, wanted in zip(hypotheses, indices, strict=True):
        noise = of_segment(whole.segment, hypothesis, whole.judged)
        yield {
            i: Effect.of(directions[i], directions[i].known_effect, whole.residual, noise, gross_effects.largest) for i in wanted
        }


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
