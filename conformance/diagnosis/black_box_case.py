"""A diagnosis in progress: the correct network with its noise, and the sets of faults that have been judged."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from conformance.diagnosis.black_box import BlackBox
from conformance.diagnosis.detectability import Detectability, filters
from conformance.diagnosis.fitting import Fit, Problem, fitted
from conformance.diagnosis.input_mistakes import OtherInputs
from conformance.diagnosis.judgement import Agreement, JudgedForward, allowed
from conformance.diagnosis.placements import FaultPlacement, Forward, placements
from conformance.diagnosis.search import beam_of, more, one, rounded, rows_to_search, simpler
from conformance.diagnosis.search_budget import ELSE, FAULTS, SearchBudget
from conformance.judge.filters import GROSS, project
from conformance.judge.thresholds import Limits
from conformance.model.checkpoint import Checkpoint, LazyWeights
from conformance.numerics.arithmetic import Hypothesis, as_captured, hypotheses
from conformance.numerics.formats import FORMATS, Array, Format, format_named

AT_ONCE = 3  # largest number of faults in a set; each further one costs another step of the beam search
# How many of the nearest sets, and of the faults that round, are judged by their own sigma, which costs several passes.
RENOISED = 2
# Multiple of the limit of the RMS on the whole batch beyond which no more accurate parameters bring a set below the limit.
PROMISING = 8.0
# A set that exceeds an explanation's distance on a part of the batch by this multiple of the evidence threshold (distances are
# twice the negative log-likelihood) cannot be tied with the explanation.
TIES = 8.0
VERIFIED = 16  # number of sets that are judged on the whole batch, for each number of faults
PARTIAL = 2  # number of sets that are reported for each number of faults if none explains the outputs
BALLPARK = 4.0  # factor by which the estimate of a format's noise, before it is computed, may be wrong
COARSEST = FORMATS["bfloat16"]
# The RMS of correct runs is 0.3 to 2 sigma; an error with a smaller RMS is not explained by another format's noise.
LEAST_RMS = 0.3
WIDER = 2.0  # multiple of the correct network's sigma beyond which an explanation consists mostly of noise


@dataclass(frozen=True, eq=False)
class Trial:
    """A judged set of faults, or another hypothesis about the system.

    Attributes:
        fit: the faults with their parameters.
        agreement: the agreement of the numbers with the network that has these faults.
        explains: whether the outputs pass.
        dtype: name of the format in which the network is computed.
        loose: whether the outputs pass only because of a much larger sigma.
        inputs: the inputs that were read instead of the batch; None for the batch.
    """

    fit: Fit
    agreement: Agreement
    explains: bool
    dtype: str
    loose: bool = False
    inputs: OtherInputs | None = None

    @property
    def complexity(self) -> int:
        """The number of faults, free parameters and other inputs."""
        return len(self.fit.placements) + numbers(self.fit) + (self.inputs is not None)


Legal = Callable[[str], Sequence[Hypothesis]]  # the hypotheses for the name of a format, as `numerics.arithmetic.hypotheses`


class BlackBoxCase:
    """A diagnosis in progress.

    Attributes:
        right: the correct network.
        placements: all placements of faults.
        filters: the placements for which filters are evaluated.
        lanes: indices of the poolings that are asked for.
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
        self.budget, self.inputs, self._legal = budget, inputs, legal
        self.checkpoint, self.network, self.dtype = checkpoint, network, dtype
        self.storage = format_named(dtype)
        self.right = Forward(network, self.storage)
        self.placements = placements(self.right)
        self.filters = filters(self.placements)
        self.lanes = range(network.reading.lanes) if asked is None else range(1)
        self.arithmetics = sorted((self._widened(JudgedForward(self.right, h)) for h in self._end_to_end(dtype)), key=self.nll)
        self.use(self.arithmetics[0])

    def _end_to_end(self, dtype: str) -> list[Hypothesis]:
        """Return the hypotheses for a whole network, without fused arithmetic.

        Fused arithmetic is excluded because no kernel computes all steps of a network without storing results.
        """
        return [h for h in as_captured(self._legal(dtype)) if h.arithmetic.rounding != "fused"]

    def _widened(self, judged: JudgedForward) -> JudgedForward:
        """Return a copy with the correlation of errors of different tokens, under each pooling that could be the correct one."""
        agreements = [judged.agreement(pooling_index, judged.independent) for pooling_index in range(self.network.reading.lanes)]
        best = min(a.rms for a in agreements)
        return judged.correlated(a.pooling_index for a in agreements if a.rms <= PROMISING * best)

    def nll(self, judged: JudgedForward) -> float:
        """Return the negative log-likelihood under the likeliest of the poolings that are asked for, in nats."""
        return min(judged.agreement(pooling_index, judged.independent).nll for pooling_index in self.lanes)

    def use(self, base: JudgedForward) -> None:
        """Take an arithmetic for the system's."""
        self.base, self.problem = base, Problem(self.right, base.sigma)

    def limits(self, pooling_index: int) -> Limits:
        """Return the limits if RMS, largest error and each filter share the false-alarm probability."""
        return self.base.limits(pooling_index, 2 + len(self.filters))

    def part(self, placements: Sequence[FaultPlacement] = ()) -> Problem:
        """Return the problem on the part of the batch where the network with these faults leaves the largest residual."""
        rows = rows_to_search(self.problem, placements)
        if len(rows) == self.network.batch.size:
            return self.problem
        kept = np.isin(self.network.reading.rows, rows)
        return Problem(Forward(self.network.of_rows(rows), self.storage), self.base.sigma[:, kept])

    def pooling(self, pooling_index: int) -> str:
        """Return the name of a pooling; empty if the network has none."""
        return self.network.poolings[pooling_index].name if self.network.poolings else ""

    def explained(self, best: Agreement, look: Detectability) -> list[Trial]:
        """Return the trials that explain the outputs and are likelier than the correct network, or else the nearest trials.

        Args:
            best: the agreement with the correct network.
            look: the results of the filters.
        """

        def explaining(trials: Iterable[Trial]) -> list[Trial]:
            return [t for t in trials if t.explains and t.agreement.nll < best.nll]

        part = self.part()
        found = explaining(self._others(part))
        if any(not t.loose for t in found):
            return found
        sets: list[list[Fit]] = []
        fits: list[Fit] = []
        for count in range(AT_ONCE):
            self.budget.begin(FAULTS[count], 0)
            if self.budget.is_spent():
                break
            part = self.part(fits[0].placements) if fits else part
            explained = list[Trial]()
            if count:
                fits, explained = self._followed(beam_of(fits), part, count, explaining, look.called)
            else:
                fits = one(part, self.placements, self.budget)
                explained = explaining(self._verified(fits, part, count, look.called))
            sets.append(fits[:VERIFIED])
            if not count and self._could_be(COARSEST) and not explained:
                sets.append(rounded(part, self.placements, self.budget)[:RENOISED])
                late = (self._tested(fit, part, look.called, own=True) for fit in sets[-1])
                explained = explaining(trial for trial in late if trial)
            if explained and numbers(explained[0].fit):
                known = {frozenset(s.key for s in t.fit.placements) for t in explained}
                others = simpler(part, explained[0].fit, self.placements)[:RENOISED]
                fresh = [f for f in others if frozenset(s.key for s in f.placements) not in known]
                explained += explaining(self._verified(fresh, part, count, look.called))
            found += explained
            fits = fits if count else self._following(part, fits)
            if any(not t.loose for t in found) or (found and count) or not fits:
                break
        nearest = [] if found else [t for some in sets for t in self._nearest(some, look.called)]
        return found or explaining(nearest) or [replace(t, explains=False) for t in nearest]

    def _following(self, part: Problem, fits: Sequence[Fit]) -> list[Fit]:
        """Return the single faults that are extended by other faults.

        Of n faults with orthogonal effects the largest accounts for at least a share 1/n of the distance. If effects do not add up,
        every fault that reduces the distance is extended.
        """
        most = float(part.squares(part.right).min()) * (1.0 - 1.0 / AT_ONCE if part.is_linear else 1.0)
        return [fit for fit in fits if fit.distance <= most]

    def _followed(
        self,
        beam: Sequence[Fit],
        part: Problem,
        count: int,
        explaining: Callable[[Iterable[Trial]], list[Trial]],
        patterns: Sequence[tuple[str, Array]],
    ) -> tuple[list[Fit], list[Trial]]:
        """Return the sets with one more fault, nearest first, and the trials that explain the outputs.

        First the nearest set of the beam is extended, then the others. If an extension of the nearest set explains the outputs,
        another set is extended only if its extensions could be tied with that explanation. Two tied sets print numbers within √T of
        each other, where T is the evidence that distinguishes sets, in squares of sigma, so without the last fault the other set is
        farther than the nearest by at most √T.
        """
        fits, explained, (first, *others) = list[Fit](), list[Trial](), beam
        room = TIES * self.limits(first.pooling_index).evidence_threshold
        for members in ([first], others):
            if explained:
                members = [m for m in members if math.sqrt(m.distance) <= math.sqrt(first.distance) + math.sqrt(room)]
            if members and not self.budget.is_spent():
                added = more(part, members, self.placements, self.budget)
                explained += explaining(self._verified(added, part, count, patterns))
                fits += added
        return sorted(fits, key=lambda f: f.distance), explained

    def _verified(self, fits: Sequence[Fit], part: Problem, count: int, patterns: Sequence[tuple[str, Array]]) -> Iterator[Trial]:
        """Yield the nearest sets, judged on the whole batch.

        Once a set explains the outputs, only sets that may be tied with it are still judged.
        """
        explained = math.inf
        self.budget.begin(f"verifying {FAULTS[count]}", len(fits[:VERIFIED]))
        for number, fit in enumerate(fits[:VERIFIED]):
            if fit.distance > explained or not self.budget.take_one():
                return
            trial = self._tested(fit, part, patterns, own=number < RENOISED)
            if trial is not None:
                if trial.explains and not trial.loose:
                    explained = min(explained, fit.distance + TIES * self.limits(fit.pooling_index).evidence_threshold)
                yield trial

    def _nearest(self, fits: Sequence[Fit], patterns: Sequence[tuple[str, Array]]) -> list[Trial]:
        """Return the sets that leave the smallest residual on the whole batch, to be reported if nothing explains the outputs."""
        if self.budget.is_spent():
            return [self._judged(self._settled(fit), patterns, own=False) for fit in fits[:1]]
        settled = [self._settled(fit) for fit in fits]
        order = sorted(range(len(settled)), key=lambda number: settled[number].distance)
        return [self._judged(settled[number], patterns, own=number < RENOISED) for number in order[:PARTIAL]]

    def _tested(self, fit: Fit, part: Problem, patterns: Sequence[tuple[str, Array]], *, own: bool) -> Trial | None:
        """Return the set judged on the whole batch; None if a part of the batch refutes it."""
        near = self._unrefuted(fit, part, own=own)
        return None if near is None else self._judged(self._settled(near), patterns, own=own)

    def _unrefuted(self, fit: Fit, part: Problem, *, own: bool) -> Fit | None:
        """Return the set with its parameters fitted again on a part of the batch; None if the part refutes it for the whole batch.

        Σ r²/σ² and the largest error of the whole batch are at least those of a part. Parameters fitted to the whole batch, and the
        set's own sigma, change errors by only a few sigma, so an error of `GROSS` times the limit remains beyond it.
        """
        limits = self.limits(fit.pooling_index)
        if fit.distance > (PROMISING * limits.rms) ** 2 * len(self.problem.actual):
            return fit if own and self._own_could(fit, part) else None
        fit = fitted(part, fit)
        largest = JudgedForward(part.forward(fit.placements) or part.right, self.base.hypothesis, part.sigma).largest.min()
        if largest <= limits.max * (GROSS if numbers(fit) else 1.0) or (own and self._own_could(fit, part)):
            return fit
        return None

    def _own_could(self, fit: Fit, part: Problem) -> bool:
        """Return whether the errors on a part of the batch are not gross by the set's own sigma."""
        judged, most = (
            JudgedForward(part.forward(fit.placements) or part.right, self.base.hypothesis),
            GROSS * self.limits(fit.pooling_index).max,
        )
        if judged.largest[fit.pooling_index] > most * math.sqrt(self.network.batch.length):  # sigma is widened by at most √S
            return False
        return bool(judged.correlated([fit.pooling_index]).largest[fit.pooling_index] <= most)

    def _others(self, part: Problem) -> Iterator[Trial]:
        """Yield the trials without a fault of the network: another pooling, a narrower format, or other inputs."""
        lanes = set(range(self.network.reading.lanes)) - set(self.lanes)
        narrower = [f for f in FORMATS.values() if f.unit_roundoff > self.storage.unit_roundoff and self._could_be(f, BALLPARK)]
        self.budget.begin(ELSE, len(lanes) + len(narrower) + len(self.inputs))
        for pooling_index in lanes:
            if not self.budget.take_one():
                return
            agreement = self.base.agreement(pooling_index, self.base.independent)
            only = np.full(self.network.reading.lanes, np.inf)
            only[pooling_index] = self.problem.squares(self.right)[pooling_index]
            yield Trial(Fit((), only), agreement, allowed(agreement, self.limits(pooling_index)), self.dtype)
        for other in narrower:
            if not self.budget.take_one():
                return
            weights = LazyWeights(self.checkpoint.weights, _rounded(self.checkpoint, other))
            hypothesis = self._end_to_end(other.name)[0]
            some = self._widened(JudgedForward(Forward(replace(part.right.network, weights=weights), other), hypothesis))
            if all(some.largest[pooling_index] > GROSS * self.limits(pooling_index).max for pooling_index in self.lanes):
                continue
            forward = Forward(replace(self.network, weights=weights), other)
            judged = self._widened(JudgedForward(forward, hypothesis))
            for pooling_index in self.lanes:
                agreement = judged.agreement(pooling_index, self.base.independent)
                explains = allowed(agreement, self.limits(pooling_index)) and agreement.rms >= LEAST_RMS
                yield Trial(Fit((), self.problem.squares(forward)), agreement, explains, other.name, loose=True)

        for inputs in self.inputs:
            if not self.budget.take_one():
                return
            yield from self._of_inputs(inputs)

    def _of_inputs(self, inputs: OtherInputs) -> Iterator[Trial]:
        """Yield the trials of the correct network on other inputs; none if the longest row that was printed refutes them."""
        network = replace(self.network, batch=inputs.batch)
        limits = [self.limits(pooling_index) for pooling_index in self.lanes]
        printed = np.unique(self.network.reading.rows)
        if printed[0] >= 0:  # every number belongs to a row
            longest = printed[self.network.batch.mask[printed].sum(1).argmax()]
            alone = JudgedForward(Forward(network.of_rows([int(longest)]), self.storage), self.base.hypothesis)
            if all(alone.largest[i] > GROSS * limit.max for i, limit in zip(self.lanes, limits, strict=True)):
                return
        forward = Forward(network, self.storage)
        judged = self._widened(JudgedForward(forward, self.base.hypothesis))
        for pooling_index, limit in zip(self.lanes, limits, strict=True):
            agreement = judged.agreement(pooling_index, self.base.independent)
            yield Trial(Fit((), self.problem.squares(forward)), agreement, allowed(agreement, limit), self.dtype, inputs=inputs)

    def _could_be(self, other: Format, times: float = math.inf) -> bool:
        """Return whether the residual is no larger than a narrower format's rounding, and smaller by at most the factor `times`.

        The format's sigma is estimated as the network's, scaled by the ratio of the unit roundoffs.
        """
        printing = np.minimum(self.network.reading.units**2 / 12.0, self.base.sigma**2)
        wider = np.sqrt(printing + (self.base.sigma**2 - printing) * (other.unit_roundoff / self.storage.unit_roundoff) ** 2)
        rms = np.sqrt(((self.base.residual / wider) ** 2).mean(1))[list(self.lanes)]
        return bool(((rms >= LEAST_RMS / times) & (rms <= BALLPARK * self.limits(0).rms)).any())

    def _settled(self, fit: Fit) -> Fit:
        """Return a set of faults on the whole batch, with its parameters fitted again unless its distance is large."""
        fit = self.problem.tried(fit.placements) or Fit(fit.placements, self.problem.squares(self.right))
        far = math.sqrt(fit.distance / len(self.problem.actual)) > PROMISING * self.limits(fit.pooling_index).rms
        return fit if far or self.budget.is_spent() else fitted(self.problem, fit)

    def _judged(self, fit: Fit, patterns: Sequence[tuple[str, Array]], *, own: bool) -> Trial:
        """Return the trial of a set on the whole batch.

        The set is judged by the correct network's sigma or, if that fails and `own` is set, by its own sigma.
        """
        forward = self.problem.forward(fit.placements) or self.right
        which = JudgedForward(forward, self.base.hypothesis, self.base.sigma)
        agreement = which.agreement(fit.pooling_index, self.base.independent)
        if own and not allowed(agreement, self.limits(fit.pooling_index)):
            which = JudgedForward(forward, self.base.hypothesis).correlated([fit.pooling_index])
            agreement = which.agreement(fit.pooling_index, self.base.independent)
        wider = float(np.median(which.sigma[fit.pooling_index] / self.base.sigma[fit.pooling_index])) > WIDER
        explains = allowed(agreement, self.limits(fit.pooling_index)) and (not wider or agreement.rms >= LEAST_RMS)
        if explains and patterns:
            left = (project(which.residual[fit.pooling_index], pattern, which.noise(fit.pooling_index)) for _, pattern in patterns)
            explains = all(p is None or abs(p.z) <= self.limits(fit.pooling_index).filter for p in left)
        return Trial(fit, agreement, explains, self.dtype, wider)


def _rounded(checkpoint: Checkpoint, storage: Format) -> Callable[[str], Array]:
    """Return a function that returns a weight by name, rounded to the format; each weight is rounded once."""
    return cache(lambda name: storage.round(checkpoint.weights[name]))


def numbers(fit: Fit) -> int:
    """Return the number of free parameters of a fit."""
    return sum(s.fault.parameter is not None for s in fit.placements)
