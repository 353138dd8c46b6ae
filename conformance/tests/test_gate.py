"""The gate: it passes what the exact test passes, and opens for what the exact test fails or tells apart."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from conformance import load_golden
from conformance.implementations.hugging_face import HuggingFace, run
from conformance.judge import Depth, visible_element
from conformance.judge.evidence import Error, FilterResult, LocalJudgement, Verdict
from conformance.judge.gate import ROOM, Part, rows_of, rows_that_tell, sample_of
from conformance.judge.judge import Judge
from conformance.judge.observation import Observation
from conformance.judge.segment import Segment
from conformance.judge.select_arithmetic import select_arithmetic
from conformance.model.batch import Batch
from conformance.model.checkpoint import rounded_weights
from conformance.numerics.arithmetic import as_captured, hypotheses
from conformance.numerics.thresholds import SEPARABLE_Z
from conformance.oracle import Network
from conformance.oracle.accumulation import in_random_order, squared_partial_sums

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


def judged(network: Network, values: dict[str, Any], depth: Depth = "screen") -> dict[str, Verdict]:
    found = Judge(network, "float32", depth=depth).judge(values.items())
    return {verdict.activation: verdict for verdict in select_arithmetic(found)}


def failing(network: Network, values: dict[str, Any]) -> list[str]:
    return [name for name, verdict in judged(network, values).items() if verdict.outcome == "fail"]


def rounding_error(network: Network, values: dict[str, Any], name: str, sigmas: float) -> torch.Tensor:
    """Return an error of so many sigma beyond the deterministic bound, from the captured activations before it."""
    order = list(network.table)
    before = {n: v.double().numpy() for n, v in values.items() if order.index(n) < order.index(name)}
    segment, (hypothesis, *_) = Segment(network, name, before), hypotheses("float32")
    return torch.tensor(sigmas * np.sqrt(segment.propagate({}, hypothesis)) + segment.bound(hypothesis), dtype=torch.float32)


@pytest.mark.parametrize("depth", ["screen", "full"])
def test_a_correct_candidate_passes_by_the_gate(network: Network, correct: dict[str, Any], depth: Depth) -> None:
    verdicts = judged(network, correct, depth)
    assert all(verdict.outcome != "fail" for verdict in verdicts.values())
    bases = {name: verdicts[name].local.rests_on for name in (LINEAR, NORM, ACTIVATION, CONTEXT, PROBS)}  # type: ignore[union-attr]
    assert bases == {LINEAR: "projections"} | dict.fromkeys((NORM, ACTIVATION, CONTEXT, PROBS), "a lower bound of sigma")


@pytest.mark.parametrize("head", [0, -1])
def test_an_error_in_any_head_of_a_sampled_row_fails(network: Network, values: dict[str, Any], head: int) -> None:
    """At depth screen the exact test is made of the first heads of these rows; the others are held against the lower bound."""
    row = int(network.batch.mask.sum(1).argmax())
    values[PROBS][row, head, 0] += rounding_error(network, values, PROBS, 9.0)[row, head, 0]
    assert failing(network, values)[0] == PROBS  # the context, of the right probabilities, may fail as well


def test_every_element_is_tested_exactly_at_depth_exhaustive(network: Network, correct: dict[str, Any]) -> None:
    verdicts = judged(network, correct, "exhaustive").values()
    assert {verdict.local.rests_on for verdict in verdicts if verdict.local} == {"every element"}


def test_filters_of_a_sample_tell_what_those_of_every_element_tell(network: Network, correct: dict[str, Any]) -> None:
    """A mistake that every element together tells from rounding is told by the sample, or every element is tested."""
    full, every = (judged(network, correct, depth) for depth in ("full", "exhaustive"))
    sampled = 0
    for name, verdict in every.items():
        local, expected = full[name].local, verdict.local
        if local and expected:
            sampled += local.rests_on != "every element"
            told = {f.name for f in local.filters if f.separable}
            # √2: the sample's elements need not be typical of all. Of a gross mistake, no amplitude is computed.
            subtle = {f.name for f in expected.filters if f.expected_z > 2.0**0.5 * SEPARABLE_Z and f.amplitude}
            assert subtle <= told, name
            # The others are reported as without effect on these inputs.
            assert {(f.name, f.step) for f in local.filters} == {(f.name, f.step) for f in expected.filters}, name
    assert sampled > 40


def test_a_mistake_without_effect_on_the_sample_is_evaluated_on_every_element() -> None:
    golden = load_golden("tiny")
    mask = np.ones((64, 32), np.int64)
    mask[:, -8:] = 0
    batch = Batch(np.full(mask.shape, 7), np.zeros_like(mask), mask)
    network = Network(golden.checkpoint.architecture, golden.checkpoint.weights, batch)
    observation = Observation(network, "encoder.layer.0.attention.self.scores", np.zeros((64, 2, 32, 32), np.float32), {})
    (row, *_) = set(range(1, 63)) - set(sample_of(rows_of(observation), 2).rows)
    mask[row] = mask[row, ::-1]  # as many tokens as in the others: a mask of lengths is wrong here alone
    values = {n: value.astype(np.float32) for n, value in network.walk() if not network.table[n].is_internal}
    for depth in ("full", "exhaustive"):
        local = judged(network, values, depth)["encoder.layer.0.attention.self.probs"].local
        assert local
        assert (local.rests_on == "every element") is (depth == "exhaustive")
        assert [f.separable for f in local.filters if f.name == "mask-as-lengths"] == [True]


@pytest.mark.parametrize("depth", ["full", "exhaustive"])
def test_mistakes_of_large_activations_are_named(network: Network, depth: Depth) -> None:
    def gelu(module: Any, inputs: Any, output: Any) -> Any:
        return torch.nn.functional.gelu(inputs[0], approximate="tanh")

    model = HuggingFace("eager").module(load_golden("minilm").checkpoint, dtype="float32")
    layer: Any = model.get_submodule("bert.encoder.layer.2")
    layer.output.LayerNorm.eps = 1e-5
    layer.intermediate.intermediate_act_fn.register_forward_hook(gelu)
    verdicts = judged(network, dict(run(model, network.batch.on("cpu"))), depth)
    failures = {
        name: verdict.local.named[0].name for name, verdict in verdicts.items() if verdict.outcome == "fail" and verdict.local
    }
    assert failures == {NORM: "epsilon", ACTIVATION: "gelu-variant"}


@pytest.mark.parametrize("name", [NORM, ACTIVATION, CONTEXT, PROBS])
def test_a_single_element_beyond_its_limit_fails_at_a_step_that_is_not_linear(
    network: Network, values: dict[str, Any], name: str
) -> None:
    at = (1, 2, 1, 2) if name == PROBS else (1, 2, 3)
    limit = judged(network, values)[name].local.max_threshold  # type: ignore[union-attr]
    values[name][at] += rounding_error(network, values, name, 2.0 * limit)[at]
    (verdict,) = [v for v in judged(network, values).values() if v.outcome == "fail"][:1]
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
    """Yield the steps of a forward and a backward pass."""
    loaded = load_golden(golden)
    batch = next(batch for batch in loaded.batches.values() if batch.class_labels is not None)
    weights = rounded_weights(loaded.checkpoint, dtype)
    network = Network(loaded.checkpoint.architecture, weights, batch, source="classifier.loss")
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


def test_squared_partial_sums_are_the_largest_of_both_orders_and_of_the_mean_over_all() -> None:
    rng = np.random.default_rng(0)
    terms = rng.standard_normal((3, 4, 9)) + 0.3
    shuffled = [np.square(np.cumsum(rng.permuted(terms, axis=-1), -1)).sum(-1, keepdims=True) for _ in range(4000)]
    np.testing.assert_allclose(
        np.mean(shuffled, 0), in_random_order(terms.sum(-1), np.square(terms).sum(-1), 9)[..., None], rtol=0.05
    )
    for axis in (1, -1):
        orders = [np.square(np.cumsum(each, axis)).sum(axis, keepdims=True) for each in (terms, np.flip(terms, axis))]
        y, squares = (x.sum(axis, keepdims=True) for x in (terms, np.square(terms)))
        largest = np.maximum(np.maximum(*orders), in_random_order(y, squares, terms.shape[axis]))
        np.testing.assert_allclose(squared_partial_sums(terms, axis), largest, rtol=1e-12)


def test_likelihoods_of_a_sample_are_extrapolated_alike(network: Network, correct: dict[str, Any]) -> None:
    values = {name: value.numpy() for name, value in correct.items()}
    before = {n: v for n, v in values.items() if list(network.table).index(n) < list(network.table).index(NORM)}
    sample = rows_of(Observation(network, NORM, values[NORM], before))
    local = LocalJudgement("", "", Error(1.0, 1.0, 1.0, (1, 2, 3)), 2.0, 2.0, 2.0, 2.0, row_nll=3.0)
    whole = sample.in_whole(local, 1 / 8, "a lower bound of sigma")
    assert (whole.nll, whole.row_nll) == (16.0, 24.0)


def test_a_larger_sample_has_room_for_rows_that_tell_less_and_one_that_loses_a_mistake_is_never_enough(network: Network) -> None:
    def part(rows: int) -> Part:
        observation = Observation(network, NORM, np.zeros((1, 1, 1)), {})
        return Part(observation, np.arange(rows), np.arange(0), lambda one, _: one)

    def needed(*expected: float) -> int:
        local = LocalJudgement("", "", Error(1.0, 1.0, 1.0, (0,)), 0.0, 2.0, 2.0, 2.0)
        return rows_that_tell(
            [replace(local, filters=tuple(FilterResult("", "", 0.0, 0.0, z) for z in expected))], part(32), part(512)
        )

    assert needed(SEPARABLE_Z, 0.99 * SEPARABLE_Z / 4.0) == 32  # All rows, 16 times as many, would not tell the second either.
    assert needed(SEPARABLE_Z / 2.0) == ROOM * 32 * 4
    assert all(needed(z) > 32 for z in np.linspace(SEPARABLE_Z / 4.0, SEPARABLE_Z, 100, endpoint=False))
