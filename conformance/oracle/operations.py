"""Steps written out of elementary operations, each of whose results is rounded to a half format, in the orders that are usual.

Roundings in a given order are no noise. What a candidate computes that writes such a step by hand is one of a short list of
results, but where a library's function, or a sum accumulated in float32 in any order, lies so near to a tie that its own error
decides to which side it is rounded: there the result that is nearer to the candidate's is taken.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import product

import numpy as np
from scipy.special import erf, erfc

from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import FORMATS, Array
from conformance.oracle.norm import Norm
from conformance.oracle.pointwise import Gelu, GeluTanh
from conformance.oracle.step import Step

Rounding = Callable[[Array], Array]
SINGLE = FORMATS["float32"]
FAR = 8.0  # deviations: of a normal error 1e-15 lies beyond


def by_operations(step: Step, arithmetic: Arithmetic, actual: Array) -> Iterator[Array]:
    """For each order the result that is nearest to `actual`, shaped as it, every operation rounded to the format of storage.

    Of GELU in both forms and of residual sum and LayerNorm; none of a step that is one operation, or where nothing is rounded to
    less than it is accumulated in.
    """
    if not arithmetic.is_mixed:
        return
    with np.errstate(all="ignore"):  # what overflows in the format is no correct step's result, and fits none
        if isinstance(step, Gelu):
            yield from _gelu(step.parents[0], arithmetic, actual)
        elif isinstance(step, GeluTanh):
            yield from _gelu_tanh(step.parents[0], arithmetic, actual)
        elif isinstance(step, Norm):
            yield from _norm(step, arithmetic.storage.round, actual)


def _gelu(x: Array, arithmetic: Arithmetic, actual: Array) -> Iterator[Array]:
    """x/2 · (1 + erf(x/√2)) and x/2 · erfc(−x/√2); the constant in float32 or in the format."""
    r = arithmetic.storage.round
    for argument in (r(x / np.sqrt(2.0)), r(x * _constant(np.sqrt(0.5), r)), r(x / _constant(np.sqrt(2.0), r))):
        value = np.asarray(erf(argument))
        sides = _sides(value, arithmetic.functions.error("erf", value, SINGLE), r)
        yield _nearest(actual, [r(x / 2.0 * r(1.0 + e)) for e in sides])
        yield r(x / 2.0 * r(erfc(-argument)))


def _gelu_tanh(x: Array, arithmetic: Arithmetic, actual: Array) -> Iterator[Array]:
    """x/2 · (1 + tanh(√(2/π) (x + 0.044715 x³))) and the same with x factored out; constants in float32 or in the format."""
    r = arithmetic.storage.round
    for in_format, cube in product((False, True), (r(r(x * x) * x), r(x**3))):
        c, k = (_constant(n, r) if in_format else n for n in (np.sqrt(2.0 / np.pi), 0.044715))
        for argument in (r(c * r(x + r(k * cube))), r(r(c * x) * r(1.0 + r(k * r(x * x))))):
            value = np.tanh(argument)
            sides = _sides(value, arithmetic.functions.error("tanh", value, SINGLE), r)
            yield _nearest(actual, [r(x / 2.0 * r(1.0 + t)) for t in sides])


def _constant(number: float, r: Rounding) -> Array:
    return r(np.asarray(number))


def _norm(step: Norm, r: Rounding, actual: Array) -> Iterator[Array]:
    """γ (x − μ)/√(σ² + ε) + β, the variance that of the differences or of the sum."""
    for x in _sums(step.parents, r):
        mean = x.mean(-1, keepdims=True)
        for rounded in (True, False):
            found: list[list[Array]] = []
            for μ in _sides(mean, _of_mean(x), r):
                squares = r(np.square(r(x - μ))) if rounded else np.square(x - mean)
                variance = squares.mean(-1, keepdims=True)
                for v in _sides(variance, _of_mean(squares), r):
                    found += _normalised(step, x, μ, v, r)
            for alternatives in zip(*found, strict=True):
                yield _nearest(actual, alternatives, by_row=True)


def _of_mean(terms: Array) -> Array:
    """How far a mean in float32 may be off: FAR deviations √(u²/3 Σ s_k²)/n, s_k the partial sums (`oracle.products`)."""
    squares = np.square(np.cumsum(terms, -1)).sum(-1, keepdims=True)
    return np.asarray(FAR * SINGLE.unit_roundoff * np.sqrt(squares / 3.0) / terms.shape[-1])


def _normalised(step: Norm, x: Array, mean: Array, variance: Array, r: Rounding) -> Iterator[list[Array]]:
    """By each order: a root divided by or its inverse multiplied with; γ and β in one operation or two, or folded into a scale and
    a shift. An inverse root may be rounded once or twice: torch's is, once in whole vectors, twice in what is left of them.
    """
    weight, bias = step.site.parameters["weight"], step.site.parameters["bias"]
    shifted = r(variance + step.site.architecture.layer_norm_eps)
    root, centred = r(np.sqrt(shifted)), r(x - mean)
    for inverse in (r(1.0 / np.sqrt(shifted)), r(1.0 / root)):
        normals, scale = (r(centred / root), r(centred * inverse)), r(inverse * weight)
        in_two, in_one = ([r(rounded(n * weight) + bias) for n in normals] for rounded in (r, np.asarray))
        yield [*in_two, *in_one, r(r(x * scale) + r(bias - r(mean * scale)))]


def _sums(parents: tuple[Array, ...], r: Rounding) -> Iterator[Array]:
    """Their sum, the pair that is added first being any."""
    if len(parents) < 3:
        yield r(sum(parents[1:], start=parents[0]))
        return
    for last in range(len(parents)):
        first, *others = (p for i, p in enumerate(parents) if i != last)
        yield r(r(sum(others, start=first)) + parents[last])


def _sides(x: Array, error: Array, r: Rounding) -> tuple[Array, ...]:
    """What numbers that may be off by so much are rounded to: one array, or three where any can fall to another side."""
    low, middle, high = r(x - error), r(x), r(x + error)
    return (middle,) if np.array_equal(low, high) else (middle, low, high)


def _nearest(actual: Array, alternatives: Sequence[Array], *, by_row: bool = False) -> Array:
    """Of each element, or row of the last axis, the alternative that is nearest."""
    best, *others = alternatives
    for other in others:
        distances = [np.abs(actual - y) for y in (best, other)]
        if by_row:
            distances = [d.sum(-1, keepdims=True) for d in distances]
        best = np.where(distances[1] < distances[0], other, best)
    return best
