"""Linear combinations of a step's terms, fitted by weighted least squares."""

from collections.abc import Iterator, Sequence
from itertools import combinations
from math import sqrt

import numpy as np

from conformance.judge.number_words import near, number, simple
from conformance.judge.residual_models.least_squares import fitted
from conformance.judge.residual_models.residual_problem import FittedNumber, ResidualFinding, ResidualProblem
from conformance.judge.residual_models.step_terms import RIGHT, StepTerm
from conformance.numerics.formats import Array

MOST_TERMS = 3
INDEPENDENT = sqrt(np.finfo(np.float64).eps)  # smallest relative eigenvalue of AᵀA, far above an eigenvalue's rounding error eps


def multiples(case: ResidualProblem) -> Iterator[ResidualFinding]:
    """Yield findings for actual = a · expected, and for another term with factor 1 or a."""
    for term, value in case.step_terms:
        a, deviation = (float(v[0]) for v in fitted(case, [value], case.actual_rows))
        noise = case.scaled_noise(a) if term.name == RIGHT else case.noise_of(a * value)
        if a == 0.0:
            continue
        if term.name != RIGHT and near(a, deviation, 1.0):
            alone = " alone, without what the equation adds to it" if term.is_part else ""
            yield case.finding_of("copied", f"the result is {term.name}{alone}", value, noise)
        kind = ("sign" if near(a, deviation, -1.0) else "scale") if term.name == RIGHT else "multiple"
        rendered = f"the result is {_times(case, a, deviation)} {term.name}"
        if kind == "sign":
            rendered += ": the sign is wrong"
        yield case.finding_of(kind, rendered, a * value, noise, 1, (FittedNumber(term.name, a, deviation),))


def terms(case: ResidualProblem) -> Iterator[ResidualFinding]:
    """Yield findings for expected + Σ a_k · term: the best set of each size, until a set explains the residual."""
    found, values = zip(*((t, v) for t, v in case.step_terms if np.any(v[case.kept])), strict=True)
    gram, against = _gram(case, values, case.actual_rows - case.expected_rows)
    for size in range(1, min(MOST_TERMS, len(found)) + 1):
        best = max(combinations(range(len(found)), size), key=lambda s: _energy(gram, against, list(s)))
        if size == 1 and found[best[0]].name == RIGHT:
            continue  # reported by `multiples` as a scale
        finding = _sum_of(case, [found[i] for i in best], [values[i] for i in best])
        if any(near(n.value, n.deviation, 0.0) for n in finding.numbers):
            return  # the set has a superfluous term
        yield finding
        if finding.explained:
            return


def _sum_of(case: ResidualProblem, chosen: Sequence[StepTerm], values: Sequence[Array]) -> ResidualFinding:
    coefficients, deviations = fitted(case, values, case.actual_rows - case.expected_rows)
    added = [a * v for a, v in zip(coefficients, values, strict=True)]
    numbers = tuple(FittedNumber(t.name, float(a), float(d)) for t, a, d in zip(chosen, coefficients, deviations, strict=True))
    kind = "shift" if all(t.is_constant for t in chosen) else "term"
    sentence = "the residual is " + " + ".join(_term(case, t, n) for t, n in zip(chosen, numbers, strict=True))
    return case.finding_of(kind, sentence, case.expected_rows + sum(added), case.noise_with(*added), len(chosen), numbers)


def _term(case: ResidualProblem, term: StepTerm, fitted: FittedNumber) -> str:
    rendered = f"{_times(case, fitted.value, fitted.deviation)} {term.name}"
    if term.name == RIGHT:
        return f"{rendered} (it is missing from the result)" if near(fitted.value, fitted.deviation, -1.0) else rendered
    if not term.is_part:
        return rendered
    meanings = {-1.0: "left out", 1.0: "added once too often", -2.0: "with the wrong sign"}
    meaning = [m for goal, m in meanings.items() if near(fitted.value, fitted.deviation, goal)]
    return f"{rendered} ({meaning[0]})" if len(meaning) == 1 else rendered


def _times(case: ResidualProblem, a: float, deviation: float) -> str:
    """Return the factor in words, such as `0.5000 ± 0.0001 (1/2) times`."""
    name = simple(a, deviation, case.step.site.architecture)
    return f"{number(a, deviation)}{f' ({name})' if name and len(name) > 2 else ''} times"


def _gram(case: ResidualProblem, values: Sequence[Array], target: Array) -> tuple[Array, Array]:
    """Return AᵀA and Aᵀt, with each term scaled to unit length."""
    root = case.root_weights
    columns = np.stack([(root * v).ravel() for v in values])
    columns /= np.linalg.norm(columns, axis=1, keepdims=True)
    return columns @ columns.T, columns @ np.where(case.kept, root * target, 0.0).ravel()


def _energy(gram: Array, against: Array, chosen: list[int]) -> float:
    """Return the part of the target's energy that these terms account for; 0 if they are not independent."""
    part, b = gram[np.ix_(chosen, chosen)], against[chosen]
    if np.linalg.eigvalsh(part)[0] < INDEPENDENT:
        return 0.0
    return float(b @ np.linalg.solve(part, b))
