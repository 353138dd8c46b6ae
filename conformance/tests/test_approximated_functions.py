"""Approximated functions: an approximation whose error exceeds that of every known kernel is named with its largest error;
nothing else is."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import erf
from torch import Tensor
from torch.nn import functional as F

from conformance import check
from conformance.benchmarks.detection.bert import Candidate, changed
from conformance.faults.fitted import curve as curves
from conformance.faults.fitted.curve import curve, may_be_pieces
from conformance.numerics.formats import Array
from conformance.numerics.thresholds import FALSE_ALARM
from conformance.report.finding_sentences import sentence
from conformance.report.findings import Finding, findings
from conformance.report.representations import case_text
from conformance.results.to_records import activation_records
from implementations.hugging_face import hf_eager

Function = Callable[[Array], Array]
Kernel = Callable[[Tensor], Tensor]

# The error of erf in oneDNN's float32 GELU for AVX-512, 2 (made − y)/x in units of 1e-7: for each c in linspace(-6, 6, 41), the
# largest error, with its sign, over 200001 float32 values in [c − 0.15, c + 0.15], torch 2.11. Between two such values the kernel's
# error takes any value of either sign, since it is rounding inside the kernel; here it is interpolated linearly.
PLACES = np.linspace(-6.0, 6.0, 41)
ONE_DNN = 1e-7 * np.array(
    [0.0, -0.3, -0.4, 1.8, 1.8, 1.5, -1.4, -4.8, -6.7, -6.3, 6.5, 6.1, -4.6, -2.0, -1.6, -1.4, -1.0, 0.8, -0.9, -0.9, -1.3,
     1.6, 1.9, -1.8, -2.3, 2.5, 2.6, 3.5, -5.3, 7.0, 7.5, -6.7, 7.1, -5.5, 2.9, -3.0, 3.1, 2.9, 1.0, 0.3, 0.0]
)  # fmt: skip


def wide(f: Function) -> Kernel:
    """Evaluate f in float64 and round once."""
    return lambda x: torch.from_numpy(np.array(f(x.double().numpy()))).to(x.dtype)


def exact(x: Array) -> Array:
    return x / 2.0 * (1.0 + erf(x / np.sqrt(2.0)))


def off_by(error: Function) -> Kernel:
    """Return GELU whose erf is off by error(x)."""
    return wide(lambda x: exact(x) + x / 2.0 * error(x))


def replayed(times: float) -> Kernel:
    return off_by(lambda x: times * np.interp(x, PLACES, ONE_DNN, 0.0, 0.0))


# Abramowitz and Stegun 1964, formulas 7.1.26 and 7.1.25: p, then a_1, a_2, …
RATIONAL_26 = (0.3275911, 0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)
RATIONAL_25 = (0.47047, 0.3480242, -0.0958798, 0.7478556)


def rational(p: float, *a: float) -> Kernel:
    """Return GELU in the format of x, with erf(z) = 1 − (a_1 t + a_2 t² + …) exp(−z²), t = 1/(1 + p z), for z > 0."""

    def gelu(x: Tensor) -> Tensor:
        z = (x * 0.5**0.5).abs()
        t = 1.0 / (1.0 + p * z)
        tail = torch.zeros_like(x)
        for coefficient in reversed(a):
            tail = (tail + coefficient) * t
        return x * 0.5 * (1.0 + torch.sign(x) * (1.0 - tail * torch.exp(-z * z)))

    return gelu


def five_digits(*numbers: float) -> tuple[float, ...]:
    return tuple(float(f"{x:.5g}") for x in numbers)


def table_gelu(x: Array, entries: int = 256) -> Array:
    """Interpolate GELU between the entries of a table on [−4, 4]; return 0 and x outside."""
    grid = np.linspace(-4.0, 4.0, entries)
    return np.where(x > 4.0, x, np.where(x < -4.0, 0.0, np.interp(x, grid, exact(grid))))


def pade_tanh(x: Array) -> Array:
    return np.clip(x * (27.0 + x**2) / (27.0 + 9.0 * x**2), -1.0, 1.0)


def table_tanh(x: Array) -> Array:
    grid = np.linspace(-4.0, 4.0, 13)
    return np.interp(x, grid, np.tanh(grid))


def schraudolph(s: Array) -> Array:
    """Return 2^k (1 + f) for 2^(k + f), the result of writing into the exponent's bits (Schraudolph 1999)."""
    k = np.floor(s / math.log(2.0))
    return 2.0**k * (1.0 + s / math.log(2.0) - k)


