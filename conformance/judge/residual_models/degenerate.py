"""Degenerate arrays: not finite, zero, constant, equal along an axis, or correct except for a few elements.

Residuals without structure: results with fewer significant bits, or errors that are larger than rounding everywhere.
"""

from collections.abc import Iterator
from dataclasses import replace
from math import inf, log2, sqrt

import numpy as np

from conformance.judge.number_words import number
from conformance.judge.residual_models.residual_problem import (
    TINY,
    ElementNoise,
    FittedNumber,
    Places,
    ResidualFinding,
    ResidualProblem,
)
from conformance.numerics.formats import FORMATS, RELATIVE_RMS, Array
from conformance.numerics.thresholds import FALSE_ALARM

FEW = 3  # elements that are listed individually


def not_finite(case: ResidualProblem) -> ResidualFinding | None:
    """Return a finding for infinite or NaN elements, which rule out any further description, or None."""
    wrong = case.judged & ~np.isfinite(case.actual)
    if not wrong.any():
        return None
    nans, place = int(np.isnan(case.actual[wrong]).sum()), tuple(int(i) for i in np.argwhere(wrong)[0])
    sentence = f"{int(wrong.sum())} elements are not finite ({nans} NaN, {int(wrong.sum()) - nans} infinite), the first at {place}"
    return ResidualFinding("not finite", sentence, (), False, np.inf, 0.0, 0)


def few_elements(case: ResidualProblem) -> ResidualFinding | None:
    """Return a finding if at most three elements exceed the largest error and the rest passes, or if there are no others.

    The probability of a chance explanation is not computed, because each of these elements exceeds a threshold of its own.
    """
    beyond = case.judged & (case.scaled > case.limits.max)
    count = int(beyond.sum())
    if not 0 < count <= FEW:
        return None
    outside = case.scaled[case.judged & ~beyond]
    remaining = sqrt(float((outside**2).mean())) if outside.size else inf
    if outside.size and remaining > case.limits.rms:
        return None
    rendered = "; ".join(_element(case, place) for place in np.argwhere(beyond))
    sentence = f"only {count} element{'s are' if count > 1 else ' is'} wrong: {rendered}" if outside.size else rendered
    share = 1.0 - float((outside**2).sum()) / float((case.scaled[case.judged] ** 2).sum())
    return ResidualFinding("few elements", sentence, (), bool(outside.size), remaining, share if outside.size else 0.0, count)


def _element(case: ResidualProblem, place: Places) -> str:
    actual, expected = float(case.actual[tuple(place)]), float(case.expected[tuple(place)])
    ratio = f", {actual / expected:.6g} times" if expected else ""
    return f"{tuple(int(i) for i in place)}: {actual:.6g} for {expected:.6g}{ratio}"


def constant(case: ResidualProblem) -> Iterator[ResidualFinding]:
    """Yield findings for zeros, another constant everywhere, or equal values in every row, position, head or query.

    Values below the smallest error of the correct result are nearly zero: such are exponentials of very negative numbers.
    """
    values, least = case.actual_rows[case.kept], float(case.noise.sigma.min())
    largest = float(np.abs(values).max(initial=0.0))
    if values.size > 1 and (largest <= least or np.all(values == values[0])):
        exact = ElementNoise(np.full_like(case.actual_rows, least), np.zeros_like(case.actual_rows))
        value = float(values[0]) if largest > least else 0.0
        yield case.finding_of(*_constant(value, largest), np.full_like(case.actual_rows, value), exact)
        return
    for along, axis in enumerate(case.step.site.activation.axes):
        if case.actual.shape[along] > 1:
            name = "batch row" if axis == "batch" else axis
            yield from _same_along(case, along, name)


def _constant(value: float, largest: float) -> tuple[str, str]:
    """Return the kind and the sentence of a constant result, whose largest absolute value may differ from it within its error."""
    if value:
        return "constant", f"the result is {value:.6g} everywhere"
    if largest:
        return "nearly zero", f"no value of the result exceeds {largest:.3g}"
    return "zeros", "the result is zero everywhere"


def _same_along(case: ResidualProblem, along: int, name: str) -> Iterator[ResidualFinding]:
    """Yield a finding for values equal along an axis; the first judged element is the model, so the noise is √2 times larger."""
    first = case.rows(case.judged.argmax(along, keepdims=True)).astype(np.int64)
    source = (*case.coordinates[:along], first, *case.coordinates[along + 1 :])
    if np.array_equal(case.at(case.expected, source), case.expected_rows):
        return  # the expected value is constant along the axis, too
    model = case.at(case.actual, source)
    noise = case.noise_of(model)
    twice = ElementNoise(sqrt(2.0) * noise.sigma, noise.bound)
    yield case.finding_of(
        "same along an axis", f"the result is the same for every {name}", model, twice, case.count // case.actual.shape[along]
    )


