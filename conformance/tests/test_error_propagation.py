"""Errors of unexposed steps that a later step sums: sigma is that of their sum, and correct candidates that hide these steps
pass."""

from typing import Any

import numpy as np
import pytest

from conformance import Architecture, Batch, Checkpoint, Golden, check, golden_of, load_golden
from conformance.checks.backward_passes import gradients
from conformance.checks.check import Plan, Request
from conformance.checks.judgement import check_values
from conformance.implementations.inner_workings import inner_workings
from conformance.implementations.torch_encoder import torch_encoder
from conformance.judge import DEPTHS, judged_array
from conformance.judge.evidence import BY_OPERATIONS
from conformance.judge.local_error import judge_locally, screened
from conformance.judge.observation import Observation
from conformance.judge.segment import Segment
from conformance.model.activations import parameter_shapes
from conformance.numerics.arithmetic import hypotheses
from conformance.numerics.formats import FORMATS
from conformance.oracle import Network
from conformance.oracle.correlated_errors import CorrelatedErrors, RowError, row_mixed
from conformance.oracle.gradients.softmax import ProbabilitiesBackward

ATTENTION = "encoder.layer.1.attention"
TINY, BATCH = load_golden("tiny").checkpoint, load_golden("tiny").batches["padded"]

# For each result, the steps hidden before it: their errors are common to several positions or elements of a row that it sums.
HIDDEN = {
    f"{ATTENTION}.self.context": ("scores", "probs", "dropout"),
    f"{ATTENTION}.self.query.grad": ("scores.grad",),
    f"bert.{ATTENTION}.output.dense.weight.grad": ("value", "context"),
    f"bert.{ATTENTION}.self.value.weight.grad": ("context.grad", "value.grad"),
    f"bert.{ATTENTION}.self.value.bias.grad": ("context.grad", "value.grad"),
    f"bert.{ATTENTION}.self.query.weight.grad": ("key", "query.grad"),
    f"bert.{ATTENTION}.self.query.bias.grad": ("key", "query.grad"),
    f"bert.{ATTENTION}.self.key.weight.grad": ("scores.grad", "key.grad"),
    f"bert.{ATTENTION}.self.key.bias.grad": ("query", "key.grad"),
}


@pytest.mark.parametrize("result", HIDDEN)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_common_errors_in_several_terms_of_a_sum_are_added_with_their_signs(dtype: str, result: str) -> None:
    """Compare sigma with the exact variance of single elements, Σ v (Jᵀ e)²; between similar keys the errors of a row add up."""
    key = f"bert.{ATTENTION}.self.key.bias"
    network = Network(TINY.architecture, {**TINY.weights, key: TINY.weights[key] + 8.0}, BATCH, source="cls.loss")
    hidden = {f"{ATTENTION}.self.{name}" for name in HIDDEN[result]}
    segment = Segment(network, result, {name: value for name, value in network.walk() if name not in hidden})
    assert {*segment.steps} == {*hidden, result}
    shape = segment.value.shape
    for hypothesis in hypotheses(dtype)[:3]:
        found, own = segment.propagate({}, hypothesis), np.broadcast_to(segment.bound(hypothesis), shape)
        for number in np.linspace(0, found.size - 1, 5).astype(int):
            place, direction = np.unravel_index(number, shape), np.zeros(shape)
            direction[place] = 1.0
            exact = segment.directional_variance(direction, hypothesis) - own[place] ** 2
            assert found[place] == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize("name", ["intermediate_act_fn", "dense.grad"])