def quartic_exp(s: Array) -> Array:
    """Evaluate the Taylor polynomial of degree 4 on |r| ≤ ln 2 / 2, times 2^k."""
    k = np.rint(s / math.log(2.0))
    r = s - k * math.log(2.0)
    return 2.0**k * (1.0 + r + r**2 / 2.0 + r**3 / 6.0 + r**4 / 24.0)


def gelu_by(kernel: Kernel, *layers: int, **more: Any) -> Candidate:
    return Candidate([changed("activated", lambda x: kernel(x), layers=layers or (0,))], **more)


def pooler_by(f: Function) -> Candidate:
    return Candidate([changed("pooled", lambda x: wide(f)(x))])


def softmax_by(exp: Function, **more: Any) -> Candidate:
    def probs(scores: Tensor, keep: Tensor) -> Tensor:
        keep = keep.expand_as(scores)
        shifted = scores - scores.masked_fill(~keep, -math.inf).amax(-1, keepdim=True)
        weights = torch.where(keep, wide(exp)(shifted), 0.0)
        return weights / weights.sum(-1, keepdim=True)

    return Candidate([changed("probs", probs, layers=(0,))], **more)


def found(candidate: Any, golden: str = "tiny", dtype: str = "float32") -> list[Finding]:
    result = check(candidate, golden, dtype=dtype)
    assert result.outcome in ("pass", "fail"), result.reason
    return findings(activation_records(result))


def named(candidate: Any, golden: str = "tiny", dtype: str = "float32") -> tuple[str, float]:
    """Return the only fault that was found, and its number."""
    (one,) = found(candidate, golden, dtype)
    assert one.fault, one.anatomy
    assert not one.others
    return one.fault.name, one.fault.estimate or 0.0


def test_errors_of_a_known_kernel_pass() -> None:
    assert found(gelu_by(replayed(1.0), 0, 1)) == []


def test_three_times_the_errors_of_a_known_kernel_are_named_and_estimated() -> None:
    name, off = named(gelu_by(replayed(3.0)))
    assert name == "erf-approximated"
    assert 2.0 * np.abs(ONE_DNN).max() < off < 3.2 * np.abs(ONE_DNN).max()


def test_the_common_rational_approximation_of_erf_passes() -> None:
    assert found(gelu_by(rational(*RATIONAL_26), 0, 1)) == []


def test_the_common_rational_approximation_with_five_digits_is_named() -> None:
    """Of its coefficients, a_4 = −1.4532 alone is 4.8e-5 off, far more than any known kernel."""
    name, off = named(gelu_by(rational(*five_digits(*RATIONAL_26))))
    assert (name, off) == ("erf-approximated", pytest.approx(7e-5, rel=0.05))


def test_a_shorter_rational_approximation_is_named_with_its_published_error() -> None:
    name, off = named(gelu_by(rational(*RATIONAL_25)))
    assert name == "erf-approximated"
    assert 2e-5 < off < 2.5e-5 + 1e-7  # The handbook's 2.5e-5, plus float32's own error.


def test_a_lookup_table_is_named_as_an_approximation_of_the_whole_function() -> None:
    assert named(gelu_by(wide(table_gelu))) == ("gelu-approximated", pytest.approx(1.3e-4, rel=0.1))


@pytest.mark.parametrize(("f", "largest"), [(pade_tanh, 0.0235), (table_tanh, 0.035)])
def test_an_approximated_tanh_in_the_pooler_is_named(f: Function, largest: float) -> None:
    name, off = named(pooler_by(f))
    assert name == "tanh-approximated"
    assert off == pytest.approx(largest, rel=0.1)


def test_an_approximated_tanh_inside_gelu_is_named() -> None:
    def gelu(x: Array) -> Array:
        return x / 2.0 * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (x + 0.044715 * x**3)) + 1e-4 * np.sin(5.0 * x))

    assert named(gelu_by(wide(gelu)), "tanh") == ("tanh-approximated", pytest.approx(1e-4, rel=0.01))


