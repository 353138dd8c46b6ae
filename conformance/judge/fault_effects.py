"""Totals over the blocks of an activation: its error and the effects of faults; and which deviations of a parameter are filtered.

A fault that is gross on a few rows (`filters.is_gross`) is detected without a filter; for most faults nothing else is computed. The
filters of the others are sums over blocks. Rows or numbers that repeat in several blocks share their noise; the resulting variance
is added at the end.
"""

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import add

import numpy as np

from conformance.faults.fault import ROWS
from conformance.judge.evidence import FilterResult
from conformance.judge.fault_directions import Direction
from conformance.judge.filters import ProjectionSums, gross_result, is_gross, largest_element, project, projection_result
from conformance.judge.judged_elements import Hashes, repeats_of
from conformance.judge.noise import LocalSums, Noise, of_segment
from conformance.judge.observation import SMALL, Block, Observation
from conformance.judge.segment import ORACLE, Segment
from conformance.judge.threads import on_all_cores
from conformance.numerics.arithmetic import Hypothesis
from conformance.numerics.formats import Array
from conformance.numerics.thresholds import SEPARABLE_Z, Limits

SHARES = tuple(sys.float_info.epsilon ** (n / 32.0) for n in range(8, 0, -1))  # of a parameter's usual deviation


@dataclass(frozen=True)
class Effect:
    """The effect of a fault on an activation.

    Attributes:
        sums: the sums of its projection; empty if the fault is gross.
        size: its largest element, in sigma; 0 for a small deviation of a parameter, which is never gross.
        widest: of a small deviation, the sums under the widest hypothesis.
    """

    sums: ProjectionSums
    size: float
    widest: ProjectionSums = field(default_factory=ProjectionSums)

    def __add__(self, other: "Effect") -> "Effect":
        """Return the effect on the elements of both operands."""
        return Effect(self.sums + other.sums, max(self.size, other.size), self.widest + other.widest)


def filter_result(direction: Direction, effect: Effect, limits: Limits) -> FilterResult | None:
    """Return the result of one fault's filter; None if the fault changes no judged element."""
    if direction.share is None and is_gross(effect.size, limits.max):
        return gross_result(direction, effect.size)
    projection = effect.sums.projection
    return None if projection is None else projection_result(direction, projection, limits.filter, effect.widest.projection)


