"""A gain of its own for each slice of an axis, a constant for each feature, or both: other γ, other β, another bias."""

from collections.abc import Iterator

import numpy as np

from conformance.judge.makeup.case import Case, Finding, Noise, Number
from conformance.judge.words import enumerated, number
from conformance.numerics.formats import Array

TOLD = 4  # gains that are told one by one


def shifts(case: Case) -> Iterator[Finding]:
    """made = right + h, h one number a feature: the weighted mean of the residual over the rows."""
    if "feature" not in case.step.site.activation.axes:
        return
    weights = _weights(case)
    shift = (weights * (case.made_rows - case.right_rows)).sum(0) / np.maximum(weights.sum(0), np.finfo(np.float64).tiny)
    model = case.right_rows + shift
    told = f"a constant of its own was added to each feature, the same in every row, RMS {_rms(shift[case.kept.any(0)]):.3g}"
    yield case.tried("shift of features", told, model, case.noise_with(np.broadcast_to(shift, model.shape)), _features(case))


def gains(case: Case) -> Iterator[Finding]:
    """made = g · right with a g for each slice of an axis; of a result that has a bias, the same for what the bias is added to."""
    bias = case.step.site.parameters.get("bias", np.zeros(()))
    base = case.right - bias
    for number_, axis in enumerate(case.step.site.activation.axes):
        if axis != "feature" and 1 < case.made.shape[number_]:
            others = tuple(i for i in range(case.made.ndim) if i != number_)
            yield _gains(case, "batch row" if axis == "batch" else axis, others, base, bias)
    if case.made.ndim > 1:
        yield _gains(case, "row of the last axis", (case.made.ndim - 1,), base, bias)


def _gains(case: Case, axis: str, others: tuple[int, ...], base: Array, bias: Array) -> Finding:
    weights = np.where(case.judged, 1.0 / (case.sigma**2 + case.bound**2), 0.0)
    energy = (weights * base**2).sum(others, keepdims=True)
    made = np.where(case.judged, case.made - bias, 0.0)
    gain = (weights * base * made).sum(others, keepdims=True) / np.where(energy > 0.0, energy, 1.0)
    deviations = 1.0 / np.sqrt(energy[energy > 0.0])
    values = gain[energy > 0.0]
    listing = [number(float(g), float(d)) for g, d in zip(values[:TOLD], deviations[:TOLD], strict=True)]
    told = f"{enumerated(listing)}" if len(values) <= TOLD else f"from {values.min():.4g} to {values.max():.4g}"
    what = "the right value" if not np.any(bias) else "the right value less its bias"
    sentence = f"each {axis} has a gain of its own, {told} times {what}"
    numbers = tuple(Number(f"{axis} {i}", float(g), float(d)) for i, (g, d) in enumerate(zip(values, deviations, strict=True)))
    model = case.rows(gain * base + bias)
    return case.tried(
        "gain", sentence, model, case.scaled_noise(case.rows(gain)), len(values), numbers if len(values) <= 64 else ()
    )


def gains_and_shifts(case: Case) -> Iterator[Finding]:
    """made = g · right + h with a g and an h for each feature, by weighted least squares over the rows."""
    if "feature" not in case.step.site.activation.axes:
        return
    weights, right, made = _weights(case), case.right_rows, case.made_rows
    total = np.maximum(weights.sum(0), np.finfo(np.float64).tiny)
    centre, mean = (weights * right).sum(0) / total, (weights * np.where(case.kept, made, 0.0)).sum(0) / total
    energy = (weights * (right - centre) ** 2).sum(0)
    gain = (weights * (right - centre) * (np.where(case.kept, made, 0.0) - mean)).sum(0) / np.where(energy > 0.0, energy, 1.0)
    gain = np.where(energy > 0.0, gain, 1.0)
    model = gain * right + (mean - gain * centre)
    used = gain[case.kept.any(0)]
    told = f"each feature has a gain and a constant of its own, gains from {used.min():.4g} to {used.max():.4g}"
    sigma = np.sqrt(case.scaled_noise(gain).sigma ** 2 + case.noise_of(model).sigma ** 2)
    noise = Noise(sigma, case.scaled_noise(gain).bound)
    yield case.tried("gain of features", f"{told}: {_parameters(case)}", model, noise, 2 * _features(case))


def _parameters(case: Case) -> str:
    return "other γ and β" if case.step.site.activation.kind == "norm" else "other parameters of each output"


def _weights(case: Case) -> Array:
    return np.where(case.kept, 1.0 / (case.noise.sigma**2 + case.noise.bound**2), 0.0)


def _features(case: Case) -> int:
    return int(case.kept.any(0).sum())


def _rms(x: Array) -> float:
    return float(np.sqrt((x**2).mean()))
