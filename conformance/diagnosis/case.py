"""One diagnosis under way: the right network with its noise, and the judged sets of faults."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from conformance.checkpoint import Checkpoint, LazyWeights
from conformance.diagnosis.closed import Closed
from conformance.diagnosis.fitting import Fit, Problem, fitted
from conformance.diagnosis.hypotheses import Forward, Strike, strikes
from conformance.diagnosis.judgement import Agreement, Judged, Limits, allowed
from conformance.diagnosis.search import more, one, rounded, rows_to_search, simpler
from conformance.diagnosis.visible import Seen, filters
from conformance.judge.filters import project
from conformance.numerics.arithmetic import Hypothesis, hypotheses
from conformance.numerics.formats import FORMATS, Array, Format, format_named

AT_ONCE = 3  # faults; each more costs a beam
RENOISED = 2  # of these, and of those that round, how many are judged by a sigma of their own, which costs several passes
PROMISING = 8.0  # times the limit: what leaves more on the whole batch will not come below it by another digit of its numbers
TIES = 8.0  # worths, of twice the likelihood: what is so much farther on a part of the batch than an explanation is not tied to it
VERIFIED = 16  # sets that are judged on the whole batch, at each number of faults
PARTIAL = 2  # explanations of each number of faults that are told where none explains
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


def _end_to_end(dtype: str) -> list[Hypothesis]:
    """The ways of computing a whole network: results of steps are stored somewhere, so that no kernel fuses them all."""
    every = [h for h in hypotheses(dtype) if h.parents == "as captured"]
    return [h for h in every if h.arithmetic.rounding != "fused"]


class Case:
    """One diagnosis under way."""

    def __init__(self, checkpoint: Checkpoint, network: Closed, dtype: str, asked: str | None) -> None:
        """Evaluate the right network; `asked` is the pooling that is asked for, the network's first then."""
        self.checkpoint, self.network, self.dtype = checkpoint, network, dtype
        self.storage = format_named(dtype)
        self.right = Forward(network, self.storage)
        self.strikes = strikes(self.right)
        self.filters = filters(self.strikes)
        self.lanes = range(network.reading.lanes) if asked is None else range(1)
        self.arithmetics = sorted((self._widened(Judged(self.right, h)) for h in _end_to_end(dtype)), key=self.surprise)
        self.use(self.arithmetics[0])

    def _widened(self, judged: Judged) -> Judged:
        """With what the errors of different tokens have in common, under the poolings that could be the right one."""
        agreements = [judged.agreement(lane, judged.independent) for lane in range(self.network.reading.lanes)]
        best = min(a.rms for a in agreements)
        return judged.correlated(a.lane for a in agreements if a.rms <= PROMISING * best)

    def surprise(self, judged: Judged) -> float:
        """Of the likeliest of the poolings that are asked for."""
        return min(judged.agreement(lane, judged.independent).surprise for lane in self.lanes)

    def use(self, base: Judged) -> None:
        """Take this arithmetic for the system's."""
        self.base, self.problem = base, Problem(self.right, base.sigma)

    def limits(self, lane: int) -> Limits:
        """With a share of the false-alarm probability for RMS, largest error and each filter."""
        return self.base.limits(lane, 2 + len(self.filters))

    def part(self, strikes: Sequence[Strike] = ()) -> Problem:
        """The part of the batch that shows most of what these faults leave."""
        rows = rows_to_search(self.problem, strikes)
        if len(rows) == self.network.batch.size:
            return self.problem
        kept = np.isin(self.network.reading.rows, rows)
        return Problem(Forward(self.network.of_rows(rows), self.storage), self.base.sigma[:, kept])

    def pooling(self, lane: int) -> str:
        """A lane's pooling; empty where there is none."""
        return self.network.poolings[lane].name if self.network.poolings else ""

    def explained(self, best: Agreement, look: Seen) -> list[Trial]:
        """Trials: those that explain, and better than the right network with its larger rest; or else the nearest."""

        def explaining(trials: Iterable[Trial]) -> list[Trial]:
            return [t for t in trials if t.explains and t.agreement.surprise < best.surprise]

        found = explaining(self._others())
        if any(not t.loose for t in found):
            return found
        nearest: list[Trial] = []
        fits: list[Fit] = []
        for count in range(AT_ONCE):
            part = self.part(fits[0].strikes if fits else ())
            fits = more(part, fits, self.strikes) if count else one(part, self.strikes)
            trials = list(self._verified(fits, look.called))
            if not count and self._could_be(COARSEST) and not explaining(trials):
                trials += [self._judged(fit, look.called, own=True) for fit in rounded(part, self.strikes)[:RENOISED]]
            explained = explaining(trials)
            if explained and numbers(explained[0].fit):
                known = {frozenset(s.key for s in t.fit.strikes) for t in explained}
                others = simpler(self.problem, explained[0].fit, self.strikes)[:RENOISED]
                fresh = [f for f in others if frozenset(s.key for s in f.strikes) not in known]
                explained += explaining(self._verified(fresh, look.called))
            found += explained
            nearest += sorted(trials, key=lambda t: float(t.fit.squares.min()))[:PARTIAL]
            if any(not t.loose for t in found) or (found and count) or not fits:
                break
        return found or [replace(t, explains=False) for t in nearest]

    def _verified(self, fits: Sequence[Fit], patterns: Sequence[tuple[str, Array]]) -> Iterator[Trial]:
        """The nearest sets judged on the whole batch: until one explains, and those that are as near as the first that does."""
        explained = math.inf
        for number, fit in enumerate(fits[:VERIFIED]):
            if fit.distance > explained:
                return
            trial = self._judged(fit, patterns, own=number < RENOISED)
            if trial.explains and not trial.loose:
                explained = min(explained, fit.distance + TIES * self.limits(fit.lane).worth)
            yield trial

    def _others(self) -> Iterator[Trial]:
        """No fault at all: another pooling, or a narrower format."""
        for lane in set(range(self.network.reading.lanes)) - set(self.lanes):
            agreement = self.base.agreement(lane, self.base.independent)
            only = np.full(self.network.reading.lanes, np.inf)
            only[lane] = self.problem.squares(self.right)[lane]
            yield Trial(Fit((), only), agreement, allowed(agreement, self.limits(lane)), self.dtype)
        for other in FORMATS.values():
            if other.unit_roundoff <= self.storage.unit_roundoff:
                continue
            if not self._could_be(other, BALLPARK):
                continue
            weights = LazyWeights(self.checkpoint.weights, lambda name, f=other: f.round(self.checkpoint.weights[name]))  # type: ignore[misc]
            forward = Forward(replace(self.network, weights=weights), other)
            judged = self._widened(Judged(forward, _end_to_end(other.name)[0]))
            for lane in self.lanes:
                agreement = judged.agreement(lane, self.base.independent)
                explains = allowed(agreement, self.limits(lane)) and agreement.rms >= LEAST_RMS
                yield Trial(Fit((), self.problem.squares(forward)), agreement, explains, other.name, loose=True)

    def _could_be(self, other: Format, times: float = math.inf) -> bool:
        """Whether the residual is no larger than what a narrower format makes (and at most so many times smaller than it could be),
        by the network's sigma in proportion of the formats.
        """
        printing = np.minimum(self.network.reading.units**2 / 12.0, self.base.sigma**2)
        wider = np.sqrt(printing + (self.base.sigma**2 - printing) * (other.unit_roundoff / self.storage.unit_roundoff) ** 2)
        rms = np.sqrt(((self.base.residual / wider) ** 2).mean(1))[list(self.lanes)]
        return bool(((rms >= LEAST_RMS / times) & (rms <= BALLPARK * self.limits(0).rms)).any())

    def _judged(self, fit: Fit, patterns: Sequence[tuple[str, Array]], *, own: bool) -> Trial:
        """A set of faults on the whole batch, its numbers fitted again; by the right network's sigma or, if that fails, its own."""
        fit = self.problem.tried(fit.strikes) or Fit(fit.strikes, self.problem.squares(self.right))
        far = math.sqrt(fit.distance / len(self.problem.made)) > PROMISING * self.limits(fit.lane).rms
        if not far and numbers(fit):
            fit = fitted(self.problem, fit)
        forward = self.problem.forward(fit.strikes) or self.right
        which = Judged(forward, self.base.hypothesis, self.base.sigma)
        agreement = which.agreement(fit.lane, self.base.independent)
        if own and not allowed(agreement, self.limits(fit.lane)):
            which = Judged(forward, self.base.hypothesis).correlated([fit.lane])
            agreement = which.agreement(fit.lane, self.base.independent)
        wider = float(np.median(which.sigma[fit.lane] / self.base.sigma[fit.lane])) > WIDER
        explains = allowed(agreement, self.limits(fit.lane)) and (not wider or agreement.rms >= LEAST_RMS)
        if explains and patterns:
            left = (project(which.residual[fit.lane], pattern, which.noise(fit.lane)) for _, pattern in patterns)
            explains = all(p is None or abs(p.z) <= self.limits(fit.lane).filter for p in left)
        return Trial(fit, agreement, explains, self.dtype, wider)


def numbers(fit: Fit) -> int:
    """How many are free."""
    return sum(s.fault.parameter is not None for s in fit.strikes)
