"""A function of one number, fitted to samples by pieces: polynomials, with a jump or a kink wherever one is needed.

How unlikely a fit is where the samples have nothing to do with their argument: a residual e without a preferred direction among n
samples leaves of its energy Σ e², once p terms are fitted, a share x that is Beta(a, b), a = (n − p)/2, b = p/2, and so

    P(share ≤ x) ≤ x^a / (a B(a, b))        for b ≥ 1.

Each piece of a curve is such a fit. By this, u = −ln(x^a / (a B(a, b))) exceeds any value with at most the probability that an
exponential variable of mean 1 does, and the sum of u over K pieces with at most that of a Gamma(K) variable. The ends of the K
pieces among N samples can be chosen in C(N − 1, K − 1) ways, and each resolution and degree that is tried counts:

    chance ≤ tries · C(N − 1, K − 1) · P(Gamma(K) ≥ Σ u).

Where few samples of a piece carry its energy, n counts only these: 3 (Σ e²)²/Σ e⁴, which is n of a normal e. Of the curves that are
tried and unlikely by chance it is the one with fewest numbers that leaves no more than the best, but by chance: F of the two mean
squares.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.polynomial import legendre
from scipy.special import betaln, fdtri, gammaincc, gammaln

from conformance.numerics.formats import Array

DEGREES = (3, 7)  # a table's cells take few numbers each, a smooth function few pieces
MOST = 2**16  # samples of one fit; of more, as many evenly, so that it takes seconds
FINER = 2.0  # by how much each resolution is finer than the one before
RESOLUTIONS = 52  # of float64


@dataclass(frozen=True, eq=False)
class _Piece:
    """A polynomial on [first, last]: Legendre coefficients, and the inverse of AᵀA of the fit that gave them."""

    first: float
    last: float
    coefficients: Array
    inverse: Array

    def basis(self, t: Array) -> Array:
        """(T, C): its terms at t."""
        return _basis(t, self.first, self.last, len(self.coefficients))


@dataclass(frozen=True, eq=False)
class Curve:
    """The fitted function.

    Attributes:
        pieces: in order; each reaches halfway to the next.
        rms: of what it leaves, in the samples' scale, over the degrees of freedom.
        chance: ln of the probability, at most, of as good a fit to what is no function of the argument.
    """

    pieces: tuple[_Piece, ...]
    rms: float
    chance: float

    @property
    def free(self) -> int:
        """How many numbers: coefficients, and ends between pieces."""
        return sum(len(p.coefficients) for p in self.pieces) + len(self.pieces) - 1

    def __call__(self, t: Array) -> tuple[Array, Array]:
        """The function at t, and the standard deviation of that."""
        which = np.searchsorted([(a.last + b.first) / 2.0 for a, b in pairwise(self.pieces)], t)
        value, deviation = np.zeros(t.shape), np.zeros(t.shape)
        for i in np.unique(which):
            here, piece = which == i, self.pieces[i]
            basis = piece.basis(np.clip(t[here], piece.first, piece.last))
            value[here] = basis @ piece.coefficients
            deviation[here] = self.rms * np.sqrt(np.maximum(((basis @ piece.inverse) * basis).sum(-1), 0.0))
        return value, deviation


def curve(t: Array, y: Array, scale: Array, chance: float, room: float = math.inf) -> Curve | None:
    """The function of t that y is; None where it is none, at that probability of a false alarm.

    Args:
        t: (N,) arguments, ascending, each once.
        y: (N,) values.
        scale: (N,) standard deviations of y, up to a common factor.
        chance: of a curve through what is no function of t.
        room: the most, in scales, that it may leave of a sample; where no curve can, none is fitted.
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
    best = min(found, key=lambda c: c.rms)
    return min((c for c in found if _as_good(c, best, len(t), chance)), key=lambda c: c.free)


def _as_good(one: Curve, best: Curve, samples: int, chance: float) -> bool:
    """Whether it leaves no more than the best does, but by chance."""
    degrees = samples - one.free, samples - best.free
    return one is best or (min(degrees) > 0 and one.rms**2 <= best.rms**2 / fdtri(*reversed(degrees), chance))


def _curves(t: Array, y: Array, scale: Array, largest: float, room: float) -> Iterator[Curve]:
    """Of each degree that can leave as little as `room`, ever finer ones, as long as the samples determine their pieces."""
    for degree in DEGREES:
        if not may_be_pieces(t, y, scale, room, degree + 1):
            continue
        for resolution in range(RESOLUTIONS):
            spans = _spans(t, y, scale, largest * FINER**-resolution, degree + 1)
            if spans is None:
                break
            yield _of_spans(spans, t, y, scale, degree + 1)


