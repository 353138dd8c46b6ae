"""Degenerate arrays: not finite, zero, constant, equal along an axis, or correct except for a few elements."""

from collections.abc import Iterator
from math import inf, sqrt

import numpy as np

from conformance.judge.number_words import number
from conformance.judge.residual_models.residual_problem import ElementNoise, FittedNumber, Places, ResidualFinding, ResidualProblem

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
