"""The errors of an implementation of a function: how they are measured, and the smallest bound that covers them.

Among all pairs (absolute, ulp) that cover every measured error (`numerics.functions`), `MeasuredErrors.bound` selects the pair with
the smallest mean over results uniform on [0, 1], which is a linear program in two unknowns. ULP is u · 2^-k on [2^-(k+1), 2^-k),
with u = 2^-p, so its mean is

    Σ_k 2^-(k+1) · u · 2^-k = 2u/3
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from conformance.numerics.formats import Array, Format, as_array
from conformance.numerics.function_error_bounds import Bound
from conformance.numerics.functions import Function

Real = npt.NDArray[np.floating[Any]]

# Bins of ULP/scale per octave; the smallest value represents its whole bin, so a bound is at most a factor 2^(1/8) too large.
BINS = 8


@dataclass(frozen=True)
class Largest:
    """The largest error, and the argument at which it occurs."""

    value: float = 0.0
    at: float = 0.0

    def or_larger(self, other: "Largest") -> "Largest":
        """Return the larger of two errors."""
        return self if self.value >= other.value else other


@dataclass(frozen=True)
class MeasuredErrors:
    """The measured errors of one implementation.

    Attributes:
        absolute: largest error, in units of the scale.
        ulp: largest error in ULP, over results that are normal numbers.
        frontier: largest error in units of the scale, by bin of ULP/scale.
        points: number of arguments evaluated.
    """

    absolute: Largest = field(default_factory=Largest)
    ulp: Largest = field(default_factory=Largest)
    frontier: Mapping[int, float] = field(default_factory=dict)
    points: int = 0

    def __add__(self, other: "MeasuredErrors") -> "MeasuredErrors":
        """Return the errors over the arguments of both operands."""
        bins = self.frontier.keys() | other.frontier.keys()
        return MeasuredErrors(
            self.absolute.or_larger(other.absolute),
            self.ulp.or_larger(other.ulp),
            {b: max(self.frontier.get(b, 0.0), other.frontier.get(b, 0.0)) for b in bins},
            self.points + other.points,
        )

    def exceed(self, bounds: Iterable[Bound]) -> bool:
        """Return whether some error is larger than every one of these bounds allows."""
        known = tuple(bounds)
        return any(
            error > max(b.absolute + b.ulp * 2.0 ** (number / BINS) for b in known) for number, error in self.frontier.items()
        )

    def bound(self, function: Function, evaluated: Format) -> Bound:
        """Return the pair (absolute, ulp) with the smallest mean that covers all errors; infinite if an error is not finite."""
        if not self.frontier:
            return Bound(0.0, 0.0)
        bins = sorted(self.frontier)
        spacing, error = np.exp2(np.array(bins) / BINS), np.array([self.frontier[b] for b in bins])
        if not np.isfinite(error).all():
            return Bound(math.inf, math.inf)
        if function.ulp is not None:
            return Bound(max(float((error - function.ulp * spacing).max()), 0.0), function.ulp)
        if not function.has_zero:
            return Bound(0.0, float((error / spacing).max()))
        unit = evaluated.unit_roundoff  # The unit of all values below, so that the solver's numbers are near 1.
        left = np.stack([np.ones_like(spacing), spacing / unit], 1)
        size = left.max(1, keepdims=True)  # Rows are divided by their maximum, since spacings range over 80 decades.
        from scipy.optimize import linprog  # Slow to import, and only needed when a machine is measured.

        solved = linprog([1.0, 2.0 / 3.0], -left / size, -error / unit / size[:, 0], bounds=[(0.0, None)] * 2)
        absolute, ulp = float(solved.x[0]) * unit, float(solved.x[1])
        short = error - absolute - ulp * spacing  # Violations within the solver's tolerance.
        return Bound(absolute + float(short.max(initial=0.0)), ulp)


def measured(function: Function, x: Real, computed: Real, storage: Format, block: int = 1) -> MeasuredErrors:
    """Return the errors of the results `computed` at arguments x, relative to the function's value in float64.

    Args:
        function: the function that was computed.
        x: arguments.
        computed: results of the implementation.
        storage: format in which the results are stored.
        block: number of neighbouring arguments summarized together, by their largest error and smallest ULP; requires ordered x
            if larger than 1.
    """
    wide = as_array(x, np.float64)
    with np.errstate(all="ignore"):
        y = function.true(wide)
        error = np.abs(as_array(computed, np.float64) - y)
    return summarized(function, wide, y, error, storage, block)


def summarized(function: Function, x: Array, y: Array, error: Array, storage: Format, block: int = 1) -> MeasuredErrors:
    """Return the summary of the errors `error` at arguments x with exact results y; NaN errors count as infinite.

    Results below the format's smallest normal number, which may be flushed to zero, and results that overflow are left out.
    """
    scale = function.scale(x)
    keep = (np.abs(y) >= storage.smallest_normal) & (np.abs(y) <= storage.largest) & (scale > 0.0)
    if not keep.any():
        return MeasuredErrors(points=x.size)
    error, scale = np.where(np.isnan(error), np.inf, error), np.where(keep, scale, 1.0)
    spacing = storage.ulp(np.where(keep, y, 1.0))
    scaled, relative = (np.where(keep, error / unit, 0.0) for unit in (scale, spacing))
    i, j = int(scaled.argmax()), int(relative.argmax())
    return MeasuredErrors(
        Largest(float(scaled[i]), float(x[i])),
        Largest(float(relative[j]), float(x[j])),
        _frontier(np.where(keep, spacing / scale, np.inf), scaled, block),
        x.size,
    )


def _frontier(spacing: Array, scaled: Array, block: int) -> dict[int, float]:
    """Return the largest error for each bin of the spacing."""
    starts = np.arange(0, spacing.size, block)
    spacing, scaled = np.minimum.reduceat(spacing, starts), np.maximum.reduceat(scaled, starts)
    finite = np.isfinite(spacing)
    bins, which = np.unique(np.floor(np.log2(spacing[finite]) * BINS).astype(int), return_inverse=True)
    largest = np.zeros(bins.size)
    np.maximum.at(largest, which, scaled[finite])
    return {int(b): float(e) for b, e in zip(bins, largest, strict=True)}