def of_each_size(observation: Observation, directions: Sequence[Direction], widest: Hypothesis) -> list[Direction]:
    """Return the faults as they usually are and, of each parameter, a small deviation.

    It is the smallest, on a scale from the usual deviation down to ε^(1/4) of it, that is separable under the widest hypothesis, so
    that what a pass confirms is not extrapolated. ε is that of float64: even if the usual deviation changes the result by only √ε
    of itself, the effect of the smallest exceeds the oracle's rounding errors by as much as it differs from the derivative. The
    effect of a small deviation is proportional to it: deviations are not tried whose effect would be too small.
    """
    if not any(direction.parameter for direction in directions):
        return list(directions)
    noise, storage = observation.probe.noise(widest), widest.arithmetic.storage
    rows = math.sqrt(observation.count / max(int(np.count_nonzero(noise.judged)), 1))
    # The oracle's rounding errors are in the residual and in the effect. In a float64 candidate's sigma they are not small, and
    # their product would be taken for an amplitude of the effect.
    least = max(SEPARABLE_Z, observation.count * (ORACLE.unit_roundoff / storage.unit_roundoff) ** 2)

    def sized(direction: Direction) -> list[Direction]:
        if direction.parameter is None:
            return [direction]
        slope = math.inf
        for share in () if direction.fault.extent == ROWS else SHARES:
            if slope * share >= least:
                small = replace(direction, share=share)
                found = None if small.effect is None else project(small.effect, small.effect, noise)
                slope = found.expected_z * rows / share if found else slope
                if found and slope * share >= least:
                    return [direction, small]
        return [replace(direction, share=1.0)]

    return [one for direction in directions for one in sized(direction)]


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
        directions: the faults that are looked for, of each size, on the probe; faults that couple the rows of the batch, on the
            whole activation.
        largest: upper limit of an element's error, in sigma; a fault that changes an element by twice as much is gross.
        widest: the hypothesis with the largest sigma, by which a failing step may still pass.
    """

    def __init__(
        self, observation: Observation, directions: Sequence[Direction], largest: float, widest: Hypothesis | None = None
    ) -> None:
        """Bind the activation, the faults, the limit and the hypothesis."""
        self._observation, self.largest, self._widest = observation, largest, widest
        self.directions = directions
        self._known: dict[Hypothesis, Mapping[int, Effect]] = {}
        self._on: tuple[Segment, list[Direction]] | None = None

    def _coupling(self) -> dict[int, Array | None]:
        """Return the change of the whole activation by each fault that couples the rows of the batch, by the fault's index."""
        return {i: direction.effect for i, direction in enumerate(self.directions) if direction.fault.extent == ROWS}

    def on_block(
        self, block: Block, residual: Array, changes: Mapping[int, Array], noises: Sequence[Noise], *, apart: bool = False
    ) -> list[dict[int, Effect]]:
        """Return the effects of faults on a block under several hypotheses, given the changes of the block by the faults.

        Args:
            block: the block.
            residual: the local residual.
            changes: the change of the block by each fault, by the fault's index.
            noises: the noise of the block under each hypothesis.
            apart: as for `Segment.projected`.
        """
        small = {i for i in changes if self.directions[i].share is not None}
        wide: dict[int, ProjectionSums] = {}
        if small and (h := self._widest):
            wide = {i: ProjectionSums.of(residual, changes[i], block.noise(h, apart=apart)) for i in small}

        def effect(index: int, change: Array, noise: Noise) -> Effect:
            size = 0.0 if index in small else largest_element(change, noise)
            sums = ProjectionSums() if is_gross(size, self.largest) else ProjectionSums.of(residual, change, noise)
            return Effect(sums, size, wide.get(index, ProjectionSums()))

        return [{i: effect(i, change, noise) for i, change in changes.items()} for noise in noises]

    def totals(self, hypotheses: Sequence[Hypothesis]) -> list[BlockTotals]:
        """Return the totals over the activation's blocks under each hypothesis; each block is evaluated once for all of them."""
        observation, gross = self._observation, self.under(*hypotheses)
        is_whole = len(observation.rows) == 1
        coupling = {} if is_whole else self._coupling()

        def of_block(rows: slice) -> list[BlockTotals]:
            block = observation.block(rows)
            segment = block.segment
            noises = [block.noise(hypothesis, apart=not is_whole) for hypothesis in hypotheses]
            directions = self.on(segment) if is_whole else [direction.on(segment) for direction in self.directions]
            changes: dict[int, Array] = {}
            for i, direction in enumerate(directions):
                if not all(i in known for known in gross):
                    change = _cut(coupling[i], rows) if i in coupling else direction.effect
                    changes |= {} if change is None else {i: change}
            effects = self.on_block(block, block.residual, changes, noises, apart=not is_whole)
            hashes = segment.hashes(hypotheses[0].arithmetic.storage)
            errors = (LocalSums.of(block.residual, noise, block.counted, block.first) for noise in noises)
            return [BlockTotals(of_errors, subtle, hashes) for of_errors, subtle in zip(errors, effects, strict=True)]

        # A device computes one block after another, so that only one takes its memory.
        parts = [of_block(rows) for rows in observation.rows] if observation.on_device else on_all_cores(of_block, observation.rows)
        totals = [reduce(add, of_hypothesis) for of_hypothesis in zip(*parts, strict=True)]
        totals = totals if is_whole else self._with_repeats(hypotheses, totals)
        return [replace(total, effects={**total.effects, **known}) for total, known in zip(totals, gross, strict=True)]

    def _with_repeats(self, hypotheses: Sequence[Hypothesis], totals: Sequence[BlockTotals]) -> list[BlockTotals]:
        """Return totals over several blocks with the noise that these share.

        Equal inputs of a function share their errors, if they are known, and equal rows do. To a filter of small deviations, the
        variance that equal inputs share is added; any other filter is evaluated anew, on the whole activation.
        """
        observation, is_function = self._observation, self._observation.probe.segment.is_function
        rows_repeat = repeats_of(totals[0].hashes).any_of(observation.judged)
        changes: dict[int, Array] = {}  # of the whole activation by faults
        found = []
        for hypothesis, total in zip(hypotheses, totals, strict=True):
            effects, inputs_repeat = dict(total.effects), is_function and hypothesis.parents == "as captured"
            small = [i for i in effects if self.directions[i].share is not None] if inputs_repeat else []
            effects |= {i: effects[i] + shared for i, shared in self._noise_of_equal_inputs(hypothesis, small)}
            subtle = [i for i, effect in effects.items() if not (i in small or is_gross(effect.size, self.largest))]
            if subtle and (inputs_repeat or rows_repeat):
                whole = observation.whole
                changes |= {i: self.directions[i].on(whole.segment).known_effect for i in subtle if i not in changes}
                noise = of_segment(whole.segment, hypothesis, whole.judged)
                effects |= self.on_block(whole, whole.residual, {i: changes[i] for i in subtle}, [noise])[0]
            found.append(replace(total, effects=effects))
        return found

    def _noise_of_equal_inputs(self, hypothesis: Hypothesis, indices: Sequence[int]) -> Iterator[tuple[int, Effect]]:
        """Yield (index, effect to add) for faults in an elementwise function: the variance of equal inputs, whose errors are equal.

        n equal inputs have one error e, so the variance of Σ w e over them is n² w² Var(e), of which n w² Var(e) has been counted.
        """
        if indices:
            observation = self._observation
            (parent,) = observation.activation.parents
            inputs, n = observation.repeated_inputs
            segment = Segment(observation.network, observation.name, {parent: inputs})
            noise = of_segment(segment, hypothesis, np.ones(inputs.shape, np.bool_), apart=True)
            for i in indices:
                effect = self.directions[i].on(segment).effect
                if effect is not None:
                    variance, _ = noise.projected(noise.precision * effect * np.sqrt(n * (n - 1.0)))
                    yield i, Effect(ProjectionSums(variance=variance), 0.0)

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
            couples_rows = direction.fault.extent == ROWS
            # A copy does not keep the effect.
            evaluated = direction if is_small or couples_rows else replace(direction)
            effect = None if direction.share is not None else evaluated.effect
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


def _cut(change: Array | None, rows: slice) -> Array | None:
    return None if change is None else change[rows]
