"""Tests of initial parameters: whether each is drawn from the right distribution, with independent elements.

By the probability integral transform, z = Φ⁻¹(F(x)) is standard normal if x is drawn from F. A drawn parameter is then rounded to
nearest in its format. Therefore F(x) is drawn uniformly between the values of F at the two ends of the interval that is rounded to
x, which makes the transform exact for rounded x as well (the randomized transform: Brockwell 2007; Czado et al. 2009). For n
elements

    √n mean(z) is standard normal, Σ z² is χ²_n, max |2 F(x) − 1| is at most m with probability mⁿ, and
    sup |F_n − F| has Kolmogorov's distribution.

Among n disjoint pairs of independent elements, the number of pairs with equal signs is binomial with probability 1/2. Pairs are
neighbours along each axis, and equal positions in two parameters of the same shape; copies agree too often. Rows and columns that
are equal to others, such as those of copied heads or of a transposed matrix, are found as such. P-values are exact (Kolmogorov's as
far as Simard and L'Ecuyer 2011 compute it), and two-sided by doubling the smaller tail.
"""

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import numpy as np
from scipy.special import chdtr, chdtrc, ndtr, ndtri

from conformance.faults.fitted.parameters import CUT, KEPT, USUAL_RANGE
from conformance.model.architecture import Architecture
from conformance.model.training import WORDS, constant_of
from conformance.numerics.formats import Array, Format, Mask
from conformance.numerics.thresholds import BinomialCount, sidak_share


@dataclass(frozen=True)
class Distribution:
    """A continuous distribution: its description, and its cumulative distribution function P(x ≤ t).

    Example:
        >>> normal(0.02).words, normal(0.02, cut=2.0).words, uniform(0.1).words
        ('N(0, 0.02²)', 'N(0, 0.02²) truncated at ± 0.04', 'U(−0.1, 0.1)')
        >>> normal(0.02).cdf(np.array([0.0, 0.02])).round(3).tolist()
        [0.5, 0.841]
    """

    words: str
    cdf: Callable[[Array], Array]


Mistakes = Iterator[tuple[Distribution, str]]


def normal(deviation: float, cut: float = math.inf) -> Distribution:
    """Return N(0, deviation²), truncated at ± `cut` times `deviation`."""
    low = float(ndtr(-cut))
    words = f"N(0, {deviation:.3g}²)" + (f" truncated at ± {cut * deviation:.3g}" if cut < math.inf else "")
    return Distribution(words, lambda x: np.clip((ndtr(x / deviation) - low) / (1.0 - 2.0 * low), 0.0, 1.0))


def uniform(bound: float) -> Distribution:
    """Return U(−bound, bound)."""
    return Distribution(f"U(−{bound:.3g}, {bound:.3g})", lambda x: np.clip(0.5 + x / (2.0 * bound), 0.0, 1.0))


def legal(deviation: float) -> tuple[Distribution, ...]:
    """Return the legal distributions: N(0, deviation²), the same truncated, and one with that deviation after truncation."""
    return normal(deviation), normal(deviation, CUT), normal(deviation / KEPT, CUT)


def usual_mistakes(ins: int, deviation: float) -> Mistakes:
    """Yield the distributions of wrongly drawn parameters, each with its cause in words; `ins` is the number of inputs summed."""
    for distribution in legal(USUAL_RANGE):
        yield distribution, "the config's initializer_range is ignored"
    yield uniform(1.0 / math.sqrt(ins)), "torch's default of nn.Linear"
    yield normal(1.0), "torch's default of nn.Embedding"
    yield normal(deviation), "as if it were a matrix"


_TESTS = 6  # tests of a single parameter: mean, variance, largest, shape, and independence along both axes


