"""The gate of depth screen: it passes what the exact test passes, and opens for what the exact test fails."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from conformance import load_golden
from conformance.implementations.hugging_face import HuggingFace, run
from conformance.judge.depth import visible_element
from conformance.judge.evidence import Verdict
from conformance.judge.judge import Judge
from conformance.judge.segment import Segment
from conformance.judge.select_arithmetic import select_arithmetic
from conformance.model.checkpoint import rounded_weights
from conformance.numerics.arithmetic import as_captured, hypotheses
from conformance.oracle import Network
from conformance.oracle.accumulation import squared_partial_sums

LINEAR, NORM, ACTIVATION, CONTEXT, PROBS = (
    f"encoder.layer.2.{name}"
    for name in (
        "intermediate.dense",
        "output.LayerNorm",
        "intermediate.intermediate_act_fn",
        "attention.self.context",
        "attention.self.probs",
    )
)


@pytest.fixture(scope="module")
def network() -> Network:
    golden = load_golden("minilm")
    weights = rounded_weights(golden.checkpoint, "float32")
    return Network(golden.checkpoint.architecture, weights, next(iter(golden.batches.values())))


@pytest.fixture(scope="module")
def correct(network: Network) -> dict[str, Any]:
    model = HuggingFace("eager").module(load_golden("minilm").checkpoint, dtype="float32")
    return dict(run(model, network.batch.on("cpu")))


@pytest.fixture
def values(correct: dict[str, Any]) -> dict[str, Any]:
    return {name: value.clone() for name, value in correct.items()}


def screened(network: Network, values: dict[str, Any]) -> dict[str, Verdict]:
    judged = Judge(network, "float32", depth="screen").judge(values.items())
    return {verdict.activation: verdict for verdict in select_arithmetic(judged)}


def failing(network: Network, values: dict[str, Any]) -> list[str]:
    return [name for name, verdict in screened(network, values).items() if verdict.outcome == "fail"]


def rounding_error(network: Network, values: dict[str, Any], name: str, sigmas: float) -> torch.Tensor:
    """Return an error of so many sigma beyond the deterministic bound, from the captured activations before it."""
    order = list(network.table)
    before = {n: v.double().numpy() for n, v in values.items() if order.index(n) < order.index(name)}
    segment, (hypothesis, *_) = Segment(network, name, before), hypotheses("float32")
    return torch.tensor(sigmas * np.sqrt(segment.propagate({}, hypothesis)) + segment.bound(hypothesis), dtype=torch.float32)


def test_a_correct_candidate_passes_by_the_gate(network: Network, correct: dict[str, Any]) -> None:
    verdicts = screened(network, correct)
    assert all(verdict.outcome != "fail" for verdict in verdicts.values())
    bases = {name: verdicts[name].local.rests_on for name in (LINEAR, NORM, ACTIVATION, CONTEXT, PROBS)}  # type: ignore[union-attr]
    assert bases == {LINEAR: "projections"} | dict.fromkeys((NORM, ACTIVATION, CONTEXT, PROBS), "a lower bound of sigma")


@pytest.mark.parametrize("name", [NORM, ACTIVATION, CONTEXT, PROBS])
def test_a_single_element_beyond_its_limit_fails_at_a_step_that_is_not_linear(
    network: Network, values: dict[str, Any], name: str
) -> None:
    at = (1, 2, 1, 2) if name == PROBS else (1, 2, 3)
    limit = screened(network, values)[name].local.max_threshold  # type: ignore[union-attr]
    values[name][at] += rounding_error(network, values, name, 2.0 * limit)[at]
    (verdict,) = [v for v in screened(network, values).values() if v.outcome == "fail"][:1]
    assert verdict.activation == name
    assert verdict.local
    assert verdict.local.rests_on == "every element"
    assert limit < verdict.local.error.max < 4.0 * limit  # type: ignore[operator]


def test_a_single_element_of_a_linear_layer_is_seen_from_the_stated_error_on(network: Network, values: dict[str, Any]) -> None:
    at = (1, 2, 5)
    values[LINEAR][at] += rounding_error(network, values, LINEAR, 1.5 * visible_element())[at]
    assert LINEAR in failing(network, values)


@pytest.mark.parametrize("tokens", [1, None])
def test_features_and_tokens_of_a_linear_layer_that_exceed_the_limit_are_seen(
    network: Network, values: dict[str, Any], tokens: int | None
) -> None:
    at = (slice(1, 2), slice(1, 2)) if tokens else (slice(None), slice(None), slice(5, 6))
    values[LINEAR][at] += rounding_error(network, values, LINEAR, 12.0)[at]
    assert LINEAR in failing(network, values)


def test_a_projection_that_overflows_opens_the_gate(network: Network, values: dict[str, Any]) -> None:
    values[LINEAR][1, 2, 5] = 3e38
    assert LINEAR in failing(network, values)


def steps_of(golden: str, dtype: str) -> Iterator[tuple[str, Any]]:
    loaded = load_golden(golden)
    network = Network(
        loaded.checkpoint.architecture, rounded_weights(loaded.checkpoint, dtype), next(iter(loaded.batches.values()))
    )
    held: dict[str, Any] = {}
    for name, row in network.table.items():
        step = network.step(name, *(held[parent] for parent in row.parents))
        held[name] = step.value
        if not row.exact and row.axes:
            yield name, step


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_least_roundings_are_a_lower_bound_of_roundings(dtype: str) -> None:
    for golden in ("tiny", "wide"):
        for name, step in steps_of(golden, dtype):
            for hypothesis in as_captured(hypotheses(dtype, "cuda")):
                most, least = step.roundings(hypothesis.arithmetic), step.least_roundings(hypothesis.arithmetic)
                assert (least.variance() <= most.variance() * (1.0 + 1e-5)).all(), (name, hypothesis)
                assert np.all(least.bound <= np.asarray(most.bound) * (1.0 + 1e-12)), (name, hypothesis)


def test_squared_partial_sums_are_those_of_the_larger_order() -> None:
    terms = np.random.default_rng(0).standard_normal((3, 4, 9)) + 0.3
    for axis in (1, -1):
        orders = [np.square(np.cumsum(each, axis)).sum(axis, keepdims=True) for each in (terms, np.flip(terms, axis))]
        np.testing.assert_allclose(squared_partial_sums(terms, axis), np.maximum(*orders), rtol=1e-12)
