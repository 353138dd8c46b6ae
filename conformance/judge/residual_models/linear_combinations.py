"""Linear combinations of a step's terms, fitted by weighted least squares.

With weights 1/σ² (`ResidualProblem.root_weights`), target t and terms A, the coefficients are (AᵀA)⁻¹ Aᵀ t. Their variance is
the larger of two estimates: the diagonal of (AᵀA)⁻¹ times the remaining sum of squares per degree of freedom (at least 1), and the
diagonal of (AᵀA)⁻¹ (Σ_rows gᵣ gᵣᵀ) (AᵀA)⁻¹ with gᵣ the row's share of Aᵀ e, because errors in the same row are correlated (Liang
and Zeger 1986, *Biometrika* 73, section 3).

Other γ, other β or another bias are a separate gain for each slice of an axis, a separate constant for each feature, or both.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations
from math import sqrt

import numpy as np

from conformance.judge.number_words import enumerated, near, number, simple
from conformance.judge.residual_models.residual_problem import (
    TINY,
    ElementNoise,
    FittedNumber,
    Places,
    ResidualFinding,
    ResidualProblem,
)
from conformance.judge.residual_models.step_terms import RIGHT, StepTerm
from conformance.numerics.formats import Array, as_array


def fitted(case: ResidualProblem, values: Sequence[Array], target: Array) -> tuple[Array, Array]:
    """Return the least-squares coefficients of `values`, each (R, F), for `target`, and their standard deviations."""
    root = case.root_weights
    columns = np.stack([(root * v).ravel() for v in values], 1)
    weighted = np.where(case.kept, root * target, 0.0).ravel()
    lengths = np.maximum(np.linalg.norm(columns, axis=0), np.finfo(np.float64).tiny)
    coefficients, *_ = np.linalg.lstsq(columns / lengths, weighted, rcond=None)
    left = weighted - columns / lengths @ coefficients
    inverse = np.linalg.pinv((columns / lengths).T @ (columns / lengths))
    degrees = max(case.count - len(values), 1)
    plain = np.diag(inverse) * max(float(left @ left) / degrees, 1.0)
    by_row = (columns / lengths * left[:, None]).reshape(*case.kept.shape, -1).sum(1)
    clustered = np.diag(inverse @ (by_row.T @ by_row) @ inverse)
    return coefficients / lengths, np.sqrt(np.maximum(plain, clustered)) / lengths


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


MOST_REPORTED, MOST_KEPT = 4, 64  # gains that are reported individually, and gains that are kept as numbers


def gains_and_shifts(case: ResidualProblem) -> Iterator[ResidualFinding]:
    """Yield findings for actual = g · expected + h, with a gain g, an addend h or both for each slice of an axis.

    Features have an addend, without or with a gain: another bias, or other γ and β. Slices of other axes have a gain, from which a
    bias is excluded.
    """
    bias, none = case.rows(case.step.site.parameters.get("bias", np.zeros(()))), np.zeros((1, 1))
    for place, axis in zip(case.coordinates, case.step.site.activation.axes, strict=True):
        if axis == "feature":
            yield _by_slice(case, axis, place, none, has_gain=False, has_shift=True)
            yield _by_slice(case, axis, place, none, has_shift=True)
        elif place.max() > place.min():
            yield _by_slice(case, "batch row" if axis == "batch" else axis, place, bias)
    if case.actual.ndim > 1:
        yield _by_slice(case, "row of the last axis", np.arange(len(case.taken))[:, None], bias)


def _by_slice(
    case: ResidualProblem, axis: str, place: Places, offset: Array, *, has_gain: bool = True, has_shift: bool = False
) -> ResidualFinding:
    """Return the finding of a weighted least-squares fit in each slice; `place` is the slice index of each element."""
    label, weights = np.broadcast_to(place, case.kept.shape), case.root_weights**2

    def mean(x: Array, weight: Array) -> Array:
        """Return the weighted mean of each element's slice."""
        sums, total = (np.bincount(label.ravel(), np.broadcast_to(a, label.shape).ravel()) for a in (weight * x, weight))
        return as_array((sums / np.where(total > 0.0, total, 1.0))[label])

    base, actual = case.expected_rows - offset, np.where(case.kept, case.actual_rows, case.expected_rows) - offset
    centre, found = (mean(x, weights) if has_shift else np.zeros_like(x) for x in (base, actual))
    energy = mean((base - centre) ** 2, weights)
    ratio = mean((base - centre) * (actual - found), weights) / np.where(energy > 0.0, energy, 1.0)
    gain = np.where(energy > 0.0, ratio, 1.0) if has_gain else np.ones_like(base)
    shift = found - gain * centre
    each, first = np.unique(label[case.kept], return_index=True)
    gains = gain[case.kept][first]
    deviations = np.bincount(label.ravel(), (weights * (base - centre) ** 2).ravel())[each].clip(TINY) ** -0.5
    numbers = tuple(FittedNumber(f"{axis} {i}", float(g), float(d)) for i, g, d in zip(each, gains, deviations, strict=True))
    values = [number(n.value, n.deviation) for n in numbers[:MOST_REPORTED]]
    words = enumerated(values) if len(each) <= MOST_REPORTED else f"from {gains.min():.4g} to {gains.max():.4g}"
    if not has_gain:
        size = float(np.sqrt((shift[case.kept] ** 2).mean()))
        kind, words = "shift of features", f"a constant of its own was added to each {axis}, the same in every row, RMS {size:.3g}"
    elif has_shift:
        what = "other γ and β" if case.step.site.activation.kind == "norm" else "other parameters of each output"
        kind, words = "gain of features", f"each {axis} has a gain and a constant of its own, gains {words}: {what}"
    else:
        less = " less its bias" if np.any(offset) else ""
        kind, words = "gain", f"each {axis} has a gain of its own, {words} times the correct value{less}"
    model = gain * base + shift + offset
    noise = case.scaled_noise(gain)
    if has_shift:
        noise = ElementNoise(np.hypot(noise.sigma, case.noise_of(model if has_gain else shift).sigma), noise.bound)
    return case.finding_of(kind, words, model, noise, len(each) * (has_gain + has_shift), numbers[:MOST_KEPT] if has_gain else ())
