"""Equations, Jacobians, formats and thresholds are compared with independent references."""

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2

from conformance import load_golden
from conformance.faults import CATALOGUE, attended
from conformance.goldens.batches import Stream
from conformance.goldens.manifest import manifest
from conformance.judge.detection_power import power
from conformance.model.architecture import POOLINGS
from conformance.model.training import STEPPED
from conformance.numerics.formats import FORMATS, Array
from conformance.numerics.thresholds import FALSE_ALARM, FALSE_ALARM_TEXT, max_threshold, rms_threshold, sidak_share
from conformance.oracle import EQUATIONS, Network
from conformance.oracle.embeddings import EncoderStates, Lookup, Sinusoids
from conformance.oracle.gradients.pooling import MaximumBackward
from conformance.oracle.gradients.sums import Seed
from conformance.oracle.optimizer import Initial, InitialConstant, InitialDraw
from conformance.oracle.training_run import TrainingRun
from conformance.tests.dense_modules import TANH, network


@given(
    st.tuples(st.floats(-1e4, 1e4), st.just("float32"))
    | st.tuples(st.floats(-1e4, 1e4, width=32), st.sampled_from(["bfloat16", "float16"]))
)
def test_rounding_equals_torchs(drawn: tuple[float, str]) -> None:
    x, name = drawn
    ours = FORMATS[name].round(np.array([x]))[0]
    assert ours == torch.tensor([x], dtype=torch.float64).to(getattr(torch, name)).double().item()


@pytest.mark.parametrize(("name", "nearest", "even"), [("float16", 128.875, 129.0), ("bfloat16", 129.0, 130.0)])
def test_a_number_is_rounded_once_and_not_to_float32_first(name: str, nearest: float, even: float) -> None:
    x = np.nextafter((nearest + even) / 2.0, 0.0)  # float32 rounds it to the midpoint, which is then rounded to even
    assert FORMATS[name].round(FORMATS["float32"].round(np.array([x])))[0] == even
    assert FORMATS[name].round(np.array([x]))[0] == nearest


# Goldens, and the activations at which their backward passes start.
SOURCES = {
    "tiny": ("cls.loss", "classifier.loss"),
    "sinusoidal": ("cls.loss",),
    "tanh": ("cls.loss",),
    "relative-key-query": ("cls.loss",),
    "token-heads": ("classifier.loss + qa_outputs.loss", "sentence_embedding"),
    "sentence-heads": ("classifier.loss", "sentence_embedding"),
    "regression": ("classifier.loss",),
    "multi-label": ("classifier.loss",),
}
At = tuple[Network, str, list[Array]]  # a step of a network, with the values of its parents


@cache
def steps_by_kind() -> dict[str, At]:
    """Return a step of every kind and number of parents, from networks that together have all of them."""
    steps: dict[str, At] = {}
    for golden, source in ((golden, source) for golden, sources in SOURCES.items() for source in sources):
        loaded = load_golden(golden)
        batch, a = next(iter(loaded.batches.values())), loaded.checkpoint.architecture
        network = Network(a, loaded.checkpoint.weights, batch, source=source)
        shape = network.table["embeddings.dropout"].shape(batch.size, batch.length, 1)
        kept = np.random.default_rng(0).integers(0, 2, shape).astype(np.float64)
        poolings = [replace(network, architecture=a.with_(pooling=name)) for name in POOLINGS if name and a.pooling]
        relu = replace(network, architecture=a.with_(hidden_act="relu"))
        for each in (network, relu, replace(network, kept={"embeddings.dropout": kept}), *poolings):
            values = dict(each.walk())
            for name, row in each.table.items():
                if row.parents:
                    steps.setdefault(f"{row.kind} of {len(row.parents)}", (each, name, [values[p] for p in row.parents]))
    return steps | _of_an_optimizer()


def _of_an_optimizer() -> dict[str, At]:
    """Return two steps of an optimizer: one that clips and one that does not."""
    golden, rng, steps = load_golden("tiny"), np.random.default_rng(0), dict[str, At]()
    batch, weights = next(iter(golden.batches.values())), golden.checkpoint.weights
    shapes = {name: weights[name].shape for name in ("bert.pooler.dense.weight", "bert.pooler.dense.bias")}
    gradients = tuple({name: t * rng.standard_normal(shape) for name, shape in shapes.items()} for t in (1.0, 3.0, 2.0))
    for label, training in STEPPED.items():
        run = TrainingRun(golden.checkpoint.architecture, weights, batch, training=training, gradients=gradients)
        values = dict(run.walk())
        for name, row in run.table.items():
            if row.parents:
                steps[f"{row.kind} of {len(row.parents)}, {label}"] = (run, name, [values[p] for p in row.parents])
    return steps


