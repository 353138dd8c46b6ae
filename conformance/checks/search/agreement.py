"""Comparison of two runs of one candidate, on the elements that both computed: to within rounding, or bit for bit.

This comparison uses no reference values. Two correct runs on the same inputs may differ, since kernels sum in a different order at
a different size. Each run has a random error that rounding has accumulated from the token ids on. For the difference d of two runs,
the judged quantity is therefore

    max(|d| − 2b, 0) / (√2 σ)

where σ is the accumulated sigma under the widest legal arithmetic, and b is the deterministic bound of the last step, both at the
candidate's own values of the first run. Results that involve no rounding, such as a table look-up, must be equal.

The forward pass may be wrong, which is not the subject of such a comparison. A difference beyond the limit is therefore compared
with the limit for the equation that the candidate has instead. If that is unknown, a difference of at
most √u of the largest result is undecided at that step, and at the steps that are computed from it and right in both runs, to
which it is handed on. With a larger difference, an equation would lose more than half of its digits to rounding: it would have no
result.

Rounding errors of one run of a candidate, and the wrong steps of which they are not known.

The rounding errors of a step depend on its equation and on its inputs. Inputs are the candidate's own. If a step is wrong in both
of two runs that are compared, the candidate has another equation: that of the mistakes of the catalogue that explain the step in
one of the runs. If none does, its rounding errors are not known. A step that is wrong in one of the runs only has the equation of
a BERT: what the candidate computes in the other depends on what must have no effect.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from conformance.checks.search.subject import Subject
from conformance.errors import Unsupported
from conformance.judge.found_equations import CORRECT, Accumulated, FoundEquations, accumulated, found_equations
from conformance.judge.judged_elements import judged_elements, sums_of_independent_rows
from conformance.judge.local_error import screened
from conformance.model.activation import SCALAR, Activation
from conformance.model.gradients import ancestors
from conformance.numerics.arithmetic import hypotheses
from conformance.numerics.formats import Array, Format, Mask, format_named
from conformance.numerics.memo import IdentityKey
from conformance.numerics.thresholds import max_threshold, rms_threshold, sidak_share
from conformance.results.example import LawBroken, Location, Run, beyond_rounding


@dataclass(frozen=True, eq=False)
class WrongSteps:
    """The steps that are wrong in two runs.

    Attributes:
        both: names of the activations that are wrong in both runs for the candidate's own inputs to them.
        one: names of those that are wrong in one of the runs only.
        found: the mistakes that explain those of `both`.
    """

    both: frozenset[str]
    one: frozenset[str]
    found: FoundEquations


def wrong_steps(subject: Subject, first: Run, second: Run) -> WrongSteps:
    """Return the steps that are wrong in two runs of a subject."""
    return _wrong_steps(IdentityKey(subject), IdentityKey(first), IdentityKey(second))


@lru_cache(maxsize=1)
def _wrong_steps(subject: IdentityKey[Subject], first: IdentityKey[Run], second: IdentityKey[Run]) -> WrongSteps:
    in_first, in_second = _wrong(subject, first), _wrong(subject, second)
    both = in_first & in_second
    found = _found(subject, first, both) if both else CORRECT
    if found.unknown:
        found |= _found(subject, second, both)
    return WrongSteps(both, in_first ^ in_second, found)


@lru_cache(maxsize=2)
def _wrong(subject: IdentityKey[Subject], run: IdentityKey[Run]) -> frozenset[str]:
    asked, ran = subject.value, run.value
    found = screened(asked.network(ran.batch), ran.values, asked.dtype, asked.device, asked.tests, asked.functions)
    return frozenset(one.activation for one in found if one.excess > 1.0)


@lru_cache(maxsize=2)
def _found(subject: IdentityKey[Subject], run: IdentityKey[Run], wrong: frozenset[str]) -> FoundEquations:
    asked, ran = subject.value, run.value
    legal = hypotheses(asked.dtype, asked.device, asked.functions)
    alpha = sidak_share(asked.tests * max(len(ran.values), 1))
    return found_equations(asked.network(ran.batch), ran.values, wrong, legal, alpha)


def rounding(subject: Subject, run: Run, found: FoundEquations = CORRECT) -> Mapping[str, Accumulated]:
    """Return the accumulated rounding errors of each activation of a run under the widest legal arithmetic.

    The steps are computed with the mistakes `found`.
    """
    return _rounding(IdentityKey(subject), IdentityKey(run), IdentityKey(found))


# Cached for the next comparison with the same run: without and with mistakes.
@lru_cache(maxsize=2)
def _rounding(
    subject: IdentityKey[Subject], run: IdentityKey[Run], found: IdentityKey[FoundEquations]
) -> Mapping[str, Accumulated]:
    asked, ran = subject.value, run.value
    widest = hypotheses(asked.dtype, asked.device, asked.functions)[-1].arithmetic
    return accumulated(asked.network(ran.batch), widest, ran.values, found.value)


def unknown_before(subject: Subject, run: Run, name: str, found: FoundEquations) -> str:
    """Return the first step with an unknown equation among an activation and those it is computed from; empty if there is none."""
    rows = ancestors(subject.network(run.batch).table, name)
    return next((row.name for row in rows if row.name in found.unknown), "")


@dataclass(frozen=True)
class RowPairs:
    """The indices of rows of two runs that contain the same texts, in the same order."""

    first: Sequence[int]
    second: Sequence[int]


def require_agreement(subject: Subject, first: Run, second: Run, alike: RowPairs) -> float:
    """Return the largest ratio of an error to its limit over the activations that both runs expose.

    Both runs are compared up to the length of the shorter one.

    Raises:
        LawBroken: at the first activation, in the order of computation, that exceeds its limit.
        Unsupported: if an activation differs whose rounding errors are not known, and no other exceeds its limit.
    """
    alpha = sidak_share(2 * subject.tests * max(len(first.values), 1))
    worst, undecided = 0.0, ""
    for compared in _compared(subject, first, second, alike):
        # Sigma, which costs more than the run, is computed only if an activation differs.
        excess, index = compared.excess(rounding(subject, first), alpha)
        if excess > 1.0:
            wrong = wrong_steps(subject, first, second)
            if wrong.both:
                excess, index = compared.excess(rounding(subject, first, wrong.found), alpha)
            unknown = "" if compared.row.name in wrong.one else unknown_before(subject, first, compared.row.name, wrong.found)
            if excess > 1.0 and unknown and compared.agrees_in_half_of_the_digits(format_named(subject.dtype)):
                undecided = undecided or _undecided(compared.place(index), unknown)
                continue
        if excess > 1.0:
            place = compared.place(index)
            raise LawBroken(f"{place}: {beyond_rounding(excess)}", (first, second), place, excess)
        worst = max(worst, excess)
    if undecided:
        raise Unsupported(undecided)
    return worst


def _undecided(place: Location, unknown: str) -> str:
    """Return why a difference beyond the limit of a correct step is undecided."""
    return (
        f"not decided: {unknown} is wrong in both runs (see the check `values`), and no mistake of the catalogue explains it, "
        f"so that it is not known how far rounding separates two runs of it: {place}"
    )


def require_identity(subject: Subject, first: Run, second: Run, alike: RowPairs) -> float:
    """Return 0; raise `LawBroken` at the first activation that is not bitwise equal in both runs."""
    for compared in _compared(subject, first, second, alike):
        place = compared.place(int(np.abs(compared.difference).argmax()))
        raise LawBroken(f"{place}: not the same bits", (first, second), place)
    return 0.0


@dataclass(frozen=True)
class _Compared:
    """One activation of two runs, restricted to the elements that both computed."""

    row: Activation
    first: Array
    second: Array
    judged: Mask
    alike: RowPairs
    length: int

    @property
    def difference(self) -> Array:
        return np.where(self.judged, self.first - self.second, 0.0)

    def agrees_in_half_of_the_digits(self, storage: Format) -> bool:
        """Return whether no difference exceeds √u times the largest result."""
        largest = max(float(np.abs(x).max(initial=0.0, where=self.judged)) for x in (self.first, self.second))
        return float(np.abs(self.difference).max(initial=0.0)) <= math.sqrt(storage.unit_roundoff) * largest

    def place(self, at: int) -> Location:
        """Return the location in each run of the element with a flat index."""
        index = np.unravel_index(at, self.difference.shape)
        row, *rest = (int(i) for i in index)
        values = (float(self.first[index]), float(self.second[index]))
        return Location(self.row.name, (self.alike.first[row], *rest), (self.alike.second[row], *rest), values)

    def excess(self, rounding: Mapping[str, Accumulated], alpha: float) -> tuple[float, int]:
        """Return the larger of RMS and largest error, each divided by its limit, and the flat index of the worst element.

        The ratio is infinite if elements differ that must be equal. Only whole sentences are independent, since the
        error accumulated at one token propagates to the others.
        """
        difference, noise = np.abs(self.difference), rounding[self.row.name]
        sigma = np.sqrt(2.0 * self._like(noise.variance, noise.variance.shape))
        beyond = np.maximum(difference - 2.0 * self._like(noise.bound, noise.variance.shape), 0.0)
        scaled = np.divide(beyond, sigma, out=np.where(difference > 0.0, np.inf, 0.0), where=sigma > 0.0)
        rows = sums_of_independent_rows(self.row, self.judged, coupled=True)
        rms = float(np.sqrt((scaled[self.judged] ** 2).mean())) / rms_threshold(rows, alpha)
        largest = float(scaled.max()) / max_threshold(int(self.judged.sum()), alpha)
        return max(rms, largest), int(scaled.argmax())

    def _like(self, value: Array | float, shape: tuple[int, ...]) -> Array:
        """Return the compared elements of a value that has the shape of the first run's activation."""
        return np.asarray(_part(self.row, np.broadcast_to(value, shape), self.alike.first, self.length))


