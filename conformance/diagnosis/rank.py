"""The diagnosis: the right network first, then the sets of faults that explain what it does not."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from conformance.batch import Batch
from conformance.checkpoint import Checkpoint, LazyWeights
from conformance.diagnosis.closed import EMBEDDING, Closed
from conformance.diagnosis.evidence import Diagnosis, Explanation
from conformance.diagnosis.fitting import Fit, Problem, estimates, fitted
from conformance.diagnosis.hypotheses import Forward, Strike, strikes
from conformance.diagnosis.judgement import Agreement, Judged, Limits, allowed
from conformance.diagnosis.outputs import Table, resolved
from conformance.diagnosis.pooling import POOLINGS, Pooling
from conformance.diagnosis.search import more, one, rows_to_search
from conformance.diagnosis.visible import Seen, filters, seen
from conformance.diagnosis.words import blamed
from conformance.errors import UsageError
from conformance.faults import CATALOGUE
from conformance.goldens.own import golden_of
from conformance.judge.filters import project
from conformance.numerics.arithmetic import Hypothesis, hypotheses
from conformance.numerics.formats import FORMATS, Array, Format, format_named

AT_ONCE = 3  # faults; each more costs a beam
RENOISED = 2  # of these, and of those that round, how many are judged by a sigma of their own, which costs several passes
PROMISING = 8.0  # times the limit: what leaves more on the whole batch will not come below it by another digit of its numbers
TIES = 8.0  # worths, of twice the likelihood: what is so much farther on a part of the batch than an explanation is not tied to it
VERIFIED = 16  # sets that are judged on the whole batch, at each number of faults
TOLD = 8  # explanations
PARTIAL = 2  # explanations of each number of faults that are told where none explains
BALLPARK = 4.0  # times: how far the size that a format's noise is guessed to have may be off, before it is computed
LEAST_RMS = 0.3  # design/method.md 3: correct runs lie in 0.3 to 2; below, a format's noise is no explanation of an error
_ORDER = {fault.name: i for i, fault in enumerate(CATALOGUE)}


def diagnose(
    checkpoint: Checkpoint, batch: Batch, outputs: Mapping[str, Any], *, dtype: str = "float32", pooling: str | None = None
) -> Diagnosis:
    """Judge the outputs of a closed system, and name the faults that explain them where the right network does not.

    Args:
        checkpoint: what the system should have run.
        batch: on what.
        outputs: by name (`last_hidden_state`, `pooler_output`, `embedding`, `logits`, or any activation's): arrays, which are
            exact; nested lists of numbers, as text where their digits count; or `Table`s.
        dtype: what the system computes in.
        pooling: how an embedding comes from the hidden state; None where it is not known.

    Raises:
        UsageError: outputs that do not fit, an unknown pooling or format.
    """
    golden_of("outputs", checkpoint, {"outputs": batch})  # refuses what does not fit the architecture
    given = {name: part if isinstance(part, Table) else Table(_plain(part)) for name, part in outputs.items()}
    found = resolved(given, checkpoint.architecture, batch)
    has_embedding = any(o.name == EMBEDDING for o in found)
    if pooling is not None and not has_embedding:
        raise UsageError("a pooling is asked for, and no output is an embedding")
    poolings = _poolings(checkpoint, batch, pooling) if has_embedding else ()
    known = cache(lambda name: format_named(dtype).round(checkpoint.weights[name]))
    network = Closed(checkpoint.architecture, LazyWeights(checkpoint.weights, known), batch, found, poolings)
    missing = [o.name for o in found if o.name != EMBEDDING and o.name not in network.table]
    if missing:
        raise UsageError(f"{', '.join(missing)} needs labels, which the inputs do not have")
    if not len(network.reading.made):
        raise UsageError("no number of the outputs can be judged: all belong to padding")
    return _Case(checkpoint, network, dtype, pooling).diagnosis()


def _plain(part: Any) -> Any:
    return part if isinstance(part, list | tuple) else np.asarray(part, np.float64)


def _poolings(checkpoint: Checkpoint, batch: Batch, asked: str | None) -> tuple[Pooling, ...]:
    """Those that are different on this batch, the one asked for first."""
    if asked is not None and asked not in POOLINGS:
        raise UsageError(f"there is no pooling {asked!r}; known are {', '.join(POOLINGS)}")
    found: dict[tuple[object, ...], Pooling] = {}
    for pooling in sorted(POOLINGS.values(), key=lambda p: p.name != asked):
        if pooling.base == "pooler" and not checkpoint.architecture.pooler:
            continue
        same = pooling.base if pooling.weights is None else pooling.weights(batch.mask).tobytes()
        found.setdefault((same, pooling.is_normalised), pooling)
    return tuple(found.values())


@dataclass(frozen=True, eq=False)
class _Trial:
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


class _Case:
    """One diagnosis under way."""

    def __init__(self, checkpoint: Checkpoint, network: Closed, dtype: str, asked: str | None) -> None:
        self.checkpoint, self.network, self.dtype = checkpoint, network, dtype
        self.storage = format_named(dtype)
        self.right = Forward(network, self.storage)
        self.strikes = strikes(self.right)
        self.filters = filters(self.strikes)
        self.lanes = range(network.reading.lanes) if asked is None else range(1)
        self.arithmetics = sorted((Judged(self.right, h) for h in _end_to_end(dtype)), key=self._surprise)
        self.use(self.arithmetics[0])

    def _surprise(self, judged: Judged) -> float:
        return min(judged.agreement(lane, judged.independent).surprise for lane in self.lanes)

    def use(self, base: Judged) -> None:
        """Take this arithmetic for the system's."""
        self.base, self.problem = base, Problem(self.right, base.sigma)

    def limits(self, lane: int) -> Limits:
        """With a share of the false-alarm probability for RMS, largest error and each filter."""
        return self.base.limits(lane, 2 + len(self.filters))

    def diagnosis(self) -> Diagnosis:
        """The right network, and where it does not do, what does."""
        for base in [*self.arithmetics, self.arithmetics[0]]:  # it must fit one of them; where it fits none, the likeliest is told
            self.use(base)
            agreements = [base.agreement(lane, base.independent) for lane in self.lanes]
            best = min(agreements, key=lambda a: a.surprise)
            passing = [a.lane for a in agreements if allowed(a, self.limits(a.lane))]
            part = self.part()
            looks = {lane: seen(base, part, lane, self.filters, self.limits(lane)) for lane in passing}
            good = [lane for lane in passing if not looks[lane].called]
            if good:
                break
        if good:
            best = min((a for a in agreements if a.lane in good), key=lambda a: a.surprise)
        look = looks.get(best.lane, Seen((), (), ()))
        trials = [] if good else self._explained(best, look)
        limits, reading = self.limits(best.lane), self.network.reading
        printed = reading.units[reading.units > 0.0]
        return Diagnosis(
            bool(good),
            reading.names,
            len(reading.made),
            -math.log10(float(np.median(printed))) if len(printed) else None,
            self.dtype,
            self.base.hypothesis.arithmetic.rounding if self.base.hypothesis.arithmetic.is_mixed else self.dtype,
            tuple(self._pooling(lane) for lane in good),
            self._pooling(best.lane),
            float(np.median(self.base.sigma[best.lane])),
            best.rms,
            best.max,
            limits.rms,
            limits.max,
            look.shown if good else (),
            look.unseen if good else (),
            tuple(name for name, _ in look.called),
            tuple(self._told(trials, best)),
        )

    def part(self, strikes: Sequence[Strike] = ()) -> Problem:
        """The part of the batch that shows most of what these faults leave."""
        rows = rows_to_search(self.problem, strikes)
        if len(rows) == self.network.batch.size:
            return self.problem
        kept = np.isin(self.network.reading.rows, rows)
        return Problem(Forward(self.network.of_rows(rows), self.storage), self.base.sigma[:, kept])

    def _pooling(self, lane: int) -> str:
        return self.network.poolings[lane].name if self.network.poolings else ""

    def _explained(self, best: Agreement, look: Seen) -> list[_Trial]:
        """Trials: those that explain, or else the nearest."""
        found = [t for t in self._others() if t.explains]
        if any(not t.loose for t in found):
            return found
        nearest: list[_Trial] = []
        fits: list[Fit] = []
        for count in range(AT_ONCE):
            part = self.part(fits[0].strikes if fits else ())
            fits = more(part, fits, self.strikes) if count else one(part, self.strikes)
            trials = list(self._verified(fits, look.called))
            found += [t for t in trials if t.explains]
            nearest += sorted(trials, key=lambda t: float(t.fit.squares.min()))[:PARTIAL]
            if any(not t.loose for t in found) or (found and count) or not fits:
                break
        return found or nearest

    def _verified(self, fits: Sequence[Fit], patterns: Sequence[tuple[str, Array]]) -> Iterator[_Trial]:
        """The nearest sets judged on the whole batch: until one explains, and those that are as near as the first that does."""
        late = [f for f in fits if any(s.fault.late for s in f.strikes)][:RENOISED]
        yield from (self._judged(fit, patterns, own=True) for fit in late)
        explained = math.inf
        for number, fit in enumerate([f for f in fits[:VERIFIED] if f not in late]):
            if fit.distance > explained:
                return
            trial = self._judged(fit, patterns, own=number < RENOISED)
            if trial.explains and not trial.loose:
                explained = min(explained, fit.distance + TIES * self.limits(fit.lane).worth)
            yield trial

    def _others(self) -> Iterator[_Trial]:
        """No fault at all: another pooling, or a narrower format."""
        for lane in set(range(self.network.reading.lanes)) - set(self.lanes):
            agreement = self.base.agreement(lane, self.base.independent)
            only = np.full(self.network.reading.lanes, np.inf)
            only[lane] = self.problem.squares(self.right)[lane]
            yield _Trial(Fit((), only), agreement, allowed(agreement, self.limits(lane)), self.dtype)
        for other in FORMATS.values():
            if other.unit_roundoff <= self.storage.unit_roundoff:
                continue
            if not self._could_be(other):
                continue
            weights = LazyWeights(self.checkpoint.weights, lambda name, f=other: f.round(self.checkpoint.weights[name]))  # type: ignore[misc]
            forward = Forward(replace(self.network, weights=weights), other)
            judged = Judged(forward, _end_to_end(other.name)[0])
            for lane in self.lanes:
                agreement = judged.agreement(lane, self.base.independent)
                explains = allowed(agreement, self.limits(lane)) and agreement.rms >= LEAST_RMS
                yield _Trial(Fit((), self.problem.squares(forward)), agreement, explains, other.name, loose=True)

    def _could_be(self, other: Format) -> bool:
        """Whether the residual is of the size that a narrower format makes: the network's sigma in proportion of the formats."""
        printing = np.minimum(self.network.reading.units**2 / 12.0, self.base.sigma**2)
        wider = np.sqrt(printing + (self.base.sigma**2 - printing) * (other.unit_roundoff / self.storage.unit_roundoff) ** 2)
        rms = np.sqrt(((self.base.residual / wider) ** 2).mean(1))[list(self.lanes)]
        return bool(((rms >= LEAST_RMS / BALLPARK) & (rms <= BALLPARK * self.limits(0).rms)).any())

    def _judged(self, fit: Fit, patterns: Sequence[tuple[str, Array]], *, own: bool) -> _Trial:
        """A set of faults on the whole batch, its numbers fitted again; by the right network's sigma or, if that fails, its own."""
        fit = self.problem.tried(fit.strikes) or Fit(fit.strikes, self.problem.squares(self.right))
        far = math.sqrt(fit.distance / len(self.problem.made)) > PROMISING * self.limits(fit.lane).rms
        if not far and _numbers(fit):
            fit = fitted(self.problem, fit)
        forward = self.problem.forward(fit.strikes) or self.right
        which = Judged(forward, self.base.hypothesis, self.base.sigma)
        agreement = which.agreement(fit.lane, self.base.independent)
        if own and not allowed(agreement, self.limits(fit.lane)):
            which = Judged(forward, self.base.hypothesis)
            agreement = which.agreement(fit.lane, self.base.independent)
        wider = float(np.median(which.sigma[fit.lane] / self.base.sigma[fit.lane])) > 2.0
        explains = allowed(agreement, self.limits(fit.lane)) and (not wider or agreement.rms >= LEAST_RMS)
        if explains and patterns:
            left = (project(which.residual[fit.lane], pattern, which.noise(fit.lane)) for _, pattern in patterns)
            explains = all(p is None or abs(p.z) <= self.limits(fit.lane).filter for p in left)
        return _Trial(fit, agreement, explains, self.dtype, wider)

    def _told(self, trials: Sequence[_Trial], best: Agreement) -> Iterator[Explanation]:
        """Explanations in order: those that explain, fewer faults and numbers, the likelier; of what is tied the widest first."""
        if not trials:
            return

        worth = self.limits(best.lane).worth

        def cost(t: _Trial) -> float:
            """Each fault and each number must make the rest likelier by what a false alarm is worth."""
            return t.agreement.surprise + worth * (_complexity(t.fit) + (t.agreement.lane not in self.lanes))

        ordered = sorted(trials, key=lambda t: (not t.explains, t.loose, cost(t)))
        first = ordered[0]
        tied = [
            t
            for t in ordered
            if first.explains
            and (t.explains, t.loose) == (True, first.loose)
            and cost(t) - cost(first) < worth
            and _complexity(t.fit) <= _complexity(first.fit)
        ]
        tied.sort(key=lambda t: (_complexity(t.fit), sum(s.reach for s in t.fit.strikes), _catalogued(t.fit)))
        for t in [*tied, *(t for t in ordered if t not in tied)][:TOLD]:
            yield self._explanation(t, best, t in tied)

    def _explanation(self, trial: _Trial, best: Agreement, tied: bool) -> Explanation:
        fit, lane = trial.fit, trial.agreement.lane
        z, numbers = None, estimates(self.problem, fit, self.base.hypothesis)
        if fit.strikes:
            moved = self.problem.value(fit.strikes)[lane] - self.right.value[lane]
            found = project(self.base.residual[lane], moved, self.base.noise(lane)) if np.isfinite(moved).all() else None
            z = found.z if found else None
        before = float(((self.base.residual[best.lane] / self.base.sigma[best.lane]) ** 2).sum())
        return Explanation(
            tuple(blamed(s, e, self.network) for s, e in zip(fit.strikes, numbers, strict=True)),
            self._pooling(lane),
            lane not in self.lanes,
            trial.dtype,
            trial.explains,
            trial.agreement.rms,
            trial.agreement.max,
            z,
            best.surprise - trial.agreement.surprise,
            1.0 - float(fit.squares[lane]) / before if before else 0.0,
            _numbers(trial.fit),
            tied,
            trial.agreement.surprise,
        )


def _numbers(fit: Fit) -> int:
    return sum(s.fault.parameter is not None for s in fit.strikes)


def _complexity(fit: Fit) -> int:
    return len(fit.strikes) + _numbers(fit)


def _catalogued(fit: Fit) -> list[int]:
    return [_ORDER[s.fault.name] for s in fit.strikes]
