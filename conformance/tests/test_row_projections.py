"""Evidence of rows: an error shared by a row is distinguished from a mistake that moves all rows alike, where steps are hidden."""

import numpy as np
import pytest

from conformance.benchmarks.detection.bert import Candidate
from conformance.benchmarks.detection.mistakes import MISTAKES
from conformance.benchmarks.detection.networks import network
from conformance.benchmarks.detection.variants import VARIANTS
from conformance.checks.check_values import check_values
from conformance.judge.noise import Noise
from conformance.judge.row_projections import row_nlls
from conformance.numerics.formats import Array

pytestmark = pytest.mark.usefixtures("one_thread")

ROWS, WIDTH, SHARED = 64, 32, 0.5
MOVED = np.ones((ROWS, WIDTH))  # The effect of a mistake: all elements of all rows move alike.


def _noise(shared: float) -> Noise:
    """Return the noise of unit variance in each element and of variance `shared` in each row."""
    judged = np.ones((ROWS, WIDTH), np.bool_)
    sigma = np.full((ROWS, WIDTH), (1.0 + shared) ** 0.5)
    return Noise(sigma, 0.0, judged, lambda w: (float((w**2).sum() + shared * (w.sum(-1) ** 2).sum()), 0.0))


def _evidence(residual: Array) -> float:
    """Return the evidence, in nats, for errors that are shared by a row over a mistake without them."""
    apart, shared = row_nlls(residual, MOVED, [_noise(0.0), _noise(SHARED)], [True, False], ROWS)
    return apart - shared


def test_errors_shared_by_a_row_are_likelier_under_the_arithmetic_that_has_them() -> None:
    rng = np.random.default_rng(0)
    residual = rng.normal(size=(ROWS, WIDTH)) + SHARED**0.5 * rng.normal(size=(ROWS, 1))
    assert _evidence(residual) > 100.0


def test_a_mistake_of_the_same_total_size_is_likelier_under_the_arithmetic_without_them() -> None:
    rng = np.random.default_rng(0)
    for size in (0.2, 1.0):  # z = size · √(64 · 32), from 9: it fails a filter.
        assert _evidence(rng.normal(size=(ROWS, WIDTH)) + size) < -30.0


def test_elements_that_are_not_judged_may_be_anything() -> None:
    residual = np.ones((ROWS, WIDTH))
    padded = np.where(np.arange(ROWS)[:, None] < ROWS // 2, residual, np.nan)
    noise = _noise(0.0)
    judged = Noise(noise.sigma, 0.0, np.isfinite(padded), noise.projected)
    (expected,), (actual,) = (row_nlls(x, MOVED, [judged], [True], 1) for x in (residual, padded))
    assert actual == expected


def test_a_scalar_such_as_a_loss_is_one_row() -> None:
    noise = Noise(np.ones(()), 0.0, np.ones((), np.bool_), lambda w: (float(w**2), 0.0))
    assert row_nlls(np.array(3.0), np.ones(()), [noise], [False], 2) == [9.0]


@pytest.mark.parametrize(("architecture", "dtype"), [("bert", "float16"), ("sinusoidal", "bfloat16")])
def test_norms_written_by_hand_behind_hidden_steps_conform(architecture: str, dtype: str) -> None:
    result = check_values(VARIANTS["several kinds, norms only"], network(architecture, 103), dtype=dtype)
    assert (result.outcome, [v.activation for v in result.verdicts if v.outcome == "fail"]) == ("pass", [])


@pytest.mark.parametrize("name", ["epsilon", "norm-unbiased-deviation"])
def test_a_mistaken_norm_behind_hidden_steps_fails_in_half_precision(name: str) -> None:
    candidate = Candidate([MISTAKES[name].at(0)], lambda activation: activation.endswith("LayerNorm"))
    result = check_values(candidate, network("bert", 1), dtype="float16")
    assert [v.activation for v in result.verdicts if v.outcome == "fail"] == ["encoder.layer.0.attention.output.LayerNorm"]
