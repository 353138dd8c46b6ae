"""Equations, Jacobians, formats and thresholds against independent truths."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2

from conformance import load_golden
from conformance.errors import DependencyMissingError
from conformance.faults import CATALOGUE
from conformance.goldens.manifest import manifest
from conformance.goldens.philox import Stream
from conformance.judge.power import power
from conformance.judge.statistics import FALSE_ALARM, max_threshold, rms_threshold, share
from conformance.numerics.arithmetic import hypotheses
from conformance.numerics.formats import FORMATS
from conformance.oracle import Network

GOLDEN = load_golden("tiny")
NETWORK = Network(GOLDEN.checkpoint.architecture, GOLDEN.checkpoint.weights, GOLDEN.batches["padded"])
TRUTH = GOLDEN.activations["padded"]


@given(st.floats(-1e4, 1e4), st.sampled_from(["float32", "bfloat16", "float16"]))
def test_rounding_is_torchs(x: float, name: str) -> None:
    ours = FORMATS[name].round(np.array([x]))[0]
    assert ours == torch.tensor([x], dtype=torch.float64).to(getattr(torch, name)).double().item()


@pytest.mark.parametrize("name", [n for n, r in NETWORK.table.items() if r.parents])
def test_jacobians_are_the_derivatives_of_the_equations(name: str) -> None:
    """<w, f(x + h e) − f(x − h e)> / 2h = <Jᵀ w, e>, for random e and w."""
    rng = np.random.default_rng(1)
    parents = [TRUTH[p] for p in NETWORK.table[name].parents]
    step = NETWORK.step(name, *parents)
    direction = rng.standard_normal(step.value.shape)
    for i, jacobian in enumerate(step.jacobians()):
        scale = max(float(parents[i].std()), 1e-3) * 1e-5
        error = rng.standard_normal(parents[i].shape) * scale

        def moved(sign: float, at: int = i, by: np.ndarray = error) -> np.ndarray:
            return NETWORK.step(name, *(p + sign * by if j == at else p for j, p in enumerate(parents))).value

        measured = (direction * (moved(1) - moved(-1)) / 2).sum()
        predicted = (jacobian.adjoint(direction) * error).sum()
        assert measured == pytest.approx(predicted, rel=1e-4, abs=1e-9 * scale * error.size)


@pytest.mark.parametrize(
    "name", [n for n, r in NETWORK.table.items() if r.kind in ("norm", "probs", "linear", "scores", "context")]
)
def test_propagated_variance_is_that_of_random_errors(name: str) -> None:
    rng = np.random.default_rng(2)
    parents = [TRUTH[p] for p in NETWORK.table[name].parents]
    step = NETWORK.step(name, *parents)
    deviation = 1e-6 * max(float(parents[0].std()), 1e-3)
    variance = step.jacobians()[0].variance(np.full(parents[0].shape, deviation**2))
    samples = [
        NETWORK.step(name, parents[0] + deviation * rng.standard_normal(parents[0].shape), *parents[1:]).value - step.value
        for _ in range(60)
    ]
    ratio = np.mean(np.square(samples)) / variance.mean()
    assert 0.9 < ratio < 1.1


@pytest.mark.parametrize("rows", [1, 10, 1000])
def test_the_rms_threshold_is_wider_than_the_exact_one_for_normal_errors_and_not_by_much(rows: int) -> None:
    alpha = share(300)
    exact = math.sqrt(chi2.isf(alpha, rows) / rows)
    assert exact < rms_threshold(rows, alpha) < 1.15 * exact


def test_uniform_errors_stay_below_the_largest_allowed() -> None:
    worst = max_threshold(10**6, share(300))
    assert 6.0 < worst < 9.0
    assert share(1) == pytest.approx(FALSE_ALARM)


def test_philox_normals_are_normal_and_exact_in_bfloat16() -> None:
    x = Stream(7, "any").normals((200, 100))
    assert abs(x.mean()) < 0.03
    assert x.std() == pytest.approx(1.0, abs=0.03)
    assert (FORMATS["bfloat16"].round(x) == x).all()


WEIGHTS = {"weights-bfloat16", "weights-float16"}  # generated weights are exact in both formats


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_among_the_generated_goldens_every_fault_is_separable_somewhere(dtype: str) -> None:
    best: dict[str, float] = {}
    for golden in (name for name in manifest() if name not in ("wide", "minilm")):
        for p in power(load_golden(golden), dtype):
            best[p.fault] = max(p.best, best.get(p.fault, 0.0))
    promised = {f.name for f in CATALOGUE if dtype == "float32" or not f.late} - WEIGHTS
    assert sorted(promised - set(best)) == []
    assert sorted(fault for fault, z in best.items() if z < 12.0) == []


def test_weights_of_half_precision_show_on_the_trained_network() -> None:
    golden = load_golden("minilm")
    try:
        golden.checkpoint  # noqa: B018 -- it is made when it is asked for
    except DependencyMissingError as why:
        pytest.skip(str(why))
    cells = {p.fault: p for p in power(golden, "float32")}
    assert all(cells[name].separable == cells[name].places for name in WEIGHTS)


def test_half_formats_declare_three_roundings_and_two_readings_of_the_parents() -> None:
    assert len(hypotheses("bfloat16")) == 6
    assert len(hypotheses("float32")) == 2