def _compared(subject: Subject, first: Run, second: Run, alike: RowPairs) -> Iterator[_Compared]:
    """Yield every activation that both runs expose and in which they differ, except losses, which belong to no row."""
    if not first.values.keys() & second.values.keys():
        raise LawBroken("shows other activations in each of two runs, and none in both", (first, second))
    length = min(first.batch.length, second.batch.length)
    whole = list(alike.first) == list(alike.second) == list(range(first.batch.size))
    for name, row in subject.network(first.batch).table.items():
        if name not in first.values or name not in second.values or row.axes == SCALAR:
            continue
        if whole and np.array_equal(first.values[name], second.values[name]):
            continue
        a, b = (_part(row, run.values[name], rows, length) for run, rows in ((first, alike.first), (second, alike.second)))
        judged = _part(row, judged_elements(row, first.batch, first.values[name].shape), alike.first, length)
        compared = _Compared(row, a, b, judged, alike, length)
        if compared.difference.any():
            yield compared


def _part(row: Activation, value: npt.NDArray[Any], rows: Sequence[int], length: int) -> npt.NDArray[Any]:
    """Return the given rows of a value, with every token axis cut to the first `length` elements."""
    cuts = tuple(slice(length) if axis in ("position", "query", "key") else slice(None) for axis in row.axes[1:])
    return value[list(rows)][(slice(None), *cuts)]
