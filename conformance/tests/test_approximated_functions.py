"""Approximated functions: errors of published kernels pass; a worse approximation fails in its place, without a name."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import erf
from torch import Tensor

from conformance import check
from conformance.benchmarks.detection.bert import Candidate, changed
from conformance.numerics.formats import Array
from conformance.report.representations import case_text

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


GELU, PROBS = "encoder.layer.0.intermediate.intermediate_act_fn", "encoder.layer.0.attention.self.probs"


def wide(f: Function) -> Kernel:
    """Evaluate f in float64 and round once."""
    return lambda x: torch.from_numpy(np.array(f(x.double().numpy()))).to(x.dtype)


def exact(x: Array) -> Array:
    return x / 2.0 * (1.0 + erf(x / np.sqrt(2.0)))


def replayed(times: float) -> Kernel:
    """Return GELU whose erf has this multiple of the kernel's errors."""
    return wide(lambda x: exact(x) + x / 2.0 * times * np.interp(x, PLACES, ONE_DNN, 0.0, 0.0))


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


def table_gelu(x: Array, entries: int = 256) -> Array:
    """Interpolate GELU between the entries of a table on [−4, 4]; return 0 and x outside."""
    grid = np.linspace(-4.0, 4.0, entries)
    return np.where(x > 4.0, x, np.where(x < -4.0, 0.0, np.interp(x, grid, exact(grid))))


def pade_tanh(x: Array) -> Array:
    return np.clip(x * (27.0 + x**2) / (27.0 + 9.0 * x**2), -1.0, 1.0)


def schraudolph(s: Array) -> Array:
    """Return 2^k (1 + f) for 2^(k + f), the result of writing into the exponent's bits (Schraudolph 1999)."""
    k = np.floor(s / math.log(2.0))
    return 2.0**k * (1.0 + s / math.log(2.0) - k)


def gelu_by(kernel: Kernel, *layers: int) -> Candidate:
    return Candidate([changed("activated", lambda x: kernel(x), layers=layers or (0,))])


def pooler_by(f: Function) -> Candidate:
    return Candidate([changed("pooled", lambda x: wide(f)(x))])


def softmax_by(exp: Function, **more: Any) -> Candidate:
    def probs(scores: Tensor, keep: Tensor) -> Tensor:
        keep = keep.expand_as(scores)
        shifted = scores - scores.masked_fill(~keep, -math.inf).amax(-1, keepdim=True)
        weights = torch.where(keep, wide(exp)(shifted), 0.0)
        return weights / weights.sum(-1, keepdim=True)

    return Candidate([changed("probs", probs, layers=(0,))], **more)


@pytest.mark.parametrize("kernel", [replayed(1.0), rational(*RATIONAL_26)], ids=["oneDNN", "the usual rational form"])
def test_errors_of_published_kernels_pass(kernel: Kernel) -> None:
    result = check(gelu_by(kernel, 0, 1), "tiny")
    assert result.outcome == "pass", result


APPROXIMATIONS: dict[str, tuple[str, Candidate]] = {
    "three times the errors of a kernel": (GELU, gelu_by(replayed(3.0))),
    "five digits of the usual rational form": (GELU, gelu_by(rational(*(float(f"{x:.5g}") for x in RATIONAL_26)))),
    "a shorter rational form": (GELU, gelu_by(rational(*RATIONAL_25))),
    "a table of GELU": (GELU, gelu_by(wide(table_gelu))),
    "a rational tanh": ("pooler.activation", pooler_by(pade_tanh)),
    "exp by the bits of a float": (PROBS, softmax_by(schraudolph)),
    "exp of scores that are hidden": (PROBS, softmax_by(schraudolph, exposes=lambda name: not name.endswith("scores"))),
}


@pytest.mark.parametrize("case", APPROXIMATIONS)
def test_an_approximation_worse_than_published_kernels_fails_in_its_place_and_is_described_at_most(case: str) -> None:
    place, candidate = APPROXIMATIONS[case]
    result = check(candidate, "tiny")
    (found,) = result.findings
    assert (found.steps, found.name in (None, "function-other")) == ((place,), True)
    assert found.anatomy or "such as" in found.evidence
    if case in ("a shorter rational form", "a rational tanh"):
        assert "the equation holds with another function of the same input" in " ".join(case_text(result).split())