def wrong_initially(found: Mapping[str, Array], a: Architecture, storage: Format, total: float) -> dict[str, str]:
    """Return descriptions of the wrong initial parameters, by name; `total` is the total false-alarm probability.

    Example:
        >>> from conformance.numerics.formats import format_named
        >>> a = load_golden("tiny").checkpoint.architecture
        >>> fair = np.random.default_rng(0).normal(0.0, 0.02, (32, 32))
        >>> wrong_initially({"bert.pooler.dense.weight": fair}, a, format_named("float64"), 1e-6)
        {}
        >>> wrong_initially({"bert.pooler.dense.weight": 50.0 * fair}, a, format_named("float64"), 1e-6)
        {'bert.pooler.dense.weight': "drawn from N(0, 1²) (torch's default of nn.Embedding), expected N(0, 0.02²)"}
    """
    drawn = {name: _without_padding(name, x) for name, x in found.items() if constant_of(name) is None}
    pairs = [(one, other) for one, other in combinations(drawn, 2) if drawn[one].shape == drawn[other].shape]
    lengths = {length for x in drawn.values() for length in x.shape}
    alpha = sidak_share(_TESTS * len(drawn) + len(pairs) + len(lengths), total)
    copies = {other for one, other in pairs if np.array_equal(drawn[one], drawn[other])}
    varied = {name: x for name, x in drawn.items() if name not in copies and np.ptp(x)}
    padding = {name: len(found[name]) - len(x) for name, x in drawn.items()}
    wrong = _with_equal_lines(varied, padding, storage, alpha)
    for name, x in found.items():
        right = constant_of(name)
        if right is None:
            said = wrong.get(name) or _row_of_zeros(x, padding[name]) or _unlike_draw(drawn[name], a, storage, alpha)
        else:
            weight = found.get(name.removesuffix("bias") + "weight", x[:, None])
            said = _unlike_constant(x, right, usual_mistakes(weight.shape[-1], a.initializer_range), storage, alpha)
        if said:
            wrong[name] = said
    signs = {name: np.signbit(x) for name, x in drawn.items() if name not in wrong}
    for one, other in pairs:
        if one in signs and other in signs and other not in wrong and not _agree_by_chance(signs[one], signs[other], alpha):
            wrong[other] = f"{'a copy of' if other in copies else 'not independent of'} {one}"
    return wrong


class _Line(NamedTuple):
    """A row or a column of a parameter: its number in words, how many elements it has, and their digest."""

    name: str
    number: str
    length: int
    digest: bytes


def _lines(drawn: Mapping[str, Array], padding: Mapping[str, int]) -> Iterator[_Line]:
    """Yield the rows and the columns of the parameters that are not 0; `padding` rows precede those of a parameter."""
    for name, x in drawn.items():
        for what, lines, start in (("row", x, padding[name]), ("column", x.T, 0)):
            for number, line in enumerate(np.ascontiguousarray(lines), start):
                if line.any():
                    yield _Line(name, f"{what} {number}", line.size, hashlib.sha256(line).digest())


def _with_equal_lines(drawn: Mapping[str, Array], padding: Mapping[str, int], storage: Format, alpha: float) -> dict[str, str]:
    """Return descriptions of the parameters of which a row or column is equal to an earlier one, of any parameter.

    Two draws of a symmetric unimodal density f are rounded to the same number x with probability at most u = 2^(−p): what is
    rounded to x has the width of an ulp, at most 2^(1−p) |x|, and |x| f(x) is at most 1/2. A row and a column share one draw at
    most, so two lines of n elements are equal with probability at most u^(n−1). Lengths for which the sum of this over all pairs
    exceeds `alpha` are left out.
    """
    lines = list(_lines(drawn, padding))
    counts = Counter(line.length for line in lines)
    rare = {n for n, count in counts.items() if count * (count - 1) / 2 * storage.unit_roundoff ** (n - 1) <= alpha}
    first, found = dict[bytes, _Line](), defaultdict[str, list[str]](list)
    for line in lines:
        earlier = first.setdefault(line.digest, line)
        if earlier is not line and line.length in rare:
            of = "" if earlier.name == line.name else f" of {earlier.name}"
            found[line.name].append(f"{line.number} is {earlier.number}{of}")
    return {name: said[0] + (f", and {len(said) - 1} more are not new" if len(said) > 1 else "") for name, said in found.items()}


def _without_padding(name: str, x: Array) -> Array:
    """Return the rows that are drawn: all but row 0 of the word embeddings if that row, the padding token's, is zero."""
    return x[1:] if name == WORDS and not x[0].any() else x


