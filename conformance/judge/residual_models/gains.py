"""A separate gain for each slice of an axis, a separate constant for each feature, or both: other γ, other β, another bias."""

from collections.abc import Iterator

import numpy as np

from conformance.judge.number_words import enumerated, number
from conformance.judge.residual_models.residual_problem import ElementNoise, FittedNumber, Places, ResidualFinding, ResidualProblem
from conformance.numerics.formats import Array

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
