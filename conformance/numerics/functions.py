"""Library functions: their true values, and how an implementation's errors are measured and bounded.

An implementation of f is described by a bound on its error that is absolute and relative at once,

    |computed − f(x)| ≤ absolute · scale(x) + ulp · ULP(f(x))

ULP(y) the spacing of the format at y, scale(x) = 1; in GELU = x/2 · (1 + g(x)) scale(x) = |x|/2, so that `absolute` is an error of
the inner function g, erf or tanh. Neither form alone suffices: an approximation of erf with an absolute error of 1e-7 is thousands
of ULP off where 1 + erf cancels, and exp has results of any size.

Of all pairs (absolute, ulp) that cover every measured error, `Errors.bound` takes the one whose mean over results uniform on [0, 1]
is smallest: a linear program in two unknowns. ULP is u · 2^-k on [2^-(k+1), 2^-k), u = 2^-p, so that its mean is

    Σ_k 2^-(k+1) · u · 2^-k = 2u/3

Functions without a zero (exp, rsqrt) have `absolute` = 0.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import erf, erfc, expit

from conformance.numerics.formats import Array, Format

Real = npt.NDArray[np.floating[Any]]

BINS = 8  # of ULP/scale, an octave: within a bin the smallest stands for all, so that a bound is at most 2^(1/8) too large


def _one(x: Array) -> Array:
    return np.ones_like(x)


def _half(x: Array) -> Array:
    return np.abs(x) / 2.0


def gelu_argument(x: Array) -> Array:
    """t = √(2/π) (x + 0.044715 x³): the argument of tanh in GELU's second form (Hendrycks and Gimpel 2016, section 2)."""
    return np.asarray(np.sqrt(2.0 / np.pi) * (x + 0.044715 * x**3))


@dataclass(frozen=True)
class Function:
    """A function of one real number.

    Attributes:
        name: as in the table; torch's name where it has one.
        true: its value in float64, accurate to a few units of float64 without cancellation.
        lower, upper: beyond these a float32 result is a constant, 0, the argument itself or infinite.
        scale: what an absolute error is a multiple of.
        has_zero: whether an absolute error is part of the bound; else the relative error is bounded alone.
        ulp: the relative part of the bound where it is given and the absolute part alone is fitted. In GELU it is 1 ULP for the
            rounding of 1 + g and 1/2 for that of the product, which sigma counts as random.
    """

    name: str
    true: Callable[[Array], Array]
    lower: float
    upper: float
    scale: Callable[[Array], Array] = _one
    has_zero: bool = True
    ulp: float | None = None


FUNCTIONS: Mapping[str, Function] = {
    f.name: f
    for f in (
        Function("erf", lambda x: np.asarray(erf(x)), -5.0, 5.0),
        Function("gelu", lambda x: np.asarray(x / 2.0 * erfc(-x * math.sqrt(0.5))), -14.0, 14.0, _half, ulp=1.5),
        Function("gelu_tanh", lambda x: np.asarray(x * expit(2.0 * gelu_argument(x))), -14.0, 14.0, _half, ulp=1.5),
        Function("exp", np.exp, -87.0, 88.5, has_zero=False),
        Function("tanh", np.tanh, -10.0, 10.0),
        Function("log", np.log, 0.0, math.inf),
        Function("rsqrt", lambda x: np.asarray(1.0 / np.sqrt(x)), 0.0, math.inf, has_zero=False),
        Function("sigmoid", lambda x: np.asarray(expit(x)), -87.0, 30.0),
    )
}


@dataclass(frozen=True)
class Bound:
    """|error| ≤ absolute · scale + ulp · ULP of the result."""

    absolute: float
    ulp: float

    def contains(self, other: "Bound") -> bool:
        """Whether it is at least as large at every result."""
        return self.absolute >= other.absolute and self.ulp >= other.ulp


@dataclass(frozen=True)
class Largest:
    """A largest error and the argument at which it is made."""

    value: float = 0.0
    at: float = 0.0

    def or_larger(self, other: "Largest") -> "Largest":
        """The larger of two."""
        return self if self.value >= other.value else other