def _unlike_constant(x: Array, right: float, usual: Mistakes, storage: Format, alpha: float) -> str:
    """Return a description of the error in a parameter that should be constant, or an empty string."""
    return "" if (x == right).all() else f"{_said(x, usual, storage, alpha)}, expected {right:g} everywhere"


def _row_of_zeros(x: Array, drawn_from: int) -> str:
    """Return which rows are 0 from row `drawn_from` on, unless none or all of them are; an empty string if so."""
    zeros = drawn_from + np.flatnonzero(~x[drawn_from:].any(-1))
    if not 0 < zeros.size < len(x) - drawn_from:
        return ""
    more = f", and {zeros.size - 1} more" if zeros.size > 1 else ""
    return f"row {zeros[0]} is 0{more}; none may be but row 0 of the words, that of padding"


def _unlike_draw(x: Array, a: Architecture, storage: Format, alpha: float) -> str:
    """Return a description of the error in a single drawn parameter, or an empty string."""
    r = a.initializer_range
    if not any(fits(x, distribution, storage, alpha) for distribution in legal(r)):
        return f"{_said(x, usual_mistakes(x.shape[-1], r), storage, alpha)}, expected N(0, {r:g}²)"
    for axis, what in enumerate(("rows", "columns")):
        end = x.shape[axis] // 2 * 2
        one, other = (np.signbit(x.take(range(first, end, 2), axis)) for first in (0, 1))
        if not _agree_by_chance(one, other, alpha):
            return f"its {what} are not independent: {int((one == other).sum())} of {one.size} neighbours have one sign"
    return ""


def _said(x: Array, usual: Mistakes, storage: Format, alpha: float) -> str:
    """Return the distribution of a known mistake that the elements fit, or a description of their moments."""
    if not np.ptp(x):
        return f"{x.flat[0]:.3g} everywhere"
    known = " or ".join(f"{distribution.words} ({how})" for distribution, how in usual if fits(x, distribution, storage, alpha))
    if known:
        return f"drawn from {known}"
    centred = x - x.mean()
    kurtosis = float(np.mean(centred**4) / np.mean(centred**2) ** 2)
    return f"mean {x.mean():.3g}, standard deviation {x.std():.3g}, kurtosis {kurtosis:.2f}"


def fits(x: Array, of: Distribution, storage: Format, alpha: float) -> bool:
    """Return whether the marginal distribution of the elements is consistent with `of`, at false-alarm probability `alpha`."""
    from scipy.stats import kstest  # slow to import and used only here

    u = _uniform(x, of, storage).ravel()
    z, n = ndtri(u), u.size
    squares = float(np.square(z).sum())
    with np.errstate(divide="ignore"):
        none_larger = n * np.log(np.abs(2.0 * u - 1.0).max())  # ln of the probability that no element is larger
    tails = (
        ndtr(-abs(z.sum()) / np.sqrt(n)),
        *(chdtr(n, squares), chdtrc(n, squares)),
        *(np.exp(none_larger), -np.expm1(none_larger)),
        kstest(u, "uniform").pvalue / 2.0,
    )
    return bool(2.0 * min(tails) >= alpha)


def _uniform(x: Array, of: Distribution, storage: Format) -> Array:
    """Return the randomized probability integral transform of rounded numbers, with reproducible random numbers."""
    above = storage.ulp(x) / 2.0
    below = np.where(np.frexp(x)[0] ** 2 == 0.25, above / 2.0, above)  # The spacing is half as large below a power of two.
    below, above = np.where(x < 0.0, above, below), np.where(x < 0.0, below, above)
    low, high = of.cdf(x - below), of.cdf(x + above)
    u = low + np.random.default_rng(0).random(x.shape) * (high - low)
    return np.clip(u, np.finfo(np.float64).tiny, 1.0 - np.finfo(np.float64).epsneg)


def _agree_by_chance(one: Mask, other: Mask, alpha: float) -> bool:
    return BinomialCount(int((one == other).sum()), one.size, 0.5).is_chance(alpha)