def test_rounding_errors_that_cross_the_kink_of_a_relu_raise_no_alarm_where_its_parent_is_hidden(name: str) -> None:
    """Zero is the exact result of the dense layer at one token, so that rounding alone decides which elements are positive."""
    layer, weights = "encoder.layer.0", dict(TINY.weights)
    network = Network(TINY.architecture.with_(hidden_act="relu"), weights, BATCH, source="cls.loss")
    dense, inputs = f"{layer}.intermediate.dense", f"{layer}.attention.output.LayerNorm"
    bias = weights[f"bert.{dense}.bias"] - dict(network.walk())[dense][0, 0]
    weights[f"bert.{dense}.bias"] = bias.astype(np.float32).astype(np.float64)
    values, single = dict(network.walk()), np.float32
    x = values[inputs].astype(single) @ weights[f"bert.{dense}.weight"].T.astype(single) + bias.astype(single)
    upstream = values[f"{layer}.intermediate.intermediate_act_fn.grad"].astype(single)
    found = np.where(x > 0.0, upstream if name == "dense.grad" else x, single(0.0))
    observed = {inputs: values[inputs].astype(single), f"{layer}.intermediate.intermediate_act_fn.grad": upstream}
    observation = Observation(network, f"{layer}.intermediate.{name}", found, observed)
    assert ((found != 0.0) != (observation.whole.segment.value != 0.0)).any()
    local, *_ = judge_locally(observation, hypotheses("float32"), 1e-8)
    assert local.passes


def _alike(length: int) -> Golden:
    """Return two layers in which all tokens are similar: they attend alike, and the error of one value enters every context."""
    a = Architecture(50, 32, 2, 2, 64, max_position_embeddings=length)
    rng, weights = np.random.default_rng(0), {}
    for name, shape in parameter_shapes(a).items():
        normal = rng.standard_normal(shape)
        usual = normal if name.endswith("LayerNorm.bias") else 0.6 / np.sqrt(shape[-1]) * normal
        weights[name] = 0.3 + 0.03 * normal if name.endswith("LayerNorm.weight") else usual
    ids = rng.integers(1, a.vocab_size, (1, length))
    return golden_of("alike", Checkpoint(a, weights), {"one": Batch(ids, np.zeros_like(ids), np.ones_like(ids))})


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_similar_tokens_raise_no_alarm_where_attention_is_hidden(dtype: str) -> None:
    result = check_values(Request.of(torch_encoder, _alike(128), dtype=dtype, plan=Plan(depth="screen")), gradients.function)
    assert result.outcome == "pass", result.reason
    judged = {verdict.activation for verdict in result.verdicts if verdict.outcome == "pass"}
    assert judged >= {name for name in HIDDEN if name.startswith("bert.")}


COPIES = {"output.dense": "output.dropout", "self.dropout.grad": "self.probs.grad"}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("result", COPIES)
def test_the_copy_of_a_hidden_result_is_stored_like_the_result_itself(dtype: str, result: str) -> None:
    """What a candidate exposes is rounded to storage, even if a fused kernel keeps the results before it in registers."""
    names = [f"{ATTENTION}.{result}", f"{ATTENTION}.{COPIES[result]}"]
    network = Network(TINY.architecture, TINY.weights, BATCH, source="cls.loss")
    assert network.table[names[1]].kind == "copy"
    observed = {name: value for name, value in network.walk() if name not in names}
    segments = [Segment(network, name, observed) for name in names]
    for hypothesis in hypotheses(dtype):
        expected, found = (segment.propagate(segment.leaf_variance(hypothesis), hypothesis) for segment in segments)
        np.testing.assert_array_equal(found, expected)


