"""Piecewise polynomial fits of a function of one variable to samples, with jumps and kinks where they are needed.

The probability of a good fit to samples that do not depend on their argument is bounded as follows. Let the vector e of n samples
have an isotropic distribution, and let p terms be fitted to it. The residual then has a share x of the energy Σ e² that is
distributed as Beta(a, b) with a = (n − p)/2 and b = p/2. Hence

    P(share ≤ x) ≤ x^a / (a B(a, b))        for b ≥ 1.

Each piece of a curve is such a fit. By this bound, u = −ln(x^a / (a B(a, b))) is stochastically no larger than an exponential
variable of mean 1, and the sum of u over K pieces is no larger than a Gamma(K) variable. The ends of the K pieces among N samples
can be chosen in C(N − 1, K − 1) ways, and each resolution and degree that is tried counts:

    chance ≤ tries · C(N − 1, K − 1) · P(Gamma(K) ≥ Σ u).

If few samples of a piece carry its energy, n is replaced by their effective number 3 (Σ e²)²/Σ e⁴, which equals n for normal e.
Among the curves whose chance is small enough, those are preferred whose residuals are all within half a standard deviation of the
samples; finer ones, which would describe rounding errors, are not tried. Of these, the one with the fewest fitted numbers is chosen
whose mean square residual is not significantly larger than the smallest one, by an F test.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.polynomial import legendre
from scipy.linalg.lapack import dpotrf, dpotrs
from scipy.special import betaln, fdtri, gammaincc, gammaln

from conformance.numerics.arrays import as_array
from conformance.numerics.formats import Array

DEGREES = (3, 7)  # The cells of a table need few coefficients each, a smooth function few pieces.
MOST = 2**16  # The largest number of samples in a fit, which limits its time to seconds; larger sets are thinned evenly.
RESOLUTION_RATIO = 2.0  # The ratio of successive resolutions.
EPSILON = float(np.finfo(np.float64).eps)
FINEST = 0.5  # of a sample's scale: an error of that size passes, since a scale, like an ulp, is known to within a factor of 2.
RESOLUTIONS = 52  # The number of stored significand bits of float64.


@dataclass(frozen=True, eq=False)
class _Piece:
    """A polynomial on [first, last].

    Attributes:
        first, last: ends of the interval.
        coefficients: Legendre coefficients, (C,).
        inverse: the inverse of AᵀA for the design matrix A of the fit, (C, C).
    """

    first: float
    last: float
    coefficients: Array
    inverse: Array

    def basis(self, t: Array) -> Array:
        """Return the values of the C Legendre terms at T arguments, (T, C)."""
        return _basis(t, self.first, self.last, len(self.coefficients))


@dataclass(frozen=True, eq=False)
class _Trial:
    """A division of the samples into spans, each fitted by a polynomial; its pieces are computed if it is chosen.

    Attributes:
        spans: the spans in ascending order.
        terms: the number of terms of a polynomial, fewer in a span with fewer samples.
        rms, chance, free: those of the curve.
        largest: the largest absolute residual, in units of the samples' scale.
    """

    spans: Sequence[slice]
    terms: int
    rms: float
    chance: float
    free: int
    largest: float

    def curve(self, t: Array, y: Array, scale: Array) -> "Curve":
        """Return the curve, with its coefficients."""
        return Curve(tuple(_piece(t[s], y[s], scale[s], self.terms) for s in self.spans), self.rms, self.chance)


@dataclass(frozen=True, eq=False)
class Curve:
    """A fitted piecewise polynomial.

    Attributes:
        pieces: the pieces in ascending order; two pieces meet halfway between the last sample of one and the first of the next.
        rms: RMS of the residual over the degrees of freedom, in units of the samples' scale.
        chance: upper bound of ln of the probability of as good a fit to samples that are not a function of the argument.
    """

    pieces: tuple[_Piece, ...]
    rms: float
    chance: float

    @property
    def free(self) -> int:
        """The number of fitted numbers: coefficients and boundaries between pieces."""
        return sum(len(p.coefficients) for p in self.pieces) + len(self.pieces) - 1

    def __call__(self, t: Array) -> tuple[Array, Array]:
        """Return the function at t and the standard deviation of the fitted values."""
        which = np.searchsorted([(a.last + b.first) / 2.0 for a, b in pairwise(self.pieces)], t)
        value, deviation = np.zeros(t.shape), np.zeros(t.shape)
        for i in np.unique(which):
            here, piece = which == i, self.pieces[i]
            basis = piece.basis(np.clip(t[here], piece.first, piece.last))
            value[here] = basis @ piece.coefficients
            deviation[here] = self.rms * np.sqrt(np.maximum(((basis @ piece.inverse) * basis).sum(-1), 0.0))
        return value, deviation


def curve(t: Array, y: Array, scale: Array, chance: float, room: float = math.inf) -> Curve | None:
    """Return a curve that describes y as a function of t, or None if there is no significant one.

    Args:
        t: (N,) arguments, ascending, without duplicates.
        y: (N,) values.
        scale: (N,) standard deviations of y.
        chance: largest probability of finding a curve if y is not a function of t.
        room: largest residual of a sample, in units of its scale; degrees that cannot satisfy it and resolutions that are
            coarser than it are skipped.
    """
    if len(t) > MOST:
        kept = np.linspace(0, len(t) - 1, MOST).astype(np.int64)
        t, y, scale = t[kept], y[kept], scale[kept]
    e = np.abs(y / scale)
    if not e.any() or not np.isfinite(e).all():
        return None
    found = [c for c in _curves(t, y, scale, float(e.max()), room) if c.chance <= math.log(chance)]
    if not found:
        return None
    found = [c for c in found if c.largest <= FINEST] or found
    best = min(found, key=lambda c: c.rms)
    return min((c for c in found if _as_good(c, best, len(t), chance)), key=lambda c: c.free).curve(t, y, scale)


def _as_good(one: _Trial, best: _Trial, samples: int, chance: float) -> bool:
    """Return whether the mean square residual of `one` is not significantly larger than that of `best`."""
    degrees = samples - one.free, samples - best.free
    return one is best or (min(degrees) > 0 and one.rms**2 <= best.rms**2 / fdtri(*reversed(degrees), chance))


def _curves(t: Array, y: Array, scale: Array, largest: float, room: float) -> Iterator[_Trial]:
    """Yield curves of increasing resolution for each degree that can satisfy `room`, while the samples determine the pieces.

    The coarsest resolution is the finest that is not below `room`: spans whose residuals are within `room` satisfy it as well. The
    finest is the first that is not above `FINEST`.
    """
    coarsest = int(math.log(largest / room, RESOLUTION_RATIO)) if largest > room > 0.0 else 0
    finest = max(math.ceil(math.log(largest / FINEST, RESOLUTION_RATIO)), coarsest)
    for degree in DEGREES:
        if not may_be_pieces(t, y, scale, room, degree + 1):
            continue
        least = _least_residuals(t, y, scale, degree + 1)
        for resolution in range(min(coarsest, RESOLUTIONS), min(finest + 1, RESOLUTIONS)):
            spans = _spans(t, y, scale, largest * RESOLUTION_RATIO**-resolution, degree + 1, least)
            if spans is None:
                break
            yield _of_spans(spans, t, y, scale, degree + 1)


def _of_spans(spans: Sequence[tuple[slice, Array]], t: Array, y: Array, scale: Array, terms: int) -> _Trial:
    evidence, square, largest, free = [], 0.0, 0.0, len(spans) - 1  # The boundaries between pieces are fitted as well.
    for span, left in spans:
        numbers = min(terms, span.stop - span.start)
        free += numbers
        square += float((left**2).sum())
        largest = max(largest, float(np.abs(left).max()))
        evidence.append(-fit_chance(y[span] / scale[span], left, numbers))
    evidence = [u for u in evidence if u > 0.0]
    chance = (
        math.log(len(DEGREES) * RESOLUTIONS) + _log_binomial(len(t) - 1, len(spans) - 1) + _gamma_tail(len(evidence), sum(evidence))
    )
    rms = math.sqrt(square / (len(t) - free)) if len(t) > free else math.inf
    return _Trial([span for span, _ in spans], terms, rms, min(chance, 0.0), free, largest)


def fit_chance(e: Array, left: Array, numbers: int) -> float:
    """Return an upper bound of ln of the probability that a fit to an isotropic e leaves no more energy than `left` has.

    Args:
        e: the values that are fitted.
        left: the residual of the fit.
        numbers: the number of fitted terms.
    """
    before = float((e**2).sum())
    if before == 0.0:
        return 0.0
    a, b = (effective_samples(e) - numbers) / 2.0, max(numbers, 2) / 2.0
    if a <= 0.0:
        return 0.0
    share = max(float((left**2).sum()) / before, np.finfo(np.float64).eps ** 2)  # The residual of an exact fit in float64.
    return min(a * math.log(share) - math.log(a) - float(betaln(a, b)), 0.0)


def effective_samples(e: Array) -> float:
    """Return the effective number of samples that carry the energy of e: 3 (Σ e²)²/Σ e⁴, at most the size of e."""
    e = e / max(float(np.abs(e).max()), np.finfo(np.float64).tiny)
    fourth = float(np.square(e**2).sum())
    return min(float(e.size), 3.0 * float((e**2).sum()) ** 2 / fourth) if fourth else float(e.size)


def _gamma_tail(shape: int, u: float) -> float:
    """Return an upper bound of ln P(Gamma(shape) ≥ u)."""
    if shape == 0:
        return 0.0
    tail = float(gammaincc(shape, u))
    # If the function underflows: e^-u u^(K-1)/Γ(K) · 1/(1 − (K − 1)/u), the bound by a geometric series.
    return math.log(tail) if tail > 0.0 else -u + (shape - 1) * math.log(u) - float(gammaln(shape)) - math.log1p(-(shape - 1) / u)


def _log_binomial(n: int, k: int) -> float:
    """Return ln C(n, k)."""
    return float(gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1))


def may_be_pieces(t: Array, y: Array, scale: Array, room: float, terms: int) -> bool:
    """Return whether K = N/(2 p) pieces of p terms could have residuals of at most `room` everywhere, by a necessary condition.

    N samples consist of N/(p + 1) runs of p + 1 samples. At most K − 1 of these runs contain a boundary between pieces. Each other
    run lies within one polynomial, so its component e along the one direction that the p terms do not span, which is the residual
    of least squares, satisfies |e| ≤ √(p + 1) room.
    """
    size, ends = terms + 1, max(len(t) // (2 * terms), 1) - 1
    t, y, scale = (a[: len(t) // size * size].reshape(-1, size) for a in (t, y, scale))
    if len(t) <= ends or math.isinf(room):
        return True
    width = np.maximum(t[:, -1:] - t[:, :1], np.finfo(np.float64).tiny)
    basis = legendre.legvander(2.0 * (t - t[:, :1]) / width - 1.0, terms - 1) / scale[:, :, None]
    unspanned = np.linalg.svd(basis)[0][:, :, -1]
    left = np.abs((unspanned * (y / scale)).sum(1))
    return bool((left <= math.sqrt(size) * room).sum() >= len(t) - ends)


def _least_residuals(t: Array, y: Array, scale: Array, terms: int) -> list[Array]:
    """Return, for p terms and strides d = 1, 2, 4, …, a lower bound of the largest residual on the samples i, i + d, …, i + p d.

    The divided difference of p + 1 samples, Σ w_j y_j, vanishes for each polynomial of p terms. If all residuals are at most r in
    units of the scale, it is therefore at most r Σ |w_j| scale_j. Its rounding error is subtracted: 2 p + 1 roundings in a weight,
    one in a product, and at most p in the sum.
    """
    found = []
    stride = 1
    while terms * stride < len(t):
        at = [slice(j * stride, len(t) - (terms - j) * stride) for j in range(terms + 1)]
        width = t[at[-1]] - t[at[0]]
        near = [t[here] / width for here in at]  # Differences in units of the width, whose products do not overflow.
        value, rounding, unit = np.zeros(width.shape), np.zeros(width.shape), np.zeros(width.shape)
        with np.errstate(divide="ignore", invalid="ignore"):  # of equal inputs
            for j, here in enumerate(at):
                weight = 1.0 / math.prod((near[j] - other for i, other in enumerate(near) if i != j), start=np.ones(width.shape))
                value += weight * y[here]
                rounding += np.abs(weight * y[here])
                unit += np.abs(weight) * scale[here]
            least = (np.abs(value) - (3 * terms + 2) * EPSILON * rounding) / unit
        found.append(np.where(np.isfinite(least), least, 0.0))
        stride *= 2
    return found


def _certain_stops(least: Sequence[Array], room: float, samples: int, terms: int) -> list[int]:
    """Return, for each first sample of a span, the smallest end at which no polynomial fits the span to within `room`."""
    ends = np.full(samples, samples + 1)
    for power, bounds in enumerate(least):
        reach = terms * 2**power + 1
        here = ends[: len(bounds)]
        np.minimum(here, np.where(bounds > room, np.arange(reach, reach + len(bounds)), samples + 1), out=here)
    return np.minimum.accumulate(ends[::-1])[::-1].tolist()  # type: ignore[no-any-return]


def _spans(t: Array, y: Array, scale: Array, room: float, terms: int, least: Sequence[Array]) -> list[tuple[slice, Array]] | None:
    """Return the longest spans of samples that polynomials fit to within `room`, with their residuals.

    None is returned if the polynomials have more coefficients than half the number of samples.
    """
    stops, most = _certain_stops(least, room, len(t), terms), max(len(t) // (2 * terms), 1)
    fewest = start = 0
    while start < len(t):  # Each span ends before its certain stop, so at least as many are needed.
        start, fewest = stops[start] - 1, fewest + 1
    if fewest > most:
        return None
    found: list[tuple[slice, Array]] = []
    start = 0
    while start < len(t):
        if len(found) == most:
            return None
        size, left = _longest(t[start:], y[start:], scale[start:], room, terms, stops[start] - start)
        found.append((slice(start, start + size), left))
        start += size
    return found


def _longest(t: Array, y: Array, scale: Array, room: float, terms: int, stop: int) -> tuple[int, Array]:
    """Return the number of samples, from the first, that one polynomial fits to within `room`, by doubling and then bisection.

    Its residual is returned as well. No polynomial fits `stop` samples or more.
    """
    good, bad, size = min(terms, len(t)), len(t) + 1, min(2 * terms, len(t))
    best = np.zeros(good)  # As many terms as samples leave no residual.
    while bad - good > 1:
        left = _residual(t[:size], y[:size], scale[:size], terms) if size < stop else None
        if left is not None and max(left.max(), -left.min()) <= room:
            good, best = size, left
        else:
            bad = size
        size = min(2 * size, len(t)) if bad > len(t) else (good + bad) // 2
    return good, best


def _residual(t: Array, y: Array, scale: Array, terms: int) -> Array:
    """Return the residual of a weighted least-squares fit, in units of the scale.

    The normal equations are solved for the fit and once more for what it leaves, in a basis of Chebyshev polynomials. A solution
    reduces the error of the fit by a factor q; its error after two is q². If q² is not below float64's precision, an orthogonal
    decomposition is used.
    """
    weight, basis = 1.0 / scale, np.empty((terms, len(t)))
    twice = (t - t[0]) * (4.0 / (t[-1] - t[0]))
    twice -= 2.0
    basis[0] = weight
    np.multiply(twice, 0.5 * weight, out=basis[1])
    for n in range(2, terms):
        np.multiply(twice, basis[n - 1], out=basis[n])
        basis[n] -= basis[n - 2]
    root, failed = dpotrf(basis @ basis.T)
    if not failed:
        left = weight * y
        first, _ = dpotrs(root, basis @ left)
        left -= first @ basis
        second, _ = dpotrs(root, basis @ left)
        if second @ second <= EPSILON * (first @ first):
            left -= second @ basis
            return left
    piece = _piece(t, y, scale, terms)
    return as_array((y - piece.basis(t) @ piece.coefficients) / scale)


def _piece(t: Array, y: Array, scale: Array, terms: int) -> _Piece:
    """Return the polynomial of a weighted least-squares fit."""
    first, last = float(t[0]), float(t[-1])
    basis, target = _basis(t, first, last, min(terms, len(t))) / scale[:, None], y / scale
    u, s, vt = np.linalg.svd(basis, full_matrices=False)
    inverse = vt.T / np.where(s > s[0] * len(t) * np.finfo(np.float64).eps, s, np.inf)
    return _Piece(first, last, inverse @ (u.T @ target), inverse @ inverse.T)


def _basis(t: Array, first: float, last: float, terms: int) -> Array:
    width = last - first
    return as_array(legendre.legvander(2.0 * (t - first) / width - 1.0 if width > 0.0 else np.zeros_like(t), terms - 1))
