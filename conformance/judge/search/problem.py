"""A search problem: numbers that a correct segment does not explain, and what the search needs to know of them."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from threading import local
from typing import ClassVar, Generic, TypeVar

import numpy as np

from conformance.judge.evidence import Estimate
from conformance.judge.search.placements import FaultPlacement, FaultySegment, with_faults
from conformance.judge.segment import Segment
from conformance.numerics.formats import Array, Format, as_array

# Effects up to this share of the numbers' size are taken as linear: their second order is a quarter of them, which is also the
# relative error of the estimate by `first_order_screen.PROBES` probes.
LINEAR = 1 / 4
KEPT = 3  # number of faulty segments that each thread holds


@dataclass(frozen=True, eq=False)
class FittedFaults:
    """Faults with their parameters, and the distance of the segment that has them.

    Attributes:
        placements: the faults.
        squares: Σ r²/(σ² + b²) under each pooling, (P,).
        allowed: the largest distance at which the set is extended by another fault.
    """

    placements: tuple[FaultPlacement, ...]
    squares: Array
    allowed: float = math.inf

    @property
    def pooling_index(self) -> int:
        """The index of the pooling with the smallest distance."""
        return int(self.squares.argmin())

    @property
    def distance(self) -> float:
        """The smallest Σ r²/(σ² + b²) over the poolings."""
        return float(self.squares.min())

    @property
    def keys(self) -> frozenset[object]:
        """The keys of the faults, which are equal for sets that differ only in values of parameters."""
        return frozenset(placement.key for placement in self.placements)


@dataclass(frozen=True, eq=False)
class Trial:
    """A set of faults that has been judged on the whole batch.

    Attributes:
        fit: the faults with their parameters.
        explains: whether the numbers pass as those of a correct implementation of the segment with these faults.
        loose: whether they pass only because of a much larger sigma; more faults are then tried as well.
        incomplete: whether a part of a fault's effect is left that only the errors explain that the fault allows.
        numbers: the estimate of each fault's parameter, None for a fault without one; empty if they are not estimated yet.
    """

    fit: FittedFaults
    explains: bool
    loose: bool = False
    incomplete: bool = False
    numbers: tuple[Estimate | None, ...] = ()


AnyTrial = TypeVar("AnyTrial", bound=Trial)


class Problem(ABC, Generic[AnyTrial]):
    """Numbers under P poolings, each of N elements, with the sigma by which all sets of faults are compared.

    Attributes:
        right: the correct segment; its value has P · N elements.
        storage: storage format of the candidate.
        actual: the candidate's numbers; they broadcast to the segment's value.
        weights: 1/√(σ² + b²), and 0 where an element is not judged, (P, N).
        beam: number of sets that are extended by another fault, and number of sets with parameters that are fitted.
        is_screened: whether many faults are possible and each trial costs a pass, so that a first-order screening selects them.
        rms_limit: the largest RMS of the residual, in sigma, of a segment that explains the numbers; by default that of every run.
    """

    beam: ClassVar[int] = 6
    rms_limit: float = 7.5  # see `thresholds.SEPARABLE_Z`
    is_screened: ClassVar[bool] = False

    def __init__(self, right: Segment, storage: Format, actual: Array, weights: Array) -> None:
        """Bind the correct segment to the numbers and their weights."""
        self.right, self.storage, self.actual, self.weights = right, storage, actual, weights
        self._last = local()

    def part(self, placements: Sequence[FaultPlacement]) -> "Problem[AnyTrial]":
        """Return the problem on the part of the batch where these faults leave the largest residual, or this problem."""
        return self

    @abstractmethod
    def fit_unless_refuted(self, fit: FittedFaults, whole: "Problem[AnyTrial]", *, own: bool) -> FittedFaults | None:
        """Return a set with its parameters as fitted on this part of the batch; None if the part refutes it for the whole.

        Args:
            fit: the set.
            whole: the problem on the whole batch.
            own: whether the set may be judged by its own sigma.
        """

    @abstractmethod
    def fit_on_whole(self, fit: FittedFaults) -> FittedFaults | None:
        """Return a set on the whole batch, with its parameters fitted there; None if it has no effect there."""

    @abstractmethod
    def judge(self, fit: FittedFaults, *, own: bool) -> AnyTrial:
        """Return the trial of a set on the whole batch; arguments as for `fit_unless_refuted`."""

    def tie(self, fit: FittedFaults) -> float:
        """Return by how much the distances of two sets may differ that cannot be distinguished; by default all are reported."""
        return math.inf

    def weights_of(self, fit: FittedFaults) -> Array:
        """Return the weights for the noise of the segment with these faults, (P, N)."""
        return self.weights

    def faulty(self, placements: Sequence[FaultPlacement]) -> FaultySegment:
        """Return the segment with these faults. Each thread holds its last `KEPT` segments."""
        key = tuple(placements)
        if not key:
            return FaultySegment(self.right)
        last: dict[tuple[FaultPlacement, ...], FaultySegment] = self._last.__dict__.setdefault("segments", {})
        if key not in last:
            base = last.pop(key[:-1], None)
            if base is not None:
                last[key[:-1]] = base  # moved to the end, since the first one is deleted first
            faulty = with_faults(self.right, key, self.storage, base)
            while len(last) >= KEPT:
                del last[next(iter(last))]
            last[key] = faulty
        return last[key]

    def value(self, placements: Sequence[FaultPlacement]) -> Array:
        """Return the result of the segment with these faults, (P, N)."""
        return self._flat(self.faulty(placements).segment.value)

    def residual(self, placements: Sequence[FaultPlacement]) -> Array:
        """Return the candidate's numbers minus those of the segment with these faults, (P, N)."""
        return self._flat(self.actual - self.faulty(placements).segment.value)

    def _flat(self, value: Array) -> Array:
        return as_array(value.reshape(len(self.weights), -1))

    @property
    def none(self) -> FittedFaults:
        """The set without faults."""
        return FittedFaults((), self.squares(()))

    def squares(self, placements: Sequence[FaultPlacement]) -> Array:
        """Return Σ r²/(σ² + b²) under each pooling, (P,); infinite if the segment yields a non-finite number."""
        with np.errstate(all="ignore"):
            found = np.square(self.residual(placements) * self.weights).sum(1)
        return np.where(np.isfinite(found), found, np.inf)

    @property
    def is_linear(self) -> bool:
        """Whether effects of faults add up: under some pooling the residual is at most the share `LINEAR` of the numbers."""
        left = np.square(self.residual(())).sum(1).min()
        return bool(left <= LINEAR**2 * np.square(self.actual).sum())

    def evaluate(self, placements: Sequence[FaultPlacement]) -> FittedFaults | None:
        """Return the fit of the segment with these faults; None if one of them changes nothing."""
        return FittedFaults(tuple(placements), self.squares(placements)) if self.faulty(placements).is_effective else None
