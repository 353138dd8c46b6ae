"""Steps written as elementary operations, each rounded to a half-precision format, in the usual orders of operations.

Rounding errors in a given order are deterministic: a candidate that writes such a step as elementary operations obtains one of a
few results. There are several results per order only where the value of a library function, or of a sum accumulated in float32 in
any order, is so close to a tie that its error decides the rounding; the result nearest to the candidate's is then used.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product

import numpy as np
from scipy.special import erfc, expit

from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import FORMATS, Array, as_array
from conformance.numerics.functions import TANH_CUBIC, TANH_OUTER, erf
from conformance.numerics.thresholds import LARGEST_DEVIATION
from conformance.oracle.accumulation import squared_partial_sums
from conformance.oracle.linear import Linear
from conformance.oracle.norm import Norm
from conformance.oracle.pointwise import Gelu, GeluTanh, Silu
from conformance.oracle.softmax import Probabilities
from conformance.oracle.step import Step

Rounding = Callable[[Array], Array]
SINGLE = FORMATS["float32"]
IN_FLOAT32 = Arithmetic(SINGLE, SINGLE, "modular")


def by_operations(step: Step, arithmetic: Arithmetic, actual: Array) -> Iterator[Array]:
    """Yield for each order of operations the result nearest to `actual`, with every operation rounded to the storage format.

    Orders are defined for linear layers, for both forms of GELU, for x σ(k x), for residual sum and LayerNorm, and for attention's
    softmax. Nothing is yielded for other steps, or if the storage format is not narrower than the accumulation format.
    """
    if not arithmetic.is_mixed:
        return
    with np.errstate(all="ignore"):  # A result that overflows in the format is not correct and matches nothing.
        if isinstance(step, Linear):
            yield from _linear(step, arithmetic, actual)
        elif isinstance(step, Silu):
            yield from _silu(step, arithmetic, actual)
        elif isinstance(step, Gelu):
            yield from _gelu(step.parents[0], arithmetic, actual)
        elif isinstance(step, GeluTanh):
            yield from _gelu_tanh(step.parents[0], arithmetic, actual)
        elif isinstance(step, Norm) and type(step).inverse is Norm.inverse:  # Not a fault with another inverse root.
            yield from _norm(step, arithmetic.storage.round, actual)
        elif type(step) is Probabilities:
            yield from _softmax(step, arithmetic, actual)


def _linear(step: Linear, arithmetic: Arithmetic, actual: Array) -> Iterator[Array]:
    """Yield x Wᵀ, accumulated in float32 and rounded, plus b, as torch computes it for inputs that are not contiguous in memory."""
    if "bias" in step.site.parameters:
        r, accumulated = arithmetic.storage.round, replace(IN_FLOAT32, summation=arithmetic.summation)
        products = _sides(step.value - step.bias, LARGEST_DEVIATION * np.sqrt(step.roundings(accumulated).variance()), r)
        yield _nearest(actual, [r(product + step.bias) for product in products])


def _gelu(x: Array, arithmetic: Arithmetic, actual: Array) -> Iterator[Array]:
    """Yield x/2 · (1 + erf(x/√2)), x/2 + x/2 · erf(x/√2), x/2 · erfc(−x/√2) and x (1 − erfc(x/√2)/2).

    The constant is rounded to float32 or to the format. erfc is taken as exact, since its relative error is about one float32 ULP,
    far below that of a half-precision format.
    """
    r = arithmetic.storage.round
    for argument in (r(x / np.sqrt(2.0)), r(x * _constant(np.sqrt(0.5), r)), r(x / _constant(np.sqrt(2.0), r))):
        value = erf(argument)
        sides = _sides(value, arithmetic.functions.error("erf", value, SINGLE), r)
        yield _nearest(actual, [r(x / 2.0 * r(1.0 + e)) for e in sides])
        yield _nearest(actual, [r(x / 2.0 + r(x / 2.0 * e)) for e in sides])
        yield r(x / 2.0 * r(erfc(-argument)))
        yield r(x * r(1.0 - r(erfc(argument)) / 2.0))


def _silu(step: Silu, arithmetic: Arithmetic, actual: Array) -> Iterator[Array]:
    """Yield x · σ(k x), with k rounded to float32 or to the format.

    σ may be off by one float32 ULP, so a value next to a tie may be rounded either way.
    """
    x, r = step.parents[0], arithmetic.storage.round
    for factor in (as_array(step.factor), _constant(step.factor, r)):
        value = as_array(expit(r(factor * x)))
        yield _nearest(actual, [r(x * σ) for σ in _sides(value, SINGLE.ulp(value), r)])


def _gelu_tanh(x: Array, arithmetic: Arithmetic, actual: Array) -> Iterator[Array]:
    """Yield x/2 · (1 + tanh(√(2/π) (x + 0.044715 x³))), also with x factored out; constants are in float32 or in the format."""
    r = arithmetic.storage.round
    for in_format, cube in product((False, True), (r(r(x * x) * x), r(x * x * x))):
        c, k = (_constant(n, r) if in_format else n for n in (TANH_OUTER, TANH_CUBIC))
        inner = r(k * r(x * x)), r(r(k * x) * x)
        for argument in (r(c * r(x + r(k * cube))), r(c * r(x + r(inner[1] * x))), *(r(r(c * x) * r(1.0 + i)) for i in inner)):
            value = np.tanh(argument)
            sides = _sides(value, arithmetic.functions.error("tanh", value, SINGLE), r)
            yield _nearest(actual, [r(x / 2.0 * r(1.0 + t)) for t in sides])


def _constant(number: float, r: Rounding) -> Array:
    return r(as_array(number))


def _norm(step: Norm, r: Rounding, actual: Array) -> Iterator[Array]:
    """Yield γ (x − μ)/√(σ² + ε) + β for each way of computing σ².

    Also yield it with only γ and β applied in the format, and with only μ and 1/√(σ² + ε) rounded to it. The step defines μ and σ².
    """
    weight, bias = step.site.parameters["weight"], step.site.parameters["bias"]
    for x in _sums(step.parents, r):
        yield _nearest(actual, [r(r(z * weight) + bias) for z in _normal_in_float32(step, x, r)])
        yield _with_stored_statistics(type(step)(step.site, x), r, actual)
        means = _sides(step.mean_of(x), _of_mean(x), r) if step.centred else (step.mean_of(x),)
        for variances in (_of_differences, _of_sum, _in_float32, _in_one_pass):
            found: list[list[Array]] = []
            for μ in means:
                for shifted in variances(step, x, μ, r):
                    found += _normalised(step, x, μ, shifted, r)
            for alternatives in zip(*found, strict=True):
                yield _nearest(actual, alternatives, by_row=True)


def _normal_in_float32(step: Norm, x: Array, r: Rounding) -> tuple[Array, ...]:
    """Return (x − μ)/√(σ² + ε) computed in float32, then rounded.

    Its error may be up to `LARGEST_DEVIATION` standard deviations of the errors that `Norm.roundings` gives for float32.
    """
    width = x.shape[-1]
    site = replace(step.site, parameters={"weight": np.ones(width), "bias": np.zeros(width)})
    plain = step.replaced(site=site, parents=(x,))
    return _sides(plain.value, LARGEST_DEVIATION * np.sqrt(plain.roundings(IN_FLOAT32).variance()), r)


def _with_stored_statistics(step: Norm, r: Rounding, actual: Array) -> Array:
    """Return γ (x − μ) ρ + β computed in float32, with μ and ρ = 1/√(σ² + ε) rounded, as torch's group norm on CUDA stores them."""
    error = LARGEST_DEVIATION * np.sqrt(step.roundings(IN_FLOAT32).variance())
    of_mean, of_inverse = (LARGEST_DEVIATION * np.sqrt(variance) for variance in step.statistics_variance(IN_FLOAT32))
    weight, bias = step.site.parameters["weight"], step.site.parameters["bias"]
    statistics = product(_sides(step.mean, of_mean, r), _sides(step.inverse, step.inverse * of_inverse, r))
    exact = (weight * ((step.summed - μ) * ρ) + bias for μ, ρ in statistics)
    return _nearest(actual, [_nearest(actual, _sides(y, error, r)) for y in exact], by_row=True)


