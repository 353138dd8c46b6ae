"""A diagnosis in progress: the correct network under each arithmetic, and what explains the outputs if it does not."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from conformance.diagnosis.black_box import BlackBox, BlackBoxSegment
from conformance.diagnosis.inputs import OtherInputs
from conformance.diagnosis.judgement import Agreement, JudgedForward
from conformance.diagnosis.problem import LEAST_RMS, NO_FAULTS, Filtered, PrintedProblem, PrintedTrial
from conformance.faults import CATALOGUE
from conformance.faults.fault import WHOLE_LAYER
from conformance.judge.filters import GROSS
from conformance.judge.search.fault_sets import Search
from conformance.judge.search.placements import FaultPlacement
from conformance.model.checkpoint import Checkpoint, rounded_weights
from conformance.numerics.arithmetic import Hypothesis, as_captured, hypotheses
from conformance.numerics.formats import FORMATS, Format, format_named
from conformance.numerics.memo import cached_property

BALLPARK = 4.0  # factor by which the estimate of a format's noise, before it is computed, may be wrong
COARSEST = FORMATS["bfloat16"]

Legal = Callable[[str], Sequence[Hypothesis]]  # the hypotheses for the name of a format, as `numerics.arithmetic.hypotheses`
_ORDER = {fault.name: i for i, fault in enumerate(CATALOGUE)}


@dataclass(frozen=True, eq=False)
class BlackBoxCase:
    """The outputs of a system, and what may have computed them.

    Attributes:
        checkpoint: the architecture and weights.
        network: the black box.
        dtype: name of the promised format.
        inputs: inputs that the system may have read instead of the batch.
        legal: the hypotheses for a format where the system runs.
    """

    checkpoint: Checkpoint
    network: BlackBox
    dtype: str
    inputs: Sequence[OtherInputs] = ()
    legal: Legal = hypotheses

    @cached_property
    def right(self) -> BlackBoxSegment:
        """The correct network."""
        return BlackBoxSegment(self.network, format_named(self.dtype))

    @cached_property
    def arithmetics(self) -> list[JudgedForward]:
        """The correct network under each arithmetic, the likeliest first."""
        judged = (JudgedForward(self.right, hypothesis).widened() for hypothesis in self.end_to_end(self.dtype))
        return sorted(judged, key=lambda forward: forward.best().nll)

    def end_to_end(self, dtype: str) -> list[Hypothesis]:
        """Return the hypotheses for a whole network, without fused arithmetic.

        Fused arithmetic is excluded because no kernel computes all steps of a network without storing results.
        """
        return [h for h in as_captured(self.legal(dtype)) if h.arithmetic.rounding != "fused"]

    def judged(self) -> "JudgedCase":
        """Return the judgement under the first arithmetic that the numbers fit, or else under the likeliest."""
        judgements = map(self._judged_under, self.arithmetics)
        likeliest = next(judgements)
        return likeliest if likeliest.good else next((judged for judged in judgements if judged.good), likeliest)

    def _judged_under(self, base: JudgedForward) -> "JudgedCase":
        agreements = [base.agreement(index) for index in self.network.right_poolings]
        problem = PrintedProblem(base)
        filters = {a.pooling_index: tuple(problem.filters(a.pooling_index)) for a in agreements if a.passes}
        good = tuple(index for index, of in filters.items() if all(f.effect is None for f in of))
        best = min((a for a in agreements if not good or a.pooling_index in good), key=lambda a: a.nll)
        return JudgedCase(self, base, best, good, filters.get(best.pooling_index, ()))

    def pooling(self, pooling_index: int) -> str:
        """Return the name of a pooling; empty if the network has none."""
        return self.network.poolings[pooling_index].name if self.network.poolings else ""


@dataclass(frozen=True, eq=False)
class JudgedCase:
    """The judgement of the correct network under one arithmetic, and the search for what explains a failure.

    Attributes:
        case: the outputs.
        base: the correct network under this arithmetic.
        best: the agreement under the likeliest of the good poolings, or of all if none is good.
        good: indices of the poolings under which the numbers conform.
        filters: the results of the filters under that pooling; none if the numbers do not pass.
    """

    case: BlackBoxCase
    base: JudgedForward
    best: Agreement
    good: tuple[int, ...] = ()
    filters: tuple[Filtered, ...] = ()

    @cached_property
    def problem(self) -> PrintedProblem:
        """The printed numbers, to be explained better than by the correct network, up to what filters detect."""
        patterns = [f.effect for f in self.filters if f.effect is not None]
        return PrintedProblem(self.base, patterns, self.best.nll)

    def trials(self, tried: Sequence[FaultPlacement]) -> list[PrintedTrial]:
        """Return the trials that explain the outputs and are likelier than the correct network."""
        others = [t for t in self._others() if t.explains and t.agreement.nll < self.best.nll]
        if any(not t.loose for t in others):
            return others
        rounding = [p for p in tried if p.fault.after_failure] if self._could_be(COARSEST) else []
        searched = [p for p in tried if p.fault.extent == WHOLE_LAYER or not p.fault.after_failure]
        return [*others, *Search(self.problem, searched, rounding).explaining()]

    def _others(self) -> Iterator[PrintedTrial]:
        """Yield the trials without a fault of the network: another pooling, a narrower format, or other inputs."""
        case, network = self.case, self.case.network
        promised = self.problem.storage
        narrower = [f for f in FORMATS.values() if f.unit_roundoff > promised.unit_roundoff and self._could_be(f, BALLPARK)]
        part = self.problem.part(()).right.network
        longest = _longest_row(network)
        for index in sorted(set(range(network.reading.shape[0])) - set(network.right_poolings)):
            agreement = self.base.agreement(index)
            yield PrintedTrial(NO_FAULTS, agreement.passes, agreement=agreement, dtype=case.dtype)
        for other in narrower:
            weights = rounded_weights(case.checkpoint, other.name, cache)
            yield from self._of_network(replace(network, weights=weights), replace(part, weights=weights), other)
        for inputs in case.inputs:
            read = replace(network, batch=inputs.batch)
            yield from self._of_network(read, read.of_rows(longest) if longest else None, promised, inputs)

    def _of_network(
        self, network: BlackBox, part: BlackBox | None, storage: Format, inputs: OtherInputs | None = None
    ) -> Iterator[PrintedTrial]:
        """Yield the trials of another network, in a narrower format or on other inputs; none if a part of it refutes it."""
        base, poolings = self.base, network.right_poolings
        hypothesis = base.hypothesis if inputs else self.case.end_to_end(storage.name)[0]
        if part is not None:
            alone = JudgedForward(BlackBoxSegment(part, storage), hypothesis, base)
            largest = (alone if inputs else alone.widened()).largest  # there may be hundreds of other inputs
            if all(largest[index] > GROSS * base.limits(index).max for index in poolings):
                return
        judged = JudgedForward(BlackBoxSegment(network, storage), hypothesis, base).widened()
        for agreement in map(judged.agreement, poolings):
            explains = agreement.passes and (inputs is not None or agreement.rms >= LEAST_RMS)
            yield PrintedTrial(NO_FAULTS, explains, loose=inputs is None, agreement=agreement, dtype=storage.name, inputs=inputs)

    def _could_be(self, other: Format, times: float = math.inf) -> bool:
        """Return whether the residual is no larger than a narrower format's rounding, and smaller by at most the factor `times`.

        The format's sigma is estimated as the network's, scaled by the ratio of the unit roundoffs.
        """
        base, network = self.base, self.case.network
        printing = np.minimum(network.reading.units**2 / 12.0, base.sigma**2)
        ratio = other.unit_roundoff / self.problem.storage.unit_roundoff
        wider = np.sqrt(printing + (base.sigma**2 - printing) * ratio**2)
        rms = np.sqrt(((base.residual / wider) ** 2).mean(1))[list(network.right_poolings)]
        return bool(((rms >= LEAST_RMS / times) & (rms <= BALLPARK * base.limits(0).rms)).any())

    def ranked(self, trials: Sequence[PrintedTrial]) -> list[tuple[PrintedTrial, bool]]:
        """Return the trials, which explain the numbers, in order, each with whether it is tied with the first.

        Trials that need a larger sigma come after the others; then trials are ordered by cost: the nll plus the evidence threshold
        for each fault, fitted number, other input, and pooling that was not asked for.
        Of the trials tied with the first, those with the fewest of these come first, then those with the widest reach, then the
        catalogue's order holds.
        """
        if not trials:
            return []
        evidence_threshold = self.base.limits(self.best.pooling_index).evidence_threshold

        def cost(t: PrintedTrial) -> float:
            is_other = t.agreement.pooling_index not in self.case.network.right_poolings
            return t.agreement.nll + evidence_threshold * (t.complexity + is_other)

        def is_tied(t: PrintedTrial) -> bool:
            return t.loose == first.loose and cost(t) - cost(first) < evidence_threshold and t.complexity <= first.complexity

        def simplest(t: PrintedTrial) -> tuple[int, int, list[int]]:
            placements = t.fit.placements
            return t.complexity, sum(p.reach for p in placements), [_ORDER[p.fault.name] for p in placements]

        ordered = sorted(trials, key=lambda t: (t.loose, cost(t)))
        first = ordered[0]
        tied = sorted(filter(is_tied, ordered), key=simplest)
        return [*((t, True) for t in tied), *((t, False) for t in ordered if not is_tied(t))]


def _longest_row(network: BlackBox) -> list[int]:
    """Return the longest row of the batch that was printed; empty if a number belongs to no row."""
    printed = np.unique(network.reading.rows)
    return [int(printed[network.batch.mask[printed].sum(1).argmax()])] if printed[0] >= 0 else []
