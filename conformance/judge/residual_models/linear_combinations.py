"""Linear combinations of a step's terms, fitted by weighted least squares.

With weights 1/σ² (`ResidualProblem.root_weights`), target t and terms A, the coefficients are (AᵀA)⁻¹ Aᵀ t. Their variance is
the larger of two estimates: the diagonal of (AᵀA)⁻¹ times the remaining sum of squares per degree of freedom (at least 1), and the
diagonal of (AᵀA)⁻¹ (Σ_rows gᵣ gᵣᵀ) (AᵀA)⁻¹ with gᵣ the row's share of Aᵀ e, because errors in the same row are correlated (Liang
and Zeger 1986, *Biometrika* 73, section 3).

Of a nonlinear step a parent may have a wrong factor: the model is actual = f(…, a · parent, …), with a fitted by Gauss–Newton in
units of sigma. a = 0: the parent is left out, a = 2: it is added twice, a = −1: it is subtracted.

Other γ, other β or another bias are a separate gain for each slice of an axis, a separate constant for each feature, or both.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from math import inf, sqrt

import numpy as np

from conformance.judge.number_words import enumerated, near, number, simple
from conformance.judge.residual_models.residual_problem import ElementNoise, FittedNumber, Places, ResidualFinding, ResidualProblem
from conformance.judge.residual_models.step_terms import RIGHT, StepTerm
from conformance.numerics.formats import NUDGE, Array, as_array
from conformance.oracle.norm import Norm
from conformance.oracle.pointwise import Gelu, GeluTanh, Relu, Tanh
from conformance.oracle.softmax import Probabilities


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


STEPS = 8  # Gauss–Newton steps; convergence is quadratic near the solution
STARTS = (-1.0, 0.0, 0.5, 2.0)
MEANINGS = {0.0: "left out", 2.0: "it counts twice", -1.0: "its sign is wrong"}


def scaled_parents(case: ResidualProblem) -> Iterator[ResidualFinding]:
    """Yield a finding for each parent; none for a norm with one parent, which does not depend on the parent's scale."""
    step = case.step
    if not isinstance(step, (Norm, Probabilities, Gelu, GeluTanh, Relu, Tanh)) or (
        isinstance(step, Norm) and len(step.parents) == 1
    ):
        return
    found = [_scaled(case, index, name) for index, name in enumerate(step.site.activation.parents)]
    meant = [finding for finding, meaning in found if finding.explained and meaning]
    # For a norm, halving one parent equals doubling the other; the finding with a known meaning is reported.
    yield from meant or [finding for finding, _ in found]


def _scaled(case: ResidualProblem, index: int, name: str) -> tuple[ResidualFinding, str]:
    """Return the finding, and the meaning of the factor a if it is one of `MEANINGS`, else an empty string."""
    parents = _parents(case)

    def made_with(a: float) -> Array:
        return _again(case, (*parents[:index], a * parents[index], *parents[index + 1 :]))

    a, deviation = _estimated(case, made_with)
    meaning = next((f": {m}" for goal, m in MEANINGS.items() if near(a, deviation, goal)), "")
    known = None if meaning else simple(a, deviation, case.step.site.architecture)
    sentence = f"the result is the same equation with {number(a, deviation)}{f' ({known})' if known else ''} times {name}{meaning}"
    model = made_with(a)
    return case.finding_of("scaled input", sentence, model, case.noise_with(model), 1, (FittedNumber(name, a, deviation),)), meaning


def _parents(case: ResidualProblem) -> tuple[Array, ...]:
    """Return the parents; for steps that act on rows or elements, only the rows or elements that the fit uses."""
    if isinstance(case.step, Norm):
        return tuple(case.rows_of(p) for p in case.step.parents)
    return case.step.parents if isinstance(case.step, Probabilities) else tuple(case.rows(p) for p in case.step.parents)


def _again(case: ResidualProblem, parents: tuple[Array, ...]) -> Array:
    """Return the value of the step's equation on other parents, (R, F)."""
    value = type(case.step)(case.step.site, *parents).value
    if isinstance(case.step, Norm):
        return as_array(value[:, case.columns])
    return case.rows(value) if isinstance(case.step, Probabilities) else value


def _estimated(case: ResidualProblem, made_with: Callable[[float], Array]) -> tuple[float, float]:
    def energy(a: float) -> float:
        return float(((case.root_weights * np.where(case.kept, case.actual_rows - made_with(a), 0.0)) ** 2).sum())

    a, deviation = min(STARTS, key=energy), inf
    for _ in range(STEPS):
        here = made_with(a)
        slope = (made_with(a + NUDGE) - here) / NUDGE
        if not np.any(slope[case.kept]):
            break
        move, deviation = (float(v[0]) for v in fitted(case, [slope], case.actual_rows - here))
        a += move
        if abs(move) <= deviation / 10.0:
            break
    return a, deviation