def test_a_step_of_every_kind_is_tried() -> None:
    assert {kind.partition(" ")[0] for kind in steps_by_kind()} >= {
        kind
        for kind, step in EQUATIONS.items()
        if not issubclass(step, (Lookup, EncoderStates, Sinusoids, Seed, Initial, InitialConstant, InitialDraw))
        and kind != "gelu_pytorch_tanh"
    } - {"gelu_pytorch_tanh_backward"}


def test_jacobians_are_the_derivatives_of_the_equations() -> None:
    """Compare <w, f(x + h e) − f(x − h e)> / 2h with <Jᵀ w, e>, for random e and w."""
    for kind, (net, name, parents) in steps_by_kind().items():
        rng = np.random.default_rng(1)
        step = net.step(name, *parents)
        direction = rng.standard_normal(step.value.shape)
        for i, jacobian in enumerate(step.jacobians()):
            scale = max(float(np.abs(parents[i]).mean()), 1e-9) * 1e-5
            error = rng.standard_normal(parents[i].shape) * scale
            ends = ([*parents[:i], parents[i] + sign * error, *parents[i + 1 :]] for sign in (1, -1))
            upper, lower = (net.step(name, *end).value for end in ends)
            change = (upper - lower) / 2
            predicted = (jacobian.adjoint(direction) * error).sum()
            rounding = 1e-15 * float(np.abs(direction * step.value).sum())
            if isinstance(step, MaximumBackward) and i == 1:
                assert (
                    not change.any()
                )  # The derivative is 0; the map majorizes the change where another element becomes the largest.
                continue
            assert (direction * change).sum() == pytest.approx(predicted, rel=1e-4, abs=rounding), (kind, i)


def test_propagated_variance_equals_that_of_random_errors() -> None:
    for kind, (net, name, parents) in steps_by_kind().items():
        rng = np.random.default_rng(2)
        step = net.step(name, *parents)
        for i, jacobian in enumerate(step.jacobians()):
            deviation = 1e-6 * max(float(np.abs(parents[i]).mean()), 1e-9)
            variance = np.broadcast_to(jacobian.variance(np.full(parents[i].shape, deviation**2)), step.value.shape)
            samples = []
            for _ in range(60):
                errors = deviation * rng.standard_normal(parents[i].shape)
                samples.append(net.step(name, *parents[:i], parents[i] + errors, *parents[i + 1 :]).value - step.value)
            if not np.any(variance):
                assert not np.any(samples), (kind, i)
                continue
            total = np.square(samples).sum((*range(1, step.value.ndim + 1),)) / variance.sum()
            spread = max(float(total.std()) / math.sqrt(len(samples)), 0.01)
            assert abs(total.mean() - 1.0) < 5.0 * spread, (kind, i, total.mean())


@pytest.mark.parametrize("rows", [1, 10, 1000])
def test_the_rms_threshold_is_slightly_wider_than_the_exact_one_for_normal_errors(rows: int) -> None:
    alpha = sidak_share(300)
    exact = math.sqrt(chi2.isf(alpha, rows) / rows)
    assert exact < rms_threshold(rows, alpha) < 1.15 * exact


def test_uniform_errors_stay_below_the_limit_on_the_largest_error() -> None:
    worst = max_threshold(10**6, sidak_share(300))
    assert 6.0 < worst < 9.0
    assert sidak_share(1) == pytest.approx(FALSE_ALARM)


def test_philox_normals_are_normal_and_exact_in_bfloat16() -> None:
    x = Stream(7, "any").normals((200, 100))
    assert abs(x.mean()) < 0.03
    assert x.std() == pytest.approx(1.0, abs=0.03)
    assert (FORMATS["bfloat16"].round(x) == x).all()


# 1e-6 beside a sum of at least 1 is less than a rounding of a half-precision format.
BELOW_HALF = {"softmax-denominator-epsilon"}
WEIGHTS = {"weights-bfloat16", "weights-float16"}  # Generated weights are exact in both formats.
# Beside captured probabilities only, which the oracle's network does not have; `test_descriptions` plants them.
IN_KERNELS = {fault.name for fault in attended.KERNEL_FAULTS}
IN_DOUBLE = {"gelu-tanh-eight-digits"}  # In the other formats, the constant is the same number.


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_every_fault_is_separable_on_one_of_the_generated_goldens(dtype: str) -> None:
    best: dict[str, float] = {}
    goldens = (load_golden(name) for name in manifest() if name not in ("wide", "minilm"))
    for golden in (*goldens, network(TANH)):
        for p in power(golden, dtype):
            best[p.fault] = max(p.best, best.get(p.fault, 0.0))
    promised = {f.name for f in CATALOGUE if dtype == "float32" or not f.after_failure} - WEIGHTS - IN_KERNELS - IN_DOUBLE
    assert sorted(promised - set(best)) == []
    hidden: set[str] = set() if dtype == "float32" else BELOW_HALF
    assert {fault for fault, z in best.items() if z < 12.0} == hidden


def test_the_false_alarm_probability_is_rendered_exactly() -> None:
    assert float(FALSE_ALARM_TEXT) == FALSE_ALARM
