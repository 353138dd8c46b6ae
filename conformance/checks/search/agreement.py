"""Whether two runs of one candidate agree, where both computed the same: to within rounding, or bit for bit.

No reference says what is right here. Two correct runs of the same numbers may still differ, since kernels sum in another order at
another size: each is off by what rounding has accumulated since the token ids, at random, so that of the difference d of two runs

    max(|d| − 2b, 0) / (√2 σ)

is judged, σ the accumulated sigma under the widest arithmetic that is legal, b the last step's deterministic bound. What no
rounding enters, a look-up, must be the same.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from conformance.checks.search.identity_key import IdentityKey
from conformance.checks.search.subject import Subject
from conformance.judge.accumulated import Accumulated, accumulated
from conformance.judge.selection import Mask, judged_elements
from conformance.judge.statistics import max_threshold, rms_threshold, share
from conformance.model.activation import SCALAR, Activation
from conformance.model.batch import Batch
from conformance.numerics.arithmetic import hypotheses
from conformance.numerics.formats import Array
from conformance.results.law_broken import LawBroken, Location, Run


@dataclass(frozen=True)
class RowPairs:
    """Rows of two runs that hold the same texts, by number and in the same order."""

    first: Sequence[int]
    second: Sequence[int]


def require_agreement(subject: Subject, first: Run, second: Run, alike: RowPairs) -> float:
    """The largest error over its limit, of all activations that the runs show.

    Both runs are looked at up to the length of the shorter.

    Raises:
        LawBroken: at the first activation, in the order of computation, that is beyond its limit.
    """
    alpha = share(2 * subject.tests * max(len(first.values), 1))
    worst = 0.0
    for compared in _compared(subject, first, second, alike):
        # What is the same needs no sigma, which costs more than the run.
        noise = _noise(IdentityKey(subject), IdentityKey(first.batch))
        excess, index = compared.excess(noise[compared.row.name], alpha)
        if excess > 1.0:
            place = compared.place(index)
            much = "nothing may differ there" if np.isinf(excess) else f"{excess:.3g} times what rounding may make of it"
            raise LawBroken(f"{place}: {much}", (first, second), place, excess)
        worst = max(worst, excess)
    return worst


@lru_cache(maxsize=1)
def _noise(subject: IdentityKey[Subject], batch: IdentityKey[Batch]) -> Mapping[str, Accumulated]:
    """Kept for the next comparison with the same batch."""
    asked = subject.value
    return accumulated(asked.network(batch.value), hypotheses(asked.dtype, asked.device, asked.functions)[-1].arithmetic)


def require_identity(subject: Subject, first: Run, second: Run, alike: RowPairs) -> float:
    """0; raises `LawBroken` at the first activation that is not the same to the last bit."""
    for compared in _compared(subject, first, second, alike):
        place = compared.place(int(np.abs(compared.difference).argmax()))
        raise LawBroken(f"{place}: not the same bits", (first, second), place)
    return 0.0


@dataclass(frozen=True)
class _Compared:
    """One activation of two runs, where both computed the same."""

    row: Activation
    first: Array
    second: Array
    judged: Mask
    alike: RowPairs
    length: int

    @property
    def difference(self) -> Array:
        return np.where(self.judged, self.first - self.second, 0.0)

    def place(self, at: int) -> Location:
        """Where the element of that number is in each run."""
        index = np.unravel_index(at, self.difference.shape)
        row, *rest = (int(i) for i in index)
        values = (float(self.first[index]), float(self.second[index]))
        return Location(self.row.name, (self.alike.first[row], *rest), (self.alike.second[row], *rest), values)

    def excess(self, noise: Accumulated, alpha: float) -> tuple[float, int]:
        """The larger of RMS and largest error, each over its limit, and which element is worst.

        Infinite where nothing may differ and something does. Only whole sentences are independent, since what has accumulated at
        one token reaches the others.
        """
        difference = np.abs(self.difference)
        sigma = np.sqrt(2.0 * self._like(noise.variance, noise.variance.shape))
        beyond = np.maximum(difference - 2.0 * self._like(noise.bound, noise.variance.shape), 0.0)
        scaled = np.divide(beyond, sigma, out=np.where(difference > 0.0, np.inf, 0.0), where=sigma > 0.0)
        rms = float(np.sqrt((scaled[self.judged] ** 2).mean())) / rms_threshold(len(self.alike.first), alpha)
        largest = float(scaled.max()) / max_threshold(int(self.judged.sum()), alpha)
        return max(rms, largest), int(scaled.argmax())

    def _like(self, value: Array | float, shape: tuple[int, ...]) -> Array:
        """What belongs to the first run, at the elements that are compared."""
        return np.asarray(_part(self.row, np.broadcast_to(value, shape), self.alike.first, self.length))


def _compared(subject: Subject, first: Run, second: Run, alike: RowPairs) -> Iterator[_Compared]:
    """Every activation that both show and that differs, but for the losses, which are of no row."""
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
    """Those rows, and of every axis of tokens the first `length`."""
    cuts = tuple(slice(length) if axis in ("position", "query", "key") else slice(None) for axis in row.axes[1:])
    return value[list(rows)][(slice(None), *cuts)]