MOST_REPORTED, MOST_KEPT = 4, 64  # gains that are reported individually, and gains that are kept as numbers


def shifts(case: ResidualProblem) -> Iterator[ResidualFinding]:
    """Yield a finding for actual = expected + h, with one h per feature: the weighted mean of the residual over the rows."""
    if "feature" not in case.step.site.activation.axes:
        return
    weights = case.root_weights**2
    shift = (weights * (case.actual_rows - case.expected_rows)).sum(0) / np.maximum(weights.sum(0), np.finfo(np.float64).tiny)
    model = case.expected_rows + shift
    rendered = f"a constant of its own was added to each feature, the same in every row, RMS {_rms(shift[case.kept.any(0)]):.3g}"
    yield case.finding_of(
        "shift of features", rendered, model, case.noise_with(np.broadcast_to(shift, model.shape)), _features(case)
    )


def gains(case: ResidualProblem) -> Iterator[ResidualFinding]:
    """Yield findings for actual = g · expected, with one g per slice of an axis; a bias is excluded from the product."""
    bias = case.rows(case.step.site.parameters.get("bias", np.zeros(())))
    for place, axis in zip(case.coordinates, case.step.site.activation.axes, strict=True):
        if axis != "feature" and place.max() > place.min():
            yield _gains(case, "batch row" if axis == "batch" else axis, place, bias)
    if case.actual.ndim > 1:
        yield _gains(case, "row of the last axis", np.arange(len(case.taken))[:, None], bias)


def _gains(case: ResidualProblem, axis: str, place: Places, bias: Array) -> ResidualFinding:
    """Return the finding of a weighted least-squares fit in each slice; `place` is the slice index of each element."""
    label, weights, base = np.broadcast_to(place, case.kept.shape).ravel(), case.root_weights**2, case.expected_rows - bias
    energy = np.bincount(label, (weights * base**2).ravel())
    against = np.bincount(label, (weights * base * np.where(case.kept, case.actual_rows - bias, 0.0)).ravel())
    gain = against / np.where(energy > 0.0, energy, 1.0)
    slices = np.flatnonzero(energy > 0.0)
    numbers = tuple(FittedNumber(f"{axis} {i}", float(gain[i]), float(energy[i] ** -0.5)) for i in slices)
    rendered = [number(n.value, n.deviation) for n in numbers[:MOST_REPORTED]]
    values = enumerated(rendered) if len(slices) <= MOST_REPORTED else f"from {gain[slices].min():.4g} to {gain[slices].max():.4g}"
    sentence = f"each {axis} has a gain of its own, {values} times the correct value{' less its bias' if np.any(bias) else ''}"
    wide = gain[label].reshape(case.kept.shape)
    return case.finding_of("gain", sentence, wide * base + bias, case.scaled_noise(wide), len(slices), numbers[:MOST_KEPT])


def gains_and_shifts(case: ResidualProblem) -> Iterator[ResidualFinding]:
    """Yield a finding for actual = g · expected + h with a g and an h per feature, fitted by weighted least squares over rows."""
    if "feature" not in case.step.site.activation.axes:
        return
    weights, expected, actual = case.root_weights**2, case.expected_rows, case.actual_rows
    total = np.maximum(weights.sum(0), np.finfo(np.float64).tiny)
    centre, mean = (weights * expected).sum(0) / total, (weights * np.where(case.kept, actual, 0.0)).sum(0) / total
    energy = (weights * (expected - centre) ** 2).sum(0)
    gain = (weights * (expected - centre) * (np.where(case.kept, actual, 0.0) - mean)).sum(0) / np.where(energy > 0.0, energy, 1.0)
    gain = np.where(energy > 0.0, gain, 1.0)
    model = gain * expected + (mean - gain * centre)
    used = gain[case.kept.any(0)]
    rendered = f"each feature has a gain and a constant of its own, gains from {used.min():.4g} to {used.max():.4g}"
    sigma = np.sqrt(case.scaled_noise(gain).sigma ** 2 + case.noise_of(model).sigma ** 2)
    noise = ElementNoise(sigma, case.scaled_noise(gain).bound)
    yield case.finding_of("gain of features", f"{rendered}: {_parameters(case)}", model, noise, 2 * _features(case))


def _parameters(case: ResidualProblem) -> str:
    return "other γ and β" if case.step.site.activation.kind == "norm" else "other parameters of each output"


def _features(case: ResidualProblem) -> int:
    return int(case.kept.any(0).sum())


def _rms(x: Array) -> float:
    return float(np.sqrt((x**2).mean()))