def test_masked_keys_are_no_evidence_of_a_mistake_in_the_steps_hidden_before_probabilities() -> None:
    """A probability of 0 has hardly any sigma and so a high likelihood, which must not count with a mistake alone."""

    class Hiding:
        features = inner_workings.features

        def prepare(self, checkpoint: Checkpoint, device: str, dtype: str) -> Any:
            run = inner_workings.prepare(checkpoint, device, dtype)
            shown = ("embeddings.LayerNorm", "probs", "output.LayerNorm")
            return lambda batch: {name: value for name, value in run(batch) if name.endswith(shown)}

    result = check(Hiding(), "cross-attention", dtype="bfloat16")
    assert result.conforms, result


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_residual_that_is_lost_beside_a_large_result_is_no_evidence_of_a_missing_residual(dtype: str) -> None:
    """Where one addend is below half an ulp of the other, the error of their sum is the addend itself."""
    rng = np.random.default_rng(0)
    name = f"bert.{ATTENTION}.output.dense.weight"
    large = 0.1 / FORMATS[dtype].unit_roundoff * rng.standard_normal(TINY.weights[name].shape)
    ids = rng.integers(1, TINY.architecture.vocab_size, (16, 32))
    batch = Batch(ids, np.zeros_like(ids), np.ones_like(ids))
    golden = golden_of("large", Checkpoint(TINY.architecture, {**TINY.weights, name: large}), {"one": batch})
    result = check(torch_encoder, golden, dtype=dtype)
    assert result.conforms, result


