"""A diagnosis in progress: the correct network with its noise, the sets of faults that have been judged, and their order."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from conformance.diagnosis.black_box import BlackBox, BlackBoxSegment, Output
from conformance.diagnosis.detectability import PoolingDetectability, filtered_placements
from conformance.diagnosis.input_mistakes import OtherInputs
from conformance.diagnosis.judgement import Agreement, JudgedForward, allowed
from conformance.diagnosis.printed_problem import LEAST_RMS, PROMISING, Criteria, PrintedProblem, PrintedTrial
from conformance.faults import CATALOGUE
from conformance.faults.fault import WHOLE_LAYER
from conformance.judge.filters import GROSS
from conformance.judge.search.budget import ELSE, SearchBudget
from conformance.judge.search.fault_sets import RENOISED, Search
from conformance.judge.search.placements import FaultPlacement, placements
from conformance.judge.search.problem import FittedFaults
from conformance.model.checkpoint import Checkpoint, LazyWeights
from conformance.numerics.arithmetic import Hypothesis, as_captured, hypotheses
from conformance.numerics.formats import FORMATS, Array, Format, format_named
from conformance.numerics.thresholds import Limits

PARTIAL = 2  # number of sets that are reported for each number of faults if none explains the outputs
BALLPARK = 4.0  # factor by which the estimate of a format's noise, before it is computed, may be wrong
COARSEST = FORMATS["bfloat16"]

Legal = Callable[[str], Sequence[Hypothesis]]  # the hypotheses for the name of a format, as `numerics.arithmetic.hypotheses`


class BlackBoxCase:
    """A diagnosis in progress.

    Attributes:
        right: the correct network.
        placements: all placements of faults.
        filters: the placements for which filters are evaluated.
        pooling_indices: indices of the poolings that are asked for.
        arithmetics: the correct network under each arithmetic, the likeliest first.
        base: the network under the arithmetic that is taken for the system's.
        problem: the printed numbers with the sigma of `base`.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        network: BlackBox,
        dtype: str,
        asked: str | None,
        budget: SearchBudget,
        inputs: Sequence[OtherInputs] = (),
        legal: Legal = hypotheses,
    ) -> None:
        """Evaluate the correct network.

        Args:
            checkpoint: the architecture and weights.
            network: the black box.
            dtype: name of the promised format.
            asked: the pooling that is asked for, which is then the network's first; None if any is possible.
            budget: the budget of the search.
            inputs: inputs that the system may have read instead of the batch.
            legal: the hypotheses for a format where the system runs.
        """
        self.budget, self.inputs, self._asked, self._legal = budget, inputs, asked, legal
        self.checkpoint, self.network, self.dtype = checkpoint, network, dtype
        self.storage = format_named(dtype)
        self.right = BlackBoxSegment(network, self.storage)
        self.placements = placements(self.right)
        self.filters = filtered_placements(self.placements)
        last = sum(p.is_cut_last for p in network.poolings)  # that is a mistake, unless it is asked for
        self.pooling_indices = range(network.reading.pooling_count - last) if asked is None else range(1)
        self.arithmetics = sorted((self._widened(JudgedForward(self.right, h)) for h in self._end_to_end(dtype)), key=self.nll)
        self.use(self.arithmetics[0])

    def _end_to_end(self, dtype: str) -> list[Hypothesis]:
        """Return the hypotheses for a whole network, without fused arithmetic.

        Fused arithmetic is excluded because no kernel computes all steps of a network without storing results.
        """
        return [h for h in as_captured(self._legal(dtype)) if h.arithmetic.rounding != "fused"]

    def _widened(self, judged: JudgedForward) -> JudgedForward:
        """Return a copy with the correlation of errors of different tokens, under each pooling that could be the correct one."""
        agreements = [
            judged.agreement(pooling_index, judged.independent) for pooling_index in range(self.network.reading.pooling_count)
        ]
        best = min(a.rms for a in agreements)
        return judged.correlated(a.pooling_index for a in agreements if a.rms <= PROMISING * best)

    def nll(self, judged: JudgedForward) -> float:
        """Return the negative log-likelihood under the likeliest of the poolings that are asked for, in nats."""
        return min(judged.agreement(pooling_index, judged.independent).nll for pooling_index in self.pooling_indices)

    def of_outputs(self, outputs: tuple[Output, ...]) -> "BlackBoxCase":
        """Return a diagnosis of other outputs of the same system."""
        network = replace(self.network, outputs=outputs)
        return BlackBoxCase(self.checkpoint, network, self.dtype, self._asked, self.budget, legal=self._legal)

    def use(self, base: JudgedForward) -> None:
        """Take an arithmetic for the system's."""
        self.base = base
        self.problem = self._problem(Criteria(base, self._tests, self.dtype, self.budget))

    def _problem(self, criteria: Criteria) -> PrintedProblem:
        return PrintedProblem(self.right, criteria.base.sigma, criteria)

    @property
    def _tests(self) -> int:
        """The number of statistics that share the false-alarm probability: RMS, largest error and each filter."""
        return 2 + len(self.filters)

    def limits(self, pooling_index: int) -> Limits:
        """Return the limits if RMS, largest error and each filter share the false-alarm probability."""
        return self.base.limits(pooling_index, self._tests)

    def part(self) -> PrintedProblem:
        """Return the problem on the part of the batch where the correct network leaves the largest residual."""
        return self.problem.part(())

    def pooling(self, pooling_index: int) -> str:
        """Return the name of a pooling; empty if the network has none."""
        return self.network.poolings[pooling_index].name if self.network.poolings else ""

    def trials_to_report(self, best: Agreement, look: PoolingDetectability, tried: Sequence[FaultPlacement]) -> list[PrintedTrial]:
        """Return the trials that explain the outputs and are likelier than the correct network, or else the nearest trials."""
        criteria = Criteria(self.base, self._tests, self.dtype, self.budget, [pattern for _, pattern in look.detected], best.nll)
        self.problem = self._problem(criteria)
        others = [t for t in self._others(self.part()) if t.explains and t.agreement.nll < best.nll]
        if any(not t.loose for t in others):
            return others
        rounding = [p for p in tried if p.fault.after_failure] if self._could_be(COARSEST) else []
        searched = [p for p in tried if p.fault.extent == WHOLE_LAYER or not p.fault.after_failure]
        found = Search(self.problem, searched, rounding, self.budget).result()
        if others or found.explaining:
            return [*others, *found.explaining]
        nearest = [t for fits in found.nearest for t in self._nearest(fits) if self.problem.is_determined(t.fit)]
        return [t for t in nearest if t.explains] or nearest

    def _nearest(self, fits: Sequence[FittedFaults]) -> list[PrintedTrial]:
        """Return the sets that leave the smallest residual on the whole batch, to be reported if nothing explains the outputs."""
        if self.budget.is_spent():
            return [self.problem.judge(self.problem.fit_on_whole(fit), own=False) for fit in fits[:1]]
        nearest = sorted((self.problem.fit_on_whole(fit) for fit in fits), key=lambda fit: fit.distance)
        return [self.problem.judge(fit, own=number < RENOISED) for number, fit in enumerate(nearest[:PARTIAL])]

    def _others(self, part: PrintedProblem) -> Iterator[PrintedTrial]:
        """Yield the trials without a fault of the network: another pooling, a narrower format, or other inputs."""
        other_indices = set(range(self.network.reading.pooling_count)) - set(self.pooling_indices)
        narrower = [f for f in FORMATS.values() if f.unit_roundoff > self.storage.unit_roundoff and self._could_be(f, BALLPARK)]
        self.budget.begin(ELSE, len(other_indices) + len(narrower) + len(self.inputs))
        for pooling_index in other_indices:
            if not self.budget.take_one():
                return
            agreement = self.base.agreement(pooling_index, self.base.independent)
            only = np.full(self.network.reading.pooling_count, np.inf)
            only[pooling_index] = self.problem.none.squares[pooling_index]
            explains = allowed(agreement, self.limits(pooling_index))
            yield PrintedTrial(FittedFaults((), only), explains, agreement=agreement, dtype=self.dtype)
        for other in narrower:
            if not self.budget.take_one():
                return
            weights = LazyWeights(self.checkpoint.weights, _rounded(self.checkpoint, other))
            hypothesis = self._end_to_end(other.name)[0]
            some = self._widened(JudgedForward(BlackBoxSegment(replace(part.right.network, weights=weights), other), hypothesis))
            if all(some.largest[pooling_index] > GROSS * self.limits(pooling_index).max for pooling_index in self.pooling_indices):
                continue
            forward = BlackBoxSegment(replace(self.network, weights=weights), other)
            judged = self._widened(JudgedForward(forward, hypothesis))
            for pooling_index in self.pooling_indices:
                agreement = judged.agreement(pooling_index, self.base.independent)
                explains = allowed(agreement, self.limits(pooling_index)) and agreement.rms >= LEAST_RMS
                fit = FittedFaults((), self._squares(forward))
                yield PrintedTrial(fit, explains, loose=True, agreement=agreement, dtype=other.name)

        for inputs in self.inputs:
            if not self.budget.take_one():
                return
            yield from self._of_inputs(inputs)

    def _of_inputs(self, inputs: OtherInputs) -> Iterator[PrintedTrial]:
        """Yield the trials of the correct network on other inputs; none if the longest row that was printed refutes them."""
        network = replace(self.network, batch=inputs.batch)
        limits = [self.limits(pooling_index) for pooling_index in self.pooling_indices]
        printed = np.unique(self.network.reading.rows)
        if printed[0] >= 0:  # every number belongs to a row
            longest = printed[self.network.batch.mask[printed].sum(1).argmax()]
            alone = JudgedForward(BlackBoxSegment(network.of_rows([int(longest)]), self.storage), self.base.hypothesis)
            if all(alone.largest[i] > GROSS * limit.max for i, limit in zip(self.pooling_indices, limits, strict=True)):
                return
        forward = BlackBoxSegment(network, self.storage)
        judged = self._widened(JudgedForward(forward, self.base.hypothesis))
        for pooling_index, limit in zip(self.pooling_indices, limits, strict=True):
            agreement = judged.agreement(pooling_index, self.base.independent)
            fit, explains = FittedFaults((), self._squares(forward)), allowed(agreement, limit)
            yield PrintedTrial(fit, explains, agreement=agreement, dtype=self.dtype, inputs=inputs)

    def _squares(self, forward: BlackBoxSegment) -> Array:
        """Return Σ r²/σ² of another network under each pooling, (P,), by the correct network's sigma."""
        with np.errstate(all="ignore"):
            found = np.square((self.network.reading.actual - forward.value) / self.base.sigma).sum(1)
        return np.where(np.isfinite(found), found, np.inf)

    def _could_be(self, other: Format, times: float = math.inf) -> bool:
        """Return whether the residual is no larger than a narrower format's rounding, and smaller by at most the factor `times`.

        The format's sigma is estimated as the network's, scaled by the ratio of the unit roundoffs.
        """
        printing = np.minimum(self.network.reading.units**2 / 12.0, self.base.sigma**2)
        wider = np.sqrt(printing + (self.base.sigma**2 - printing) * (other.unit_roundoff / self.storage.unit_roundoff) ** 2)
        rms = np.sqrt(((self.base.residual / wider) ** 2).mean(1))[list(self.pooling_indices)]
        return bool(((rms >= LEAST_RMS / times) & (rms <= BALLPARK * self.limits(0).rms)).any())