@pytest.mark.parametrize(("f", "largest"), [(schraudolph, 0.043), (quartic_exp, 3.9e-5)])
def test_an_approximated_exp_in_softmax_is_named(f: Function, largest: float) -> None:
    name, off = named(softmax_by(f))
    assert name == "exp-approximated"
    assert off == pytest.approx(largest, rel=0.1)


def test_an_approximated_exp_is_named_where_the_scores_are_hidden() -> None:
    hidden = softmax_by(schraudolph, exposes=lambda name: not name.endswith("scores"))
    assert named(hidden) == ("exp-approximated", pytest.approx(0.043, rel=0.1))


OTHERS: dict[str, tuple[str, Kernel]] = {
    "the tanh form": ("gelu-variant", lambda x: F.gelu(x, approximate="tanh")),
    "quick": ("activation-quick-gelu", lambda x: x * torch.sigmoid(1.702 * x)),
    "argument": ("gelu-argument", lambda x: x * 0.5 * (1.0 + torch.erf(x * 0.70711))),
    "rounded result": ("result-bfloat16", lambda x: F.gelu(x).bfloat16().float()),
}


@pytest.mark.parametrize("case", OTHERS)
def test_a_change_with_a_name_of_its_own_is_not_called_an_approximation(case: str) -> None:
    name, kernel = OTHERS[case]
    assert named(gelu_by(kernel))[0] == name


def test_a_clipped_hidden_state_is_not_called_an_approximation() -> None:
    assert named(Candidate([changed("output", "right().clamp(-0.02, 0.02)", layers=(0,))])) == (
        "hidden-clipped",
        pytest.approx(0.02),
    )


def _scattered(x: Array, size: Array | float) -> Array:
    return size * np.random.default_rng(1).normal(size=x.shape)


NONE: dict[str, Kernel] = {
    "noise in erf": off_by(lambda x: _scattered(x, 2e-6)),
    "larger noise in erf": off_by(lambda x: _scattered(x, 2e-5)),
    "noise as large as the kernel's error thrice": off_by(
        lambda x: _scattered(x, 3.0 * np.interp(x, PLACES, np.abs(ONE_DNN), 0.0, 0.0))
    ),
    "a feature": off_by(lambda x: 1e-5 * (np.arange(x.shape[-1]) % 7)),
    "a few elements": wide(lambda x: exact(x) + 1e-3 * (np.arange(x.size) % 1000 == 7).reshape(x.shape)),
    "a factor": wide(lambda x: 1.0001 * exact(x)),
    "a constant": wide(lambda x: exact(x) + 1e-4),
    "a scaled input": wide(lambda x: exact(1.0001 * x)),
    "an input in bfloat16": lambda x: F.gelu(x.bfloat16().float()),
    "a clipped input": lambda x: F.gelu(x.clamp(-3.0, 3.0)),
    "a clipped result": lambda x: F.gelu(x).clamp(max=3.0),
    "another function": F.silu,
}


@pytest.mark.parametrize("case", NONE)
def test_other_errors_are_not_called_approximations(case: str) -> None:
    names = [f.fault.name for f in found(gelu_by(NONE[case])) if f.fault]
    assert not [name for name in names if name.endswith("-approximated")]


def test_a_correct_candidate_conforms() -> None:
    assert check(hf_eager, "tiny").conforms


def test_one_approximation_in_every_layer_is_one_finding_with_its_largest_error() -> None:
    (one,) = found(gelu_by(rational(*RATIONAL_25), 0, 1))
    assert len(one.steps) == 2
    assert one.fault
    assert sentence(one, 2).startswith(
        "every layer, intermediate.intermediate_act_fn: GELU is an approximation: erf is off by up to 2."
    )


def test_the_report_states_the_error_and_its_usual_cause() -> None:
    report = case_text(check(pooler_by(pade_tanh), "tiny"))
    assert "pooler.activation: tanh is an approximation: it is off by up to 0.023" in report
    assert "usual cause: a fast kernel's polynomial or table in place of the library's function" in report


DRAWN = np.random.default_rng(0)
SAMPLES = np.sort(DRAWN.normal(size=1000))