def _nearly_equal_scores(dtype: str, seed: int, spread: float, gain: float = 1.0) -> Observation:
    """Return scores whose product is rounded before it is scaled, times `gain`; queries, and keys, differ by `spread` u."""
    storage, rng = FORMATS[dtype], np.random.default_rng(seed)
    # √8 is no power of 2, by which the division would be exact.
    a = TINY.architecture.with_(num_attention_heads=TINY.architecture.hidden_size // 8)
    network, names = Network(a, TINY.weights, BATCH), [f"{ATTENTION}.self.{n}" for n in ("query", "key")]
    shape = dict(network.walk())[names[0]].shape
    noise = spread * storage.unit_roundoff  # moves few elements by an ulp
    observed = {n: storage.round(rng.standard_normal(shape[-1]) * (1.0 + noise * rng.standard_normal(shape))) for n in names}
    scores, root = f"{ATTENTION}.self.scores", np.sqrt(a.head_size)
    product = gain * Segment(network, scores, observed).value * root
    return Observation(network, scores, storage.round(storage.round(product) / root), observed)


@pytest.mark.parametrize(("dtype", "seed"), [("bfloat16", 14), ("float16", 11)])
def test_the_rms_of_nearly_equal_results_may_be_that_of_their_known_rounding_errors(
    seed: int, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In these draws it is larger than the limit for independent errors; scores that are 2 % too large fail nevertheless."""

    def passing(gain: float) -> list[bool]:
        observation, legal = _nearly_equal_scores(dtype, seed, 0.05, gain), hypotheses(dtype)
        judged = judge_locally(observation, legal, 1e-8), judge_locally(observation, legal, 1e-8, depth="screen")
        return [local.passes for found in judged for local in found if local.hypothesis == "modular"]

    assert passing(1.0) == [True, True]
    assert passing(1.02) == [False, False]
    monkeypatch.setattr(judged_array, "rms_limit", lambda _, limits, *__: limits.rms)
    assert passing(1.0) == [False, False]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("gain", [1.0, 1.02])
def test_a_bias_that_nearly_cancels_the_product_may_be_added_after_the_product_is_rounded(gain: float, dtype: str) -> None:
    """Such a step passes whatever arithmetic the others have; the same step with a bias that is 2 % too large fails.

    Inputs and weights are positive: products are then so large that unrounded inputs do not account for their rounding errors.
    """
    name, storage = f"{ATTENTION}.output.dense", FORMATS[dtype]
    weight, bias = f"bert.{name}.weight", f"bert.{name}.bias"
    positive = {weight: np.abs(TINY.weights[weight]), bias: np.zeros_like(TINY.weights[bias])}
    network = Network(TINY.architecture, {**TINY.weights, **positive}, BATCH)
    observed = {n: storage.round(np.abs(value)) for n, value in network.walk() if n == f"{ATTENTION}.self.context"}
    product = Segment(network, name, observed).value
    features = np.arange(product.shape[-1])
    own = storage.round(-product[0, features % product.shape[1], features])  # cancels one token's product in each feature
    actual = storage.round(storage.round(product) + storage.round(gain * own))
    network = Network(network.architecture, {**network.weights, bias: own}, network.batch)
    observation = Observation(network, name, actual, observed)
    for depth in DEPTHS:
        judged = judge_locally(observation, hypotheses(dtype), 1e-8, depth=depth)
        passing = {local.hypothesis for local in judged if local.passes} - {"native"}
        assert passing == ({BY_OPERATIONS} if gain == 1.0 else set())
    found = {one.activation: one.excess for one in screened(network, {**observed, name: actual}, dtype)}
    assert (found[name] <= 1.0) == (gain == 1.0)


@pytest.mark.parametrize("spread", [0.5, 8.0])
def test_probabilities_that_a_fused_backward_pass_computes_again_have_errors_of_their_own(spread: float) -> None:
    rng, keys, draws = np.random.default_rng(0), 12, 20_000
    scores, upstream = spread * rng.standard_normal((keys, keys)), rng.standard_normal((keys, keys))
    key, deviation = rng.standard_normal((keys, 3)), 1e-4 * (1.0 + np.abs(scores))
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    centred = upstream - (p * upstream).sum(-1, keepdims=True)

    def drawn() -> np.ndarray:
        return deviation * rng.standard_normal((draws, keys, keys))

    forward = drawn()
    mean = (p * forward).sum(-1, keepdims=True)
    of_context = p * (upstream * p * (forward - mean)).sum(-1, keepdims=True)
    again, once = (centred * p * (errors - mean) - of_context for errors in (drawn(), forward))
    step = ProbabilitiesBackward(None, upstream, p)  # type: ignore[arg-type]
    errors = step.through(1, row_mixed(p, -p, p, deviation**2))
    for found, result in ((errors, lambda e: e), (errors.in_rows(key), lambda e: e @ key)):
        np.testing.assert_allclose(np.square(result(again)).mean(0) / found.variance, 1.0, atol=0.06)
        # Errors that are not computed again cancel, or are little larger: the largest is 1.5 times the variance.
        assert (np.square(result(once)).mean(0) / found.variance).max() < 1.6


def test_what_a_row_of_probabilities_shares_is_summed_over_the_keys_in_the_gradient_of_the_values_weight() -> None:
    golden, rng, draws = load_golden("tiny"), np.random.default_rng(0), 4000
    batch = next(iter(golden.batches.values()))
    network = Network(golden.checkpoint.architecture, golden.checkpoint.weights, batch, source="pooler.activation")
    size, length, a = network.batch.size, network.batch.length, network.architecture
    upstream = rng.standard_normal((size, length, a.hidden_size))
    inputs = 1.0 + 0.1 * rng.standard_normal(upstream.shape)  # of one sign, so that what is shared adds up
    p = rng.dirichlet(np.ones(length), (size, a.num_attention_heads, length))
    step = network.step("encoder.layer.0.attention.self.value.grad", upstream, p)
    of_sum = CorrelatedErrors(shared=(RowError(1e-4 * p),))
    errors = step.through(1, row_mixed(p, -p, p, np.full(p.shape, 1e-8)) + of_sum)
    variance = np.einsum("bjf,bjk->fk", np.broadcast_to(errors.independent, upstream.shape), np.square(inputs))
    variance = variance + sum(mixture.summed(inputs) for mixture in errors.mixtures)
    squares = np.zeros_like(variance)
    split = upstream.reshape(size, length, a.num_attention_heads, -1)
    for _ in range(draws):
        again, once = (1e-4 * rng.standard_normal(p.shape) for _ in range(2))
        error = p * (again - (p * once).sum(-1, keepdims=True) + 1e-4 * rng.standard_normal((*p.shape[:-1], 1)))
        values = np.einsum("bhij,bihd->bjhd", error, split).reshape(upstream.shape)
        squares += np.square(np.einsum("bjf,bjk->fk", values, inputs))
    np.testing.assert_allclose(squares / draws / variance, 1.0, atol=0.15)