@dataclass(frozen=True)
class Errors:
    """What was measured of one implementation.

    Attributes:
        absolute: the largest error over the scale.
        ulp: the largest error in ULP of a result that is a normal number.
        frontier: by bin of ULP/scale, the largest error over the scale.
        points: how many arguments were looked at.
    """

    absolute: Largest = field(default_factory=Largest)
    ulp: Largest = field(default_factory=Largest)
    frontier: Mapping[int, float] = field(default_factory=dict)
    points: int = 0

    def __add__(self, other: "Errors") -> "Errors":
        """Of both sets of arguments."""
        bins = self.frontier.keys() | other.frontier.keys()
        return Errors(
            self.absolute.or_larger(other.absolute),
            self.ulp.or_larger(other.ulp),
            {b: max(self.frontier.get(b, 0.0), other.frontier.get(b, 0.0)) for b in bins},
            self.points + other.points,
        )

    def exceed(self, bounds: Iterable[Bound]) -> bool:
        """Whether an error is larger than each of these allows."""
        known = tuple(bounds)
        return any(
            error > max(b.absolute + b.ulp * 2.0 ** (number / BINS) for b in known) for number, error in self.frontier.items()
        )

    def bound(self, function: Function, evaluated: Format) -> Bound:
        """The pair that covers them with the smallest mean."""
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
        unit = evaluated.unit_roundoff  # of everything below, so that the solver sees numbers near 1
        left = np.stack([np.ones_like(spacing), spacing / unit], 1)
        size = left.max(1, keepdims=True)  # of a row, to which it is brought: spacings range over 80 decades
        from scipy.optimize import linprog  # slow to import, and wanted where a machine is measured alone

        solved = linprog([1.0, 2.0 / 3.0], -left / size, -error / unit / size[:, 0], bounds=[(0.0, None)] * 2)
        absolute, ulp = float(solved.x[0]) * unit, float(solved.x[1])
        short = error - absolute - ulp * spacing  # by the solver's own tolerance
        return Bound(absolute + float(short.max(initial=0.0)), ulp)


def measured(function: Function, x: Real, computed: Real, storage: Format, block: int = 1) -> Errors:
    """The errors of results `computed` at arguments x, stored in that format, against the function's value in float64.

    Where x is in order, `block` neighbours are summed up as one: their largest error beside their smallest ULP.
    """
    wide = np.asarray(x, np.float64)
    with np.errstate(all="ignore"):
        y = function.true(wide)
        error = np.abs(np.asarray(computed, np.float64) - y)
    return summarized(function, wide, y, error, storage, block)


def summarized(function: Function, x: Array, y: Array, error: Array, storage: Format, block: int = 1) -> Errors:
    """The largest of these errors, at arguments x with results y; those that are NaN count as infinite.

    Left out are results below the format's smallest normal number, which may be flushed to zero, and those that overflow.
    """
    scale = function.scale(x)
    keep = (np.abs(y) >= storage.smallest_normal) & (np.abs(y) <= storage.largest) & (scale > 0.0)
    if not keep.any():
        return Errors(points=x.size)
    error, scale = np.where(np.isnan(error), np.inf, error), np.where(keep, scale, 1.0)
    spacing = storage.ulp(np.where(keep, y, 1.0))
    scaled, relative = (np.where(keep, error / unit, 0.0) for unit in (scale, spacing))
    i, j = int(scaled.argmax()), int(relative.argmax())
    return Errors(
        Largest(float(scaled[i]), float(x[i])),
        Largest(float(relative[j]), float(x[j])),
        _frontier(np.where(keep, spacing / scale, np.inf), scaled, block),
        x.size,
    )


def _frontier(spacing: Array, scaled: Array, block: int) -> dict[int, float]:
    """By bin of the spacing, the largest error."""
    starts = np.arange(0, spacing.size, block)
    spacing, scaled = np.minimum.reduceat(spacing, starts), np.maximum.reduceat(scaled, starts)
    finite = np.isfinite(spacing)
    bins, which = np.unique(np.floor(np.log2(spacing[finite]) * BINS).astype(int), return_inverse=True)
    largest = np.zeros(bins.size)
    np.maximum.at(largest, which, scaled[finite])
    return {int(b): float(e) for b, e in zip(bins, largest, strict=True)}


def relative_from(errors: Errors, bound: Bound, storage: Format) -> float:
    """The least result from which on the ULP part of a bound holds alone; 0 where it always does."""
    spacings = {b: 2.0 ** (b / BINS) for b in errors.frontier}
    short = [spacings[b] for b, error in errors.frontier.items() if error > bound.ulp * spacings[b]]
    return float(max(short, default=0.0) * 2.0 ** (1.0 / BINS) / (2.0 * storage.unit_roundoff))