@pytest.mark.parametrize("f", [np.sin, np.sign, np.abs, np.round], ids=lambda f: f.__name__)
def test_a_curve_follows_jumps_and_kinks(f: Function) -> None:
    scale = np.full(1000, 1e-4)
    fitted = curve(SAMPLES, f(SAMPLES) + scale * DRAWN.normal(size=1000), scale, FALSE_ALARM)
    assert fitted
    assert fitted.rms == pytest.approx(1.0, rel=0.1)
    assert np.abs(fitted(SAMPLES)[0] - f(SAMPLES)).max() < 1e-3


def test_a_curve_does_not_describe_what_is_smaller_than_rounding_errors() -> None:
    wave = 1e-5 * np.sin(60.0 * SAMPLES)  # a tenth of the scale, which 525 numbers would follow
    fitted = curve(SAMPLES, np.sin(SAMPLES) + wave, np.full(1000, 1e-4), FALSE_ALARM)
    assert fitted
    assert fitted.free < 50
    assert np.abs(fitted(SAMPLES)[0] - np.sin(SAMPLES)).max() < 1e-4


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("heavy", [False, True])
def test_no_curve_is_fitted_to_noise(seed: int, *, heavy: bool) -> None:
    rng = np.random.default_rng(seed)
    y = rng.standard_t(2, size=1000) if heavy else rng.normal(size=1000)
    assert curve(SAMPLES, y, np.ones(1000), FALSE_ALARM) is None


@pytest.mark.parametrize("terms", [4, 8])
def test_data_that_no_number_of_pieces_can_fit_is_refused_before_any_is_fitted(terms: int) -> None:
    ones, noise, middle = np.ones(1000), DRAWN.normal(size=1000), len(SAMPLES) // 2
    jumping = 1e6 * np.where(np.arange(1000) < middle, np.sin(9.0 * SAMPLES), np.cos(5.0 * SAMPLES)) + noise
    assert may_be_pieces(SAMPLES, jumping, ones, 5.0, terms)
    assert not may_be_pieces(SAMPLES, DRAWN.permutation(jumping), ones, 5.0, terms)
    assert may_be_pieces(SAMPLES, noise, ones, 5.0, terms)  # Rounding alone explains these values.


def test_no_curve_is_fitted_to_a_few_samples() -> None:
    y = np.where(np.arange(1000) % 300 == 7, 1.0, 0.0)
    assert curve(SAMPLES, y + 1e-6 * DRAWN.normal(size=1000), np.full(1000, 1e-6), FALSE_ALARM) is None


@pytest.mark.parametrize("terms", [4, 8])
@pytest.mark.parametrize("f", [np.sin, np.sign, np.abs, np.exp], ids=lambda f: f.__name__)
def test_no_fit_has_a_smaller_residual_than_its_lower_bound(f: Function, terms: int) -> None:
    """Prove that the search for the ends of pieces never rejects a span that a fit would accept."""
    y, scale = f(SAMPLES) + 1e-6 * DRAWN.normal(size=1000), np.exp(DRAWN.normal(size=1000))
    for power, least in enumerate(curves._least_residuals(SAMPLES, y, scale, terms)):
        assert least.max() > 0.0
        for i in range(0, len(least), 37):
            span = slice(i, i + terms * 2**power + 1)
            piece = curves._piece(SAMPLES[span], y[span], scale[span], terms)
            left = (y[span] - piece.basis(SAMPLES[span]) @ piece.coefficients) / scale[span]
            assert least[i] <= np.abs(left).max()


@pytest.mark.parametrize("terms", [4, 8])
@pytest.mark.parametrize("gap", [1.0, 1e-3, 1e-9], ids=str)
def test_a_fit_by_normal_equations_leaves_what_an_orthogonal_decomposition_does(gap: float, terms: int) -> None:
    """Prove it for even samples, and for two clusters whose normal equations are ill-conditioned."""
    t = np.concatenate([np.linspace(0.0, gap, 20), 1.0 + np.linspace(gap, 2.0 * gap, 20)])
    y = np.sin(9.0 * t) + 1e-3 * DRAWN.normal(size=40)
    piece, ones = curves._piece(t, y, np.ones(40), terms), np.ones(40)
    expected = y - piece.basis(t) @ piece.coefficients
    assert curves._residual(t, y, ones, terms) == pytest.approx(expected, abs=1e-9)
