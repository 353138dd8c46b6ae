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
from conformance.numerics.formats import FORMATS, Array, format_named

AT_ONCE = 3  # faults; each more costs a beam
VERIFIED = 16  # sets that are judged on the whole batch, at each number of faults
PARTIAL = 5  # explanations that are told where none explains
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


@dataclass(frozen=True)
class _Trial:
    """A judged set of faults: the explanation but for its words."""

    fit: Fit
    agreement: Agreement
    explains: bool
    dtype: str
    loose: bool = False


class _Case:
    """One diagnosis under way."""

    def __init__(self, checkpoint: Checkpoint, network: Closed, dtype: str, asked: str | None) -> None:
        self.checkpoint, self.network, self.dtype = checkpoint, network, dtype
        self.storage = format_named(dtype)
        self.right = Forward(network, self.storage)
        self.hypotheses = [h for h in hypotheses(dtype) if h.parents == "as captured"]
        self.strikes = strikes(self.right)
        self.filters = filters(self.strikes)
        self.lanes = range(network.reading.lanes) if asked is None else range(1)
        self.base = self._nearest([Judged(self.right, h) for h in self.hypotheses])
        self.problem = Problem(self.right, self.base.sigma)

    def _nearest(self, judged: Sequence[Judged]) -> Judged:
        """The arithmetic under which the right network is likeliest."""
        return min(judged, key=lambda j: min(j.agreement(lane, j.independent).surprise for lane in self.lanes))

    def limits(self, lane: int) -> Limits:
        return self.base.limits(lane, 2 + len(self.filters))

    def diagnosis(self) -> Diagnosis:
        """The right network, and where it does not do, what does."""
        agreements = [self.base.agreement(lane, self.base.independent) for lane in self.lanes]
        best = min(agreements, key=lambda a: a.surprise)
        passing = [a.lane for a in agreements if allowed(a, self.limits(a.lane))]
        looks = {lane: seen(self.base, lane, self.filters, self.limits(lane)) for lane in passing}
        good = [lane for lane in passing if not looks[lane].called]
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

    def _pooling(self, lane: int) -> str:
        return self.network.poolings[lane].name if self.network.poolings else ""

    def _explained(self, best: Agreement, look: Seen) -> list[_Trial]:
        """Trials: those that explain, or else the nearest."""
        rows = rows_to_search(self.problem)
        part = self.problem
        if len(rows) < self.network.batch.size:
            right = Forward(self.network.of_rows(rows), self.storage)
            part = Problem(right, Judged(right, self.base.hypothesis).sigma)
        patterns = look.called
        found = [t for t in self._others() if t.explains]
        nearest: list[_Trial] = []
        fits: list[Fit] = []
        for count in range(AT_ONCE):
            fits = more(part, fits, self.strikes) if count else one(part, self.strikes)
            foremost = list(fits[:VERIFIED])
            late = [f for f in fits[VERIFIED:] if any(s.fault.late for s in f.strikes)]
            trials = [self._judged(fit, patterns) for fit in [*foremost, *late]]
            found += [t for t in trials if t.explains]
            nearest += trials
            if any(not t.loose for t in found) or (found and count):
                break
        return found or sorted(nearest, key=lambda t: float(t.fit.squares.min()))[:PARTIAL]

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
            weights = LazyWeights(self.checkpoint.weights, lambda name, f=other: f.round(self.checkpoint.weights[name]))  # type: ignore[misc]
            forward = Forward(replace(self.network, weights=weights), other)
            for hypothesis in (h for h in hypotheses(other.name) if h.parents == "as captured"):
                judged = Judged(forward, hypothesis)
                for lane in self.lanes:
                    agreement = judged.agreement(lane, self.base.independent)
                    explains = allowed(agreement, self.limits(lane)) and agreement.rms >= LEAST_RMS
                    yield _Trial(Fit((), self.problem.squares(forward)), agreement, explains, other.name, loose=True)

    def _judged(self, fit: Fit, patterns: Sequence[tuple[str, Array]]) -> _Trial:
        """A set of faults on the whole batch, its numbers fitted again, under the arithmetic that makes it likeliest."""
        if any(s.fault.parameter for s in fit.strikes):
            again = self.problem.tried(fit.strikes)
            fit = fit if again is None else fitted(self.problem, again)
        else:
            fit = self.problem.tried(fit.strikes) or fit
        forward = self.problem.forward(fit.strikes) or self.right
        best, which = math.inf, self.base
        for hypothesis in self.hypotheses:
            judged = Judged(forward, hypothesis)
            surprise = judged.agreement(fit.lane, self.base.independent).surprise
            if surprise < best or which is self.base:
                best, which = surprise, judged
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

        def rank(t: _Trial) -> tuple[bool, int, int, float]:
            return not t.explains, len(t.fit.strikes), _free(t), t.agreement.surprise

        ordered = sorted(trials, key=rank)
        first, worth = ordered[0], self.limits(best.lane).worth
        tied = [
            t
            for t in ordered
            if first.explains and rank(t)[:3] == rank(first)[:3] and t.agreement.surprise - first.agreement.surprise < worth
        ]
        tied.sort(key=lambda t: (sum(s.reach for s in t.fit.strikes), [_ORDER[s.fault.name] for s in t.fit.strikes]))
        for t in [*tied, *(t for t in ordered if t not in tied)]:
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
            _free(trial),
            tied,
            trial.agreement.surprise,
        )


def _free(trial: _Trial) -> int:
    return sum(s.fault.parameter is not None for s in trial.fit.strikes)


