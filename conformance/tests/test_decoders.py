"""Decoders, in one pass and token by token with a cache: a mistake in masks, states or cache fails where it is read."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from conformance import check, golden_of, load_golden
from conformance.implementations.cached import Cached, hf_cached, inner_workings_cached
from conformance.implementations.inner_workings import inner_workings
from conformance.judge.segment import Segment
from conformance.model.batch import Batch
from conformance.numerics.arithmetic import hypotheses
from conformance.oracle import Network
from conformance.tests.optional_paths import broken, in_attention

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("diagonal", [-1, 1, 99])
def test_a_causal_mask_that_is_shifted_is_described(monkeypatch: pytest.MonkeyPatch, diagonal: int) -> None:
    usual = torch.Tensor.tril

    monkeypatch.setattr(torch.Tensor, "tril", lambda square, past: usual(square, past + diagonal))
    result = check(inner_workings, "decoder")
    assert result.outcome == "fail"
    assert any(finding.name == "mask-other" for finding in result.findings), str(result)


def _unmasked(bert: Any) -> None:
    right = bert.encoder.forward
    bert.encoder.forward = lambda *inputs: right(*inputs[:4], None, *inputs[5:])


def _other_states(attention: Any) -> None:
    right = attention.forward
    attention.forward = lambda hidden, mask, heads, states, past: right(hidden, mask, heads, states.flip(1), past)


def _shifted(model: Any, given: Any) -> dict[str, Tensor]:
    given.encoder_attention_mask = given.encoder_attention_mask.roll(1, 1)
    return inner_workings.call(model, given)  # type: ignore[no-any-return]


PROBS = [f"encoder.layer.{i}.crossattention.self.probs" for i in (0, 1)]


@pytest.mark.parametrize(
    ("candidate", "origins", "name"),
    [
        (broken(_unmasked), PROBS, "mask-ignored"),
        (replace(inner_workings, call=_shifted, name="broken"), PROBS, ""),
        (in_attention(_other_states, 1, "crossattention"), [PROBS[1].replace("probs", n) for n in ("key", "value")], ""),
    ],
    ids=["no mask", "a shifted mask", "other states"],
)
def test_encoder_states_or_their_mask_that_are_read_wrongly_fail_where_they_are_read(
    candidate: Any, origins: list[str], name: str
) -> None:
    result = check(candidate, "cross-attention")
    assert result.outcome == "fail"
    assert [v.activation for v in result.origins] == origins
    assert not name or name in {finding.name for finding in result.findings}, str(result)


@pytest.mark.landing(dtype="float32")
@pytest.mark.parametrize(("golden", "dtype"), [("decoder", "float32"), ("decoder", "bfloat16"), ("cross-attention", "float32")])
@pytest.mark.parametrize("candidate", [inner_workings_cached, hf_cached], ids=lambda c: c.name)
def test_a_decoder_run_step_by_step_equals_one_pass(candidate: Cached, golden: str, dtype: str) -> None:
    result = check(candidate, golden, dtype=dtype)
    assert result.conforms, result


def _restarted(model: Any, inputs: dict[str, Tensor], cache: Any) -> Any:
    inputs = {**inputs, "position_ids": torch.zeros(1, 1, dtype=torch.long)}
    output = model.bert(**inputs, cache=cache, output_attentions=True, output_hidden_states=True)
    return output.hidden_states, output.attentions


def _of_another_layer(model: Any, inputs: dict[str, Tensor], cache: Any) -> Any:
    cache[2] = list(cache[0])  # Two lists for each layer.
    output = model.bert(**inputs, cache=cache, output_attentions=True, output_hidden_states=True)
    return output.hidden_states, output.attentions


@pytest.mark.parametrize(
    ("step", "origins"),
    [
        (_restarted, ["embeddings.dropout"]),
        (_of_another_layer, ["encoder.layer.1.attention.self.probs", "encoder.layer.1.output.LayerNorm"]),
    ],
)
def test_positions_that_restart_and_keys_of_another_layer_fail_where_they_are_read(step: Any, origins: list[str]) -> None:
    result = check(replace(inner_workings_cached, step=step, name="mistaken"), "decoder")
    assert [v.activation for v in result.origins] == origins


@pytest.mark.landing(law=["generated-batches", "padding-length", "length-refused"])
@pytest.mark.parametrize("law", ["generated-batches", "batching", "padding-length", "length-refused", "called-again"])
def test_drawn_batches_have_encoder_states_where_there_is_cross_attention(law: str) -> None:
    def forgetful(model: Any, batch: Any) -> dict[str, Tensor]:
        if batch.encoder_hidden_states is not None:
            batch.encoder_hidden_states = batch.encoder_hidden_states.flip(1)
        return inner_workings.call(model, batch)  # type: ignore[no-any-return]

    assert check(inner_workings, "cross-attention", check=law).conforms
    if law == "generated-batches":
        assert check(replace(inner_workings, call=forgetful, name="broken"), "cross-attention", check=law).outcome == "fail"


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_encoder_states_are_rounded_to_the_candidates_format_before_judging(dtype: str) -> None:
    states = np.random.default_rng(0).normal(size=(2, 3, 32))
    batch = Batch.of({"input_ids": [[5, 6, 7], [8, 9, 1]], "encoder_hidden_states": states})
    own = golden_of("own", load_golden("cross-attention").checkpoint, {"own": batch})
    assert check(inner_workings, own, dtype=dtype).conforms


@pytest.mark.parametrize("exposed", [True, False], ids=["values exposed", "values hidden"])
def test_sigma_of_gradients_of_cross_attention_scores_is_computed_where_states_have_another_length(exposed: bool) -> None:
    golden, name = load_golden("cross-attention"), "encoder.layer.1.crossattention.self.scores.grad"
    network = Network(
        golden.checkpoint.architecture, golden.checkpoint.weights, golden.batches["padded"], source="cls.predictions.loss"
    )
    values = {n: value for n, value in network.walk() if exposed or not n.endswith("crossattention.self.value")}
    segment = Segment(network, name, values)
    for hypothesis in hypotheses("bfloat16"):
        variance, _ = segment.projected(np.ones_like(segment.value), hypothesis)
        assert 0.0 < variance < np.inf