def _softmax(step: Probabilities, arithmetic: Arithmetic, actual: Array) -> Iterator[Array]:
    """Yield e/Σ e and e · (1/Σ e) with e = exp(s − m); the sum is accumulated in float32 and rounded once."""
    r = arithmetic.storage.round
    exponential = np.exp(r(step.shifted))
    sides = _sides(exponential, arithmetic.functions.error("exp", exponential, SINGLE), r)
    terms = sides[0]
    totals = _sides(terms.sum(-1, keepdims=True), _of_mean(terms) * terms.shape[-1], r)
    safe = [np.where(total > 0.0, total, 1.0) for total in totals]  # Σ e is 0 in a row without keys.
    yield _nearest(actual, [_nearest(actual, [r(e / total) for e in sides]) for total in safe], by_row=True)
    yield _nearest(actual, [_nearest(actual, [r(e * r(1.0 / total)) for e in sides]) for total in safe], by_row=True)


def _of_differences(step: Norm, x: Array, mean: Array, r: Rounding) -> Iterator[Array]:
    """Yield mean((x − μ)²) + ε, with every operation rounded."""
    yield from _shifted(step, r(np.square(r(x - mean))), r)


def _of_sum(step: Norm, x: Array, _: Array, r: Rounding) -> Iterator[Array]:
    """Yield the variance from a single call, rounded, plus ε."""
    yield from _shifted(step, np.square(x - step.mean_of(x)), r)


