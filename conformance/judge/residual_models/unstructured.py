"""Residuals without structure: results with fewer significant bits, or errors that are larger than rounding everywhere."""

from collections.abc import Iterator
from math import log2, sqrt

import numpy as np

from conformance.judge.residual_models.residual_problem import TINY, ElementNoise, FittedNumber, ResidualFinding, ResidualProblem
from conformance.numerics.formats import FORMATS, RELATIVE_RMS, Array
from conformance.numerics.thresholds import FALSE_ALARM


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
    yield _unlikely(case, case.finding_of("fewer bits", sentence, model, rounded))


def _unlikely(case: ResidualProblem, finding: ResidualFinding) -> ResidualFinding:
    """Return the finding judged by its RMS alone: the number of bits is the evidence that `tried` looks for in the residual."""
    passes = finding.remaining <= case.limits.rms
    return ResidualFinding(finding.kind, finding.sentence, (), passes, finding.remaining, finding.share, 0)


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
    if not residual.any():
        return
    relative = ElementNoise(np.maximum(np.abs(case.expected_rows), case.noise.sigma), case.noise.bound)
    equal = ElementNoise(np.ones_like(case.noise.sigma), case.noise.bound)
    found = [
        _noise(case, residual, case.noise, "noise in sigma", "{:.3g} σ"),
        _noise(case, residual, relative, "relative error", "{:.3g} of the expected value"),
        _noise(case, residual, equal, "noise", "{:.3g}, the same for small and large values"),
    ]
    yield min(found, key=lambda f: (not f[0].explained, f[1]))[0]


def _noise(case: ResidualProblem, residual: Array, scale: ElementNoise, what: str, rendered: str) -> tuple[ResidualFinding, float]:
    beyond = np.sign(residual) * np.maximum(np.abs(residual) - scale.bound, 0.0) / scale.sigma
    count = case.count
    size = max(sqrt(float((beyond**2).sum()) / count), TINY)
    e = beyond / size
    largest = max(float(np.abs(e).max()), _standing_out(e, case, 0), _standing_out(e, case, 1))
    share, bits = _share(case, residual), _worth(case, residual)
    sentence = (
        f"the error has no pattern that was looked for: everywhere its RMS is {rendered.format(size)}; that is "
        f"{100.0 * share:.2g} % of the values' RMS, as large as rounding to {bits:.1f} significant bits would leave"
    )
    numbers = (FittedNumber(what, size, size / sqrt(2.0 * count)),)
    explained = largest <= case.limits.max and bits >= 1.0
    finding = ResidualFinding("noise", sentence, numbers, explained, 1.0, 1.0 if explained else 0.0, 1)
    return finding, largest


def _worth(case: ResidualProblem, residual: Array) -> float:
    """Return p such that rounding to p bits gives the residual's RMS relative to that of the expected value."""
    share = _share(case, residual)
    return -log2(share / RELATIVE_RMS) if share else 0.0


def _share(case: ResidualProblem, residual: Array) -> float:
    """Return the residual's RMS relative to that of the expected value; 0 if that is 0."""
    rms, expected = (sqrt(float((x[case.kept] ** 2).mean())) for x in (residual, case.expected_rows))
    return rms / expected if expected else 0.0


def _standing_out(e: Array, case: ResidualProblem, axis: int) -> float:
    counts = np.maximum(case.kept.sum(axis), 1)
    return float(np.abs(e.sum(axis) / np.sqrt(counts)).max())