def zeroed(case: ResidualProblem) -> Iterator[ResidualFinding]:
    """Yield a finding for some zeros and a · expected elsewhere, which is what dropout leaves, with a = 1/(1 − p)."""
    zero = (
        case.kept & (case.actual_rows == 0.0) & (np.abs(case.expected_rows) > case.limits.max * case.noise.sigma + case.noise.bound)
    )
    rest, count = case.kept & ~zero, int(zero.sum())
    weights = np.where(rest, case.root_weights**2, 0.0)
    energy = float((weights * case.expected_rows**2).sum())
    if not count or not energy:
        return
    a, deviation = float((weights * case.expected_rows * case.actual_rows).sum()) / energy, energy**-0.5
    sentence = (
        f"{count} elements ({100.0 * count / case.count:.3g} %) are 0, the rest is {number(a, deviation)} times the correct value"
    )
    model = np.where(zero, 0.0, a * case.expected_rows)
    yield case.finding_of("zeroed", sentence, model, case.scaled_noise(a), 1 + count, (FittedNumber("the rest", a, deviation),))


def fewer_bits(case: ResidualProblem) -> Iterator[ResidualFinding]:
    """Yield a finding on the least number p of significant bits that suffices for every result, if p bits are few.

    They are few if rounding the expected values to p bits leaves a larger error than a correct step does. The finding explains the
    residual if its RMS is that of such a rounding. The probability that N numbers with more bits all have only p is at most 2^-N;
    this is not examined unless it is below FALSE_ALARM.
    """
    values = case.actual_rows[case.kept & (case.actual_rows != 0.0)]
    bits = _bits(values) if values.size > -log2(FALSE_ALARM) else FORMATS["float64"].precision
    model, noise = case.expected_rows, case.noise
    ulp = np.ldexp(1.0, np.frexp(model)[1] - bits)
    if np.median(ulp[case.kept] ** 2 / 12.0) <= np.median(noise.sigma[case.kept] ** 2):
        return
    rounded = ElementNoise(np.hypot(noise.sigma, ulp / sqrt(12.0)), noise.bound)
    names = " or ".join(f.name for f in FORMATS.values() if f.precision == bits)
    sentence = (
        f"every value has at most {bits} significant bits{f', those of {names}' if names else ''}: the result is rounded to them"
    )
    finding = case.finding_of("fewer bits", sentence, model, rounded)  # The number of bits is evidence enough of a small error.
    yield replace(finding, explained=finding.remaining <= case.limits.rms)


def _bits(values: Array) -> int:
    """Return the least p for which all values are integers times 2^(exponent − p)."""
    mantissas = np.ldexp(np.frexp(values)[0], FORMATS["float64"].precision).astype(np.int64)
    together = int(np.bitwise_or.reduce(mantissas))  # negation does not change the lowest set bit
    return FORMATS["float64"].precision - ((together & -together).bit_length() - 1)


def larger_noise(case: ResidualProblem) -> Iterator[ResidualFinding]:
    """Yield a finding on the size R of the error, which explains the residual if no element, row or feature stands out.

    R is the RMS of the error in one of three units: sigma, |expected| (the same relative error everywhere), or 1. The unit in which
    the largest element, or mean of a row or feature, stands out least is chosen. The mean of n errors has 1/√n of their deviation
    and must not exceed the threshold of the largest element either. Such an error need not be random: it only has none of the
    patterns that the other models describe.
    """
    residual = np.where(case.kept, case.actual_rows - case.expected_rows, 0.0)
    rms, expected = (sqrt(float((x[case.kept] ** 2).mean())) for x in (residual, case.expected_rows))
    if not rms or not expected:
        return
    bits = -log2(rms / expected / RELATIVE_RMS)
    found = []
    for what, unit, rendered in (
        ("noise in sigma", case.noise.sigma, "{:.3g} σ"),
        ("relative error", np.maximum(np.abs(case.expected_rows), case.noise.sigma), "{:.3g} of the expected value"),
        ("noise", np.ones_like(residual), "{:.3g}, the same for small and large values"),
    ):
        beyond = np.sign(residual) * np.maximum(np.abs(residual) - case.noise.bound, 0.0) / unit
        size = max(sqrt(float((beyond**2).sum()) / case.count), TINY)
        largest = max(float(np.abs(beyond).max()), *(_standing_out(beyond, case, axis) for axis in (0, 1))) / size
        sentence = (
            f"the error has no pattern that was looked for: everywhere its RMS is {rendered.format(size)}; that is "
            f"{100.0 * rms / expected:.2g} % of the values' RMS, as large as rounding to {bits:.1f} significant bits would leave"
        )
        explained = largest <= case.limits.max and bits >= 1.0
        numbers = (FittedNumber(what, size, size / sqrt(2.0 * case.count)),)
        finding = ResidualFinding("noise", sentence, numbers, explained, 1.0, float(explained), 1)
        found.append((not explained, largest, finding))
    yield min(found, key=lambda each: each[:2])[2]


def _standing_out(e: Array, case: ResidualProblem, axis: int) -> float:
    """Return the largest magnitude of a mean along an axis, in units of its deviation if the errors e have that of 1."""
    counts = np.maximum(case.kept.sum(axis), 1)
    return float(np.abs(e.sum(axis) / np.sqrt(counts)).max())