def _shifted(step: Norm, squares: Array, r: Rounding) -> Iterator[Array]:
    """Yield the rounded mean of the squares plus ε."""
    for variance in _sides(step.variance_of(squares), _of_mean(squares), r):
        yield r(variance + step.site.architecture.layer_norm_eps)


def _in_float32(step: Norm, x: Array, _: Array, __: Rounding) -> Iterator[Array]:
    """Yield the variance plus ε, kept in float32, as in a standard deviation computed by a single call."""
    yield step.variance_of(np.square(x - step.mean_of(x))) + step.site.architecture.layer_norm_eps


def _in_one_pass(step: Norm, x: Array, mean: Array, r: Rounding) -> Iterator[Array]:
    """Yield mean(x²) − μ² + ε, with every operation rounded; nothing if σ² divides by n − 1, which this form does not allow."""
    if step.degrees_lost:
        return
    squares = r(np.square(x))
    for of_squares in _sides(step.variance_of(squares), _of_mean(squares), r):
        yield r(r(of_squares - r(np.square(mean))) + step.site.architecture.layer_norm_eps)


def _of_mean(terms: Array) -> Array:
    """Return the largest error of a float32 mean, whose deviation is √(u²/3 Σ s_k²)/n with the partial sums s_k."""
    return as_array(LARGEST_DEVIATION * SINGLE.unit_roundoff * np.sqrt(squared_partial_sums(terms) / 3.0) / terms.shape[-1])


def _normalised(step: Norm, x: Array, mean: Array, shifted: Array, r: Rounding) -> Iterator[list[Array]]:
    """Yield the results of the norm, from σ² + ε, for each order of operations.

    The orders are: a division by the root or a product with its inverse, with γ applied after it, before it, or in one operation
    with β; or γ and β folded into a scale and a shift. The inverse root may be rounded once or twice: torch rounds it once in full
    vectors and twice in the remainder.
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
    """Yield the sum of the parents for each choice of the parent that is added last."""
    if len(parents) < 3:
        yield r(sum(parents[1:], start=parents[0]))
        return
    for last in range(len(parents)):
        first, *others = (p for i, p in enumerate(parents) if i != last)
        yield r(r(sum(others, start=first)) + parents[last])


def _sides(x: Array, error: Array, r: Rounding) -> tuple[Array, ...]:
    """Return the possible roundings of numbers x with an error of up to `error`.

    There is a single array if no number can be rounded in different ways, and three arrays otherwise.
    """
    low, middle, high = r(x - error), r(x), r(x + error)
    return (middle,) if np.array_equal(low, high) else (middle, low, high)


def _nearest(actual: Array, alternatives: Sequence[Array], *, by_row: bool = False) -> Array:
    """Return the alternative nearest to `actual`, for each element or for each row of the last axis."""
    best, *others = alternatives
    for other in others:
        distances = [np.abs(actual - y) for y in (best, other)]
        if by_row:
            distances = [d.sum(-1, keepdims=True) for d in distances]
        best = np.where(distances[1] < distances[0], other, best)
    return best
