"""Steps written out of elementary operations, each of whose results is rounded to a half format, in the orders that are usual.

Roundings in a given order are no noise: a candidate that writes such a step by hand computes one of a short list of results. Only
where a library's function, or a sum accumulated in float32 in any order, lies so near to a tie that its own error decides to which
side it is rounded, there are several; the one that is nearest to the candidate's is taken.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product

import numpy as np
from scipy.special import erf, erfc, expit

from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import FORMATS, Array
from conformance.oracle.norm import Norm
from conformance.oracle.pointwise import Gelu, GeluTanh, Silu
from conformance.oracle.step import Step

Rounding = Callable[[Array], Array]
SINGLE = FORMATS["float32"]
FAR = 8.0  # deviations: of a normal error 1e-15 lies beyond


def by_operations(step: Step, arithmetic: Arithmetic, actual: Array) -> Iterator[Array]:
    """For each order the result that is nearest to `actual`, shaped as it, every operation rounded to the format of storage.

    Of GELU in both forms, of x σ(k x), and of residual sum and LayerNorm; none of a step that is one operation, or where nothing
    is rounded to less than it is accumulated in.
    """
    if not arithmetic.is_mixed:
        return
    with np.errstate(all="ignore"):  # what overflows in the format is no correct step's result, and fits none
        if isinstance(step, Silu):
            yield from _silu(step, arithmetic, actual)
        elif isinstance(step, Gelu):
            yield from _gelu(step.parents[0], arithmetic, actual)
        elif isinstance(step, GeluTanh):
            yield from _gelu_tanh(step.parents[0], arithmetic, actual)
        elif isinstance(step, Norm) and type(step).inverse is Norm.inverse:  # of the equation's own root
            yield from _norm(step, arithmetic.storage.round, actual)


def _gelu(x: Array, arithmetic: Arithmetic, actual: Array) -> Iterator[Array]:
    """x/2 · (1 + erf(x/√2)), x/2 + x/2 · erf(x/√2), x/2 · erfc(−x/√2) and x (1 − erfc(x/√2)/2).

    The constant is rounded to float32 or to the format. erfc is taken as exact: its relative error is that of its own last place,
    which is far below a half format's.
    """
    r = arithmetic.storage.round
    for argument in (r(x / np.sqrt(2.0)), r(x * _constant(np.sqrt(0.5), r)), r(x / _constant(np.sqrt(2.0), r))):
        value = np.asarray(erf(argument))
        sides = _sides(value, arithmetic.functions.error("erf", value, SINGLE), r)
        yield _nearest(actual, [r(x / 2.0 * r(1.0 + e)) for e in sides])
        yield _nearest(actual, [r(x / 2.0 + r(x / 2.0 * e)) for e in sides])
        yield r(x / 2.0 * r(erfc(-argument)))
        yield r(x * r(1.0 - r(erfc(argument)) / 2.0))


def _silu(step: Silu, arithmetic: Arithmetic, actual: Array) -> Iterator[Array]:
    """x · σ(k x); k is rounded to float32 or to the format. A σ next to a tie may be rounded either way, by an ulp of float32."""
    x, r = step.parents[0], arithmetic.storage.round
    for factor in (np.asarray(step.factor), _constant(step.factor, r)):
        value = np.asarray(expit(r(factor * x)))
        yield _nearest(actual, [r(x * σ) for σ in _sides(value, SINGLE.ulp(value), r)])


def _gelu_tanh(x: Array, arithmetic: Arithmetic, actual: Array) -> Iterator[Array]:
    """x/2 · (1 + tanh(√(2/π) (x + 0.044715 x³))) and the same with x factored out; constants in float32 or in the format."""
    r = arithmetic.storage.round
    for in_format, cube in product((False, True), (r(r(x * x) * x), r(x**3))):
        c, k = (_constant(n, r) if in_format else n for n in (np.sqrt(2.0 / np.pi), 0.044715))
        inner = r(k * r(x * x)), r(r(k * x) * x)
        for argument in (r(c * r(x + r(k * cube))), r(c * r(x + r(inner[1] * x))), *(r(r(c * x) * r(1.0 + i)) for i in inner)):
            value = np.tanh(argument)
            sides = _sides(value, arithmetic.functions.error("tanh", value, SINGLE), r)
            yield _nearest(actual, [r(x / 2.0 * r(1.0 + t)) for t in sides])


def _constant(number: float, r: Rounding) -> Array:
    return r(np.asarray(number))


def _norm(step: Norm, r: Rounding, actual: Array) -> Iterator[Array]:
    """γ (x − μ)/√(σ² + ε) + β, each way of computing σ² in turn; μ and σ² as the step has them. Or all but γ and β in float32."""
    weight, bias = step.site.parameters["weight"], step.site.parameters["bias"]
    for x in _sums(step.parents, r):
        yield _nearest(actual, [r(r(z * weight) + bias) for z in _normal_in_float32(step, x, r)])
        means = _sides(step.mean_of(x), _of_mean(x), r) if step.centred else (step.mean_of(x),)
        for variances in (_of_differences, _of_sum, _in_float32, _in_one_pass):
            found: list[list[Array]] = []
            for μ in means:
                for shifted in variances(step, x, μ, r):
                    found += _normalised(step, x, μ, shifted, r)
            for alternatives in zip(*found, strict=True):
                yield _nearest(actual, alternatives, by_row=True)


def _normal_in_float32(step: Norm, x: Array, r: Rounding) -> tuple[Array, ...]:
    """(x − μ)/√(σ² + ε) in float32, rounded; it may be off by FAR deviations of what `Norm.roundings` has for float32."""
    width = x.shape[-1]
    site = replace(step.site, parameters={"weight": np.ones(width), "bias": np.zeros(width)})
    plain = step.again(site=site, parents=(x,))
    return _sides(plain.value, FAR * np.sqrt(plain.roundings(Arithmetic(SINGLE, SINGLE, "modular")).variance()), r)


def _of_differences(step: Norm, x: Array, mean: Array, r: Rounding) -> Iterator[Array]:
    """mean((x − μ)²) + ε, every operation rounded."""
    yield from _shifted(step, r(np.square(r(x - mean))), r)


def _of_sum(step: Norm, x: Array, _: Array, r: Rounding) -> Iterator[Array]:
    """The variance by one call, rounded, and ε."""
    yield from _shifted(step, np.square(x - step.mean_of(x)), r)


def _shifted(step: Norm, squares: Array, r: Rounding) -> Iterator[Array]:
    """The mean of the squares, rounded, and ε."""
    for variance in _sides(step.variance_of(squares), _of_mean(squares), r):
        yield r(variance + step.site.architecture.layer_norm_eps)


def _in_float32(step: Norm, x: Array, _: Array, __: Rounding) -> Iterator[Array]:
    """The variance and ε, kept in float32; the deviation by one call is its root."""
    yield step.variance_of(np.square(x - step.mean_of(x))) + step.site.architecture.layer_norm_eps


def _in_one_pass(step: Norm, x: Array, mean: Array, r: Rounding) -> Iterator[Array]:
    """mean(x²) − μ² + ε, every operation rounded; it has no form that divides by n − 1."""
    if step.lost:
        return
    squares = r(np.square(x))
    for of_squares in _sides(step.variance_of(squares), _of_mean(squares), r):
        yield r(r(of_squares - r(np.square(mean))) + step.site.architecture.layer_norm_eps)


def _of_mean(terms: Array) -> Array:
    """How far a mean in float32 may be off: FAR deviations √(u²/3 Σ s_k²)/n, s_k the partial sums (`oracle.accumulation`)."""
    squares = np.square(np.cumsum(terms, -1)).sum(-1, keepdims=True)
    return np.asarray(FAR * SINGLE.unit_roundoff * np.sqrt(squares / 3.0) / terms.shape[-1])


def _normalised(step: Norm, x: Array, mean: Array, shifted: Array, r: Rounding) -> Iterator[list[Array]]:
    """The norm from σ² + ε, by each order of operations.

    A division by the root, or a product with its inverse; γ after it, before it, or in one operation with β; or γ and β folded
    into a scale and a shift. An inverse root may be rounded once or twice: torch's is rounded once in whole vectors and twice in
    the remainder.
    """
    weight, bias = step.site.parameters["weight"], step.site.parameters["bias"]
    root, centred = r(np.sqrt(shifted)), r(x - mean)
    scaled = r(centred * weight)
    for inverse in (r(1.0 / np.sqrt(shifted)), r(1.0 / root)):
        normals, scale = (r(centred / root), r(centred * inverse)), r(inverse * weight)
        after, fused = ([r(rounded(n * weight) + bias) for n in normals] for rounded in (r, np.asarray))
        before = [r(r(scaled / root) + bias), r(r(scaled * inverse) + bias)]
        yield [*after, *fused, *before, r(r(x * scale) + r(bias - r(mean * scale)))]


def _sums(parents: tuple[Array, ...], r: Rounding) -> Iterator[Array]:
    """Their sum, whichever pair is added first."""
    if len(parents) < 3:
        yield r(sum(parents[1:], start=parents[0]))
        return
    for last in range(len(parents)):
        first, *others = (p for i, p in enumerate(parents) if i != last)
        yield r(r(sum(others, start=first)) + parents[last])


def _sides(x: Array, error: Array, r: Rounding) -> tuple[Array, ...]:
    """What numbers that may be off by so much are rounded to: one array, or three where any could round the other way."""
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