def _of_spans(spans: list[slice], t: Array, y: Array, scale: Array, terms: int) -> Curve:
    pieces, shown, square, used = [], [], 0.0, 0
    for span in spans:
        piece, left = _fitted(t[span], y[span], scale[span], terms)
        pieces.append(piece)
        square += float((left**2).sum())
        used += len(piece.coefficients)
        shown.append(-fit_chance(y[span] / scale[span], left, len(piece.coefficients)))
    evidence = [u for u in shown if u > 0.0]
    chance = math.log(len(DEGREES) * RESOLUTIONS) + _ways(len(t) - 1, len(spans) - 1) + _gamma_tail(len(evidence), sum(evidence))
    used += len(spans) - 1  # the ends are fitted as well
    return Curve(tuple(pieces), math.sqrt(square / (len(t) - used)) if len(t) > used else math.inf, min(chance, 0.0))


def fit_chance(e: Array, left: Array, numbers: int) -> float:
    """At most ln P that so many given terms leave no more energy than `left` has, were e nothing of theirs."""
    before = float((e**2).sum())
    if before == 0.0:
        return 0.0
    a, b = (carrying(e) - numbers) / 2.0, max(numbers, 2) / 2.0
    if a <= 0.0:
        return 0.0
    share = max(float((left**2).sum()) / before, np.finfo(np.float64).eps ** 2)  # float64 leaves as much of any exact fit
    return min(a * math.log(share) - math.log(a) - float(betaln(a, b)), 0.0)


def carrying(e: Array) -> float:
    """How many samples carry the energy of e: 3 (Σ e²)²/Σ e⁴, at most all."""
    e = e / max(float(np.abs(e).max()), np.finfo(np.float64).tiny)
    fourth = float((e**4).sum())
    return min(float(e.size), 3.0 * float((e**2).sum()) ** 2 / fourth) if fourth else float(e.size)


def _gamma_tail(shape: int, u: float) -> float:
    """At most ln P(Gamma(shape) ≥ u)."""
    if shape == 0:
        return 0.0
    tail = float(gammaincc(shape, u))
    # e^-u u^(K-1)/Γ(K) · 1/(1 − (K − 1)/u), a geometric series, where the function underflows.
    return math.log(tail) if tail > 0.0 else -u + (shape - 1) * math.log(u) - float(gammaln(shape)) - math.log1p(-(shape - 1) / u)


def _ways(n: int, k: int) -> float:
    """ln C(n, k)."""
    return float(gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1))


def may_be_pieces(t: Array, y: Array, scale: Array, room: float, terms: int) -> bool:
    """Whether so many runs of samples are polynomials that K = N/(2 p) pieces of p terms could leave at most `room` everywhere.

    N samples have N/(p + 1) runs of p + 1, and K − 1 ends of pieces lie in as many of them at most. The others are within one
    polynomial each, of which least squares leaves e with |e| ≤ √(p + 1) room: the part along the one direction that the p terms
    do not span.
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


def _spans(t: Array, y: Array, scale: Array, room: float, terms: int) -> list[slice] | None:
    """Each as long as its polynomial leaves nothing beyond `room`; None where they take more numbers than half of the samples."""
    found: list[slice] = []
    start = 0
    while start < len(t):
        if found and 2 * terms * (len(found) + 1) > len(t):
            return None
        stop = start + _longest(t[start:], y[start:], scale[start:], room, terms)
        found.append(slice(start, stop))
        start = stop
    return found


def _longest(t: Array, y: Array, scale: Array, room: float, terms: int) -> int:
    """How many samples, from the first, one polynomial fits: their number doubled until it does not, then halved in between."""
    good, bad, size = min(terms, len(t)), len(t) + 1, min(2 * terms, len(t))
    while bad - good > 1:
        if np.abs(_fitted(t[:size], y[:size], scale[:size], terms)[1]).max() <= room:
            good = size
        else:
            bad = size
        size = min(2 * size, len(t)) if bad > len(t) else (good + bad) // 2
    return good


def _fitted(t: Array, y: Array, scale: Array, terms: int) -> tuple[_Piece, Array]:
    """Weighted least squares, and what it leaves of y / scale."""
    first, last = float(t[0]), float(t[-1])
    basis, target = _basis(t, first, last, min(terms, len(t))) / scale[:, None], y / scale
    u, s, vt = np.linalg.svd(basis, full_matrices=False)
    inverse = vt.T / np.where(s > s[0] * len(t) * np.finfo(np.float64).eps, s, np.inf)
    found = inverse @ (u.T @ target)
    return _Piece(first, last, found, inverse @ inverse.T), target - basis @ found


def _basis(t: Array, first: float, last: float, terms: int) -> Array:
    width = last - first
    return np.asarray(legendre.legvander(2.0 * (t - first) / width - 1.0 if width > 0.0 else np.zeros_like(t), terms - 1))