def _rounded(checkpoint: Checkpoint, storage: Format) -> Callable[[str], Array]:
    """Return a function that returns a weight by name, rounded to the format; each weight is rounded once."""
    return cache(lambda name: storage.round(checkpoint.weights[name]))


_ORDER = {fault.name: i for i, fault in enumerate(CATALOGUE)}


def ranked_trials(case: BlackBoxCase, trials: Sequence[PrintedTrial], best: Agreement) -> list[tuple[PrintedTrial, bool]]:
    """Return the trials in order, each with whether it is tied with the first.

    Trials that explain the numbers come first, those that need a larger sigma after the others; then trials are ordered by cost:
    the nll plus the evidence threshold for each fault, fitted number, other input, and pooling that was not asked for. Of the
    trials tied with the first, those with the fewest of these come first, then those with the widest reach, then the
    catalogue's order holds.
    """
    if not trials:
        return []
    evidence_threshold = case.limits(best.pooling_index).evidence_threshold

    def cost(t: PrintedTrial) -> float:
        """Return the nll plus the evidence threshold for each of these."""
        return t.agreement.nll + evidence_threshold * (t.complexity + (t.agreement.pooling_index not in case.pooling_indices))

    ordered = sorted(trials, key=lambda t: (not t.explains, t.loose, cost(t)))
    first = ordered[0]
    tied = [
        t
        for t in ordered
        if first.explains
        and (t.explains, t.loose) == (True, first.loose)
        and cost(t) - cost(first) < evidence_threshold
        and t.complexity <= first.complexity
    ]
    tied.sort(key=lambda t: (t.complexity, sum(s.reach for s in t.fit.placements), _catalogued(t.fit)))
    return [*((t, True) for t in tied), *((t, False) for t in ordered if t not in tied)]


def _catalogued(fit: FittedFaults) -> list[int]:
    return [_ORDER[s.fault.name] for s in fit.placements]
