"""Comparison of two runs of one candidate, on the elements that both computed: to within rounding, or bit for bit.

This comparison uses no reference values. Two correct runs on the same inputs may differ, since kernels sum in a different order at
a different size. Each run has a random error that rounding has accumulated from the token ids on. For the difference d of two runs,
the judged quantity is therefore

    max(|d| − 2b, 0) / (√2 σ)

where σ is the accumulated sigma under the widest legal arithmetic, and b is the deterministic bound of the last step, both at the
candidate's own values of the first run. Results that involve no rounding, such as a table look-up, must be equal.

The forward pass may be wrong, which is not the subject of such a comparison. The rounding errors of a step that is wrong in both
runs, for the candidate's own inputs to it, are not known: the candidate has another equation. A difference beyond the limit is then
undecided at that step, and at those that are computed from it, if it is at most √u of the largest result. With a larger difference,
an equation would lose more than half of its digits to rounding: it would have no result. A step that is wrong in one of the runs
only has the equation of a BERT: what the candidate computes in the other depends on what must have no effect.

That a step is wrong is itself a judgement, made by the oracle on the runs of the comparison. A check that decides nothing else
therefore fails at that step: it neither passes nor is omitted.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from conformance.checks.search.subject import Subject
from conformance.judge.judged_elements import judged_elements, sums_of_independent_rows
from conformance.judge.local_error import Screened
from conformance.model.activation import SCALAR, Activation
from conformance.model.gradients import ancestors
from conformance.numerics.arithmetic import Arithmetic, hypotheses
from conformance.numerics.formats import Array, Format, Mask, format_named
from conformance.numerics.memo import IdentityKey
from conformance.numerics.thresholds import max_threshold, rms_threshold, sidak_share
from conformance.oracle import Network, Step
from conformance.oracle.propagation import accumulated_errors
from conformance.results.example import LawBroken, Location, Run, beyond_rounding


@dataclass(frozen=True)
class Accumulated:
    """Elementwise variance of the rounding errors accumulated by one correct run, and the last step's deterministic bound.

    Attributes:
        variance: variance of the accumulated error of each element.
        bound: largest deterministic error of the activation's own step; broadcasts to `variance`.
    """

    variance: Array
    bound: Array | float


def accumulated(network: Network, arithmetic: Arithmetic, captured: Mapping[str, Array] = {}) -> Mapping[str, Accumulated]:
    """Return the accumulated error of every activation; the recursion starts at the token ids and is first order, as in a segment.

    Each step's Jacobian and rounding errors are those at the candidate's own inputs to it, as far as it exposes them. If its
    forward pass is wrong, they differ by any factor from those at a correct BERT's values. The deterministic bound b of an earlier
    step enters as a variance b², because the signs of later weights are independent of that error.

    Args:
        network: the oracle's network.
        arithmetic: the arithmetic model.
        captured: the candidate's exposed activations by name; others are computed from these.
    """
    values: dict[str, Array] = {}

    def steps() -> Iterator[tuple[str, Step]]:
        for name, row in network.table.items():
            step = network.step(name, *(values[p] for p in row.parents))
            values[name] = captured.get(name, step.value)
            yield name, step

    errors = accumulated_errors(network.table, steps(), {}, lambda _, step: step.roundings(arithmetic))
    return {
        name: Accumulated(np.broadcast_to(made.variance, values[name].shape), bound)
        for name, (made, bound) in zip(network.table, errors, strict=True)
    }


# Both are cached for the next comparison with the same run.
@lru_cache(maxsize=2)
def _rounding(subject: IdentityKey[Subject], run: IdentityKey[Run]) -> Mapping[str, Accumulated]:
    """Return the accumulated rounding errors of each activation of a run under the widest legal arithmetic."""
    asked, ran = subject.value, run.value
    widest = hypotheses(asked.dtype, asked.device, asked.functions)[-1].arithmetic
    return accumulated(asked.network(ran.batch), widest, ran.values)


@lru_cache(maxsize=2)
def _wrong(subject: IdentityKey[Subject], run: IdentityKey[Run]) -> Mapping[str, Screened]:
    """Return the activations of a run that are wrong for the candidate's own inputs to them, by name."""
    return {step.activation: step for step in subject.value.screened(run.value) if step.excess > 1.0}


class Undecided(Exception):
    """A step is wrong in both of two runs, so that it is not known by how much rounding separates them.

    Attributes:
        wrong: the failure of that step, judged by the oracle on the first run.
    """

    def __init__(self, wrong: LawBroken) -> None:
        """Initialize the exception with the failure of the step."""
        super().__init__(wrong.reason)
        self.wrong = wrong


def broken_at(run: Run, step: Screened, reason: str = "") -> LawBroken:
    """Return the failure of a step of a run, judged by the oracle on the candidate's own inputs; `reason` precedes its sentence."""
    place = Location(step.activation, step.index, step.index, (step.actual, step.expected))
    where = f"{step.activation}{list(step.index)} is {step.actual:.9g}, expected {step.expected:.9g}"
    return LawBroken(f"{reason}{where}: {beyond_rounding(step.excess)}", (run,), place, step.excess)


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
        Undecided: if an activation differs whose rounding errors are not known, and no other exceeds its limit.
    """
    alpha = sidak_share(2 * subject.tests * max(len(first.values), 1))
    asked, worst, undecided = IdentityKey(subject), 0.0, None
    for compared in _compared(subject, first, second, alike):
        # Sigma, which costs more than the run, is computed only if an activation differs.
        excess, index = compared.excess(_rounding(asked, IdentityKey(first)), alpha)
        if excess <= 1.0:
            worst = max(worst, excess)
            continue
        place, name = compared.place(index), compared.row.name
        in_first, in_second = _wrong(asked, IdentityKey(first)), _wrong(asked, IdentityKey(second))
        is_wrong_once = (name in in_first) != (name in in_second)
        before = () if is_wrong_once else ancestors(subject.network(first.batch).table, name)
        unknown = next((row.name for row in before if row.name in in_first and row.name in in_second), None)
        if unknown is None or not compared.agrees_in_half_of_the_digits(format_named(subject.dtype)):
            raise LawBroken(f"{place}: {beyond_rounding(excess)}", (first, second), place, excess)
        why = f"not decided: {unknown} is wrong in both runs, so that it is not known how far rounding separates two runs of it; "
        undecided = undecided or Undecided(broken_at(first, in_first[unknown], why))
    if undecided is not None:
        raise undecided
    return worst


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
