"""Comparison of two runs of one candidate, on the elements that both computed: to within rounding, or bit for bit.

This comparison uses no reference values. Two correct runs on the same inputs may differ, since kernels sum in a different order at
a different size. Each run has a random error that rounding has accumulated from the token ids on. For the difference d of two runs,
the judged quantity is therefore

    max(|d| − 2b, 0) / (√2 σ)

where σ is the accumulated sigma under the widest legal arithmetic, and b is the deterministic bound of the last step, both at the
candidate's own values of the first run. Results that involve no rounding, such as a table look-up, must be equal.

The forward pass may be wrong, which is not the subject of such a comparison. A difference beyond the limit is therefore compared
with the limit for the equation that the candidate has instead (`search.rounding_of_runs`). If that is unknown, a difference of at
most √u of the largest result is undecided at that step, and at the steps that are computed from it and right in both runs, to
which it is handed on. With a larger difference, an equation would lose more than half of its digits to rounding: it would have no
result.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from conformance.checks.search.rounding_of_runs import rounding, unknown_before, wrong_steps
from conformance.checks.search.subject import Subject
from conformance.errors import Unsupported
from conformance.judge.judged_elements import judged_elements, sums_of_independent_rows
from conformance.judge.propagated_sigma import Accumulated
from conformance.model.activation import SCALAR, Activation
from conformance.numerics.formats import Array, Format, Mask, format_named
from conformance.numerics.thresholds import max_threshold, rms_threshold, sidak_share
from conformance.results.law_broken import LawBroken, Location, Run, beyond_rounding


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
