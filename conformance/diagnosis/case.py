"""One diagnosis under way: the right network with its noise, and the judged sets of faults."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from conformance.diagnosis.closed import BlackBox
from conformance.diagnosis.fitting import Fit, Problem, fitted
from conformance.diagnosis.hypotheses import FaultPlacement, Forward, placements
from conformance.diagnosis.inputs import OtherInputs
from conformance.diagnosis.judgement import Agreement, JudgedForward, Limits, allowed
from conformance.diagnosis.search import beam_of, more, one, rounded, rows_to_search, simpler
from conformance.diagnosis.search_budget import ELSE, FAULTS, SearchBudget
from conformance.diagnosis.visible import Detectability, filters
from conformance.judge.filters import GROSS, project
from conformance.model.checkpoint import Checkpoint, LazyWeights
from conformance.numerics.arithmetic import Hypothesis, hypotheses
from conformance.numerics.formats import FORMATS, Array, Format, format_named

AT_ONCE = 3  # faults; each more costs a beam
RENOISED = 2  # of these, and of those that round, how many are judged by a sigma of their own, which costs several passes
PROMISING = 8.0  # times the limit: what leaves more on the whole batch will not come below it by another digit of its numbers
TIES = 8.0  # worths, of twice the likelihood: what is so much farther on a part of the batch than an explanation is not tied to it
VERIFIED = 16  # sets that are judged on the whole batch, at each number of faults
PARTIAL = 2  # explanations of each number of faults that are reported where none explains
BALLPARK = 4.0  # times: how far the size that a format's noise is guessed to have may be off, before it is computed
COARSEST = FORMATS["bfloat16"]
LEAST_RMS = 0.3  # the RMS of correct runs lies in 0.3 to 2 sigma; below, the noise of another format is no explanation of an error
WIDER = 2.0  # times the right network's sigma: then the explanation is mostly noise


@dataclass(frozen=True, eq=False)
class Trial:
    """A judged set of faults: the explanation but for its words."""

    fit: Fit
    agreement: Agreement
    explains: bool
    dtype: str
    loose: bool = False
    inputs: OtherInputs | None = None

    @property
    def complexity(self) -> int:
        """How many faults and free numbers."""
        return len(self.fit.placements) + numbers(self.fit) + (self.inputs is not None)


def _end_to_end(dtype: str) -> list[Hypothesis]:
    """The ways of computing a whole network: results of steps are stored somewhere, so that no kernel fuses them all."""
    every = [h for h in hypotheses(dtype) if h.parents == "as captured"]
    return [h for h in every if h.arithmetic.rounding != "fused"]


class BlackBoxCase:
    """One diagnosis under way."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        network: BlackBox,
        dtype: str,
        asked: str | None,
        budget: SearchBudget,
        inputs: Sequence[OtherInputs] = (),
    ) -> None:
        """Evaluate the right network.

        `asked` is the pooling that is asked for, the network's first then; `inputs` what the system may have read in place of the
        batch.
        """
        self.budget, self.inputs = budget, inputs
        self.checkpoint, self.network, self.dtype = checkpoint, network, dtype
        self.storage = format_named(dtype)
        self.right = Forward(network, self.storage)
        self.placements = placements(self.right)
        self.filters = filters(self.placements)
        self.lanes = range(network.reading.lanes) if asked is None else range(1)
        self.arithmetics = sorted((self._widened(JudgedForward(self.right, h)) for h in _end_to_end(dtype)), key=self.nll)
        self.use(self.arithmetics[0])

    def _widened(self, judged: JudgedForward) -> JudgedForward:
        """With what the errors of different tokens have in common, under the poolings that could be the right one."""
        agreements = [judged.agreement(pooling_index, judged.independent) for pooling_index in range(self.network.reading.lanes)]
        best = min(a.rms for a in agreements)
        return judged.correlated(a.pooling_index for a in agreements if a.rms <= PROMISING * best)

    def nll(self, judged: JudgedForward) -> float:
        """Of the likeliest of the poolings that are asked for."""
        return min(judged.agreement(pooling_index, judged.independent).nll for pooling_index in self.lanes)

    def use(self, base: JudgedForward) -> None:
        """Take this arithmetic for the system's."""
        self.base, self.problem = base, Problem(self.right, base.sigma)

    def limits(self, pooling_index: int) -> Limits:
        """With a share of the false-alarm probability for RMS, largest error and each filter."""
        return self.base.limits(pooling_index, 2 + len(self.filters))

    def part(self, placements: Sequence[FaultPlacement] = ()) -> Problem:
        """The part of the batch that shows most of what these faults leave."""
        rows = rows_to_search(self.problem, placements)
        if len(rows) == self.network.batch.size:
            return self.problem
        kept = np.isin(self.network.reading.rows, rows)
        return Problem(Forward(self.network.of_rows(rows), self.storage), self.base.sigma[:, kept])

    def pooling(self, pooling_index: int) -> str:
        """A lane's pooling; empty where there is none."""
        return self.network.poolings[pooling_index].name if self.network.poolings else ""

    def explained(self, best: Agreement, look: Detectability) -> list[Trial]:
        """Trials: those that explain, and better than the right network with its larger rest; or else the nearest."""

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
        """The single faults on top of which others are looked for.

        Of n faults whose effects are orthogonal the largest accounts for a share of 1/n at least. Where effects do not add up,
        whatever is nearer.
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
        """Sets with one fault more, nearest first, and the trials that explain: of the foremost of the beam, then of the others.

        Where one of the foremost explains, others are followed if such sets could be tied with it: what they print is then within
        √T of it, T the evidence that distinguishes, in squares, so that without the last fault they are at most √T farther.
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
        """The nearest sets judged on the whole batch: until one explains, and those that are as near as the first that does."""
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
        """What is reported where nothing explains: the sets that leave least of the whole batch."""
        if self.budget.is_spent():
            return [self._judged(self._settled(fit), patterns, own=False) for fit in fits[:1]]
        settled = [self._settled(fit) for fit in fits]
        order = sorted(range(len(settled)), key=lambda number: settled[number].distance)
        return [self._judged(settled[number], patterns, own=number < RENOISED) for number in order[:PARTIAL]]

    def _tested(self, fit: Fit, part: Problem, patterns: Sequence[tuple[str, Array]], *, own: bool) -> Trial | None:
        """The set judged on the whole batch, None where a part of it shows that it is no explanation."""
        near = self._unrefuted(fit, part, own=own)
        return None if near is None else self._judged(self._settled(near), patterns, own=own)

    def _unrefuted(self, fit: Fit, part: Problem, *, own: bool) -> Fit | None:
        """The set, its numbers fitted again on a part of the batch; None where that shows that it is no explanation of the whole.

        Σ r²/σ² and the largest error of the whole are no smaller than those of a part. Numbers fitted to the whole, and the set's
        own sigma, move errors by few sigma: what is `GROSS` stays beyond its limit.
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
        """Whether errors of a part of the batch are not gross by the set's own sigma."""
        judged, most = (
            JudgedForward(part.forward(fit.placements) or part.right, self.base.hypothesis),
            GROSS * self.limits(fit.pooling_index).max,
        )
        if judged.largest[fit.pooling_index] > most * math.sqrt(self.network.batch.length):  # a sigma is widened by √S at the most
            return False
        return bool(judged.correlated([fit.pooling_index]).largest[fit.pooling_index] <= most)

    def _others(self, part: Problem) -> Iterator[Trial]:
        """No fault of the network: another pooling, a narrower format, or other inputs."""
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
            hypothesis = _end_to_end(other.name)[0]
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
        """The right network on other inputs; none where its longest row shows that it is no explanation."""
        network, row = replace(self.network, batch=inputs.batch), int(self.network.batch.mask.sum(1).argmax())
        alone = JudgedForward(Forward(network.of_rows([row]), self.storage), self.base.hypothesis)
        limits = [self.limits(pooling_index) for pooling_index in self.lanes]
        if all(alone.largest[i] > GROSS * limit.max for i, limit in zip(self.lanes, limits, strict=True)):
            return
        forward = Forward(network, self.storage)
        judged = self._widened(JudgedForward(forward, self.base.hypothesis))
        for pooling_index, limit in zip(self.lanes, limits, strict=True):
            agreement = judged.agreement(pooling_index, self.base.independent)
            yield Trial(Fit((), self.problem.squares(forward)), agreement, allowed(agreement, limit), self.dtype, inputs=inputs)

    def _could_be(self, other: Format, times: float = math.inf) -> bool:
        """Whether the residual is no larger than a narrower format's rounding, and at most so many times smaller.

        That format's sigma is the network's, scaled by the ratio of the unit roundoffs.
        """
        printing = np.minimum(self.network.reading.units**2 / 12.0, self.base.sigma**2)
        wider = np.sqrt(printing + (self.base.sigma**2 - printing) * (other.unit_roundoff / self.storage.unit_roundoff) ** 2)
        rms = np.sqrt(((self.base.residual / wider) ** 2).mean(1))[list(self.lanes)]
        return bool(((rms >= LEAST_RMS / times) & (rms <= BALLPARK * self.limits(0).rms)).any())

    def _settled(self, fit: Fit) -> Fit:
        """A set of faults on the whole batch, its numbers fitted again unless it is far."""
        fit = self.problem.tried(fit.placements) or Fit(fit.placements, self.problem.squares(self.right))
        far = math.sqrt(fit.distance / len(self.problem.actual)) > PROMISING * self.limits(fit.pooling_index).rms
        return fit if far or self.budget.is_spent() else fitted(self.problem, fit)

    def _judged(self, fit: Fit, patterns: Sequence[tuple[str, Array]], *, own: bool) -> Trial:
        """A set of faults on the whole batch; by the right network's sigma or, if that fails, its own."""
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
    """A weight by name, rounded once."""
    return cache(lambda name: storage.round(checkpoint.weights[name]))


def numbers(fit: Fit) -> int:
    """How many are free."""
    return sum(s.fault.parameter is not None for s in fit.placements)
