"""Optional inputs: position ids, a mask for each query, embeddings in place of ids, and optional outputs are read as given, or
refused where invalid."""

import argparse
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from conformance import UsageError, check, golden_of, load_golden
from conformance.cli.arguments import utf8
from conformance.implementations.cached import inner_workings_cached
from conformance.implementations.hugging_face import HuggingFace, hf_eager
from conformance.implementations.inner_workings import encoder, inner_workings
from conformance.model.batch import Batch
from conformance.tests.optional_paths import broken, generated

pytestmark = pytest.mark.usefixtures("one_thread")


class _Changed(HuggingFace):
    """transformers' network, changed after it is loaded."""

    def __init__(self, change: Callable[[Any], object]) -> None:
        super().__init__("eager", "changed")
        self._change = change

    def module(self, *case: Any) -> Any:
        model = super().module(*case)
        self._change(model["bert"])
        return model


def _given_embeddings(bert: Any) -> None:
    """Call the network with word embeddings in place of ids."""

    def instead(_: Any, ids: tuple[Tensor], others: dict[str, Any]) -> Any:
        return (), {**others, "inputs_embeds": bert.embeddings.word_embeddings(*ids)}

    bert.register_forward_pre_hook(instead, with_kwargs=True)


@pytest.mark.parametrize(
    ("change", "name"), [(_given_embeddings, "values"), (lambda bert: bert.gradient_checkpointing_enable(), "training-mode")]
)
def test_transformers_conforms_with_embeddings_in_place_of_ids_and_with_activation_checkpointing(change: Any, name: str) -> None:
    result = check(_Changed(change), "tiny", check=name)
    assert result.conforms, result


@pytest.mark.parametrize(
    ("batch", "name", "wrong", "first"),
    [
        ("positions", "position_ids", lambda ids: None, "embeddings.position_embeddings"),
        ("pairs", "attention_mask", lambda mask: mask.diagonal(dim1=1, dim2=2), "encoder.layer.0.attention.self.probs"),
        ("pairs", "attention_mask", lambda mask: mask.transpose(1, 2), "encoder.layer.0.attention.self.probs"),
    ],
)
def test_optional_inputs_that_are_ignored_or_read_wrongly_fail_where_they_are_read(
    batch: str, name: str, wrong: Callable[[Tensor], Any], first: str
) -> None:
    def call(model: Any, given: Any) -> dict[str, Tensor]:
        if getattr(given, name) is not None and (name != "attention_mask" or given.attention_mask.dim() == 3):
            setattr(given, name, wrong(getattr(given, name)))
        return inner_workings.call(model, given)  # type: ignore[no-any-return]

    result = check(replace(inner_workings, call=call, name="broken"), "further-inputs")
    assert result.outcome == "fail"
    assert {v.batch for v in result.origins} == {batch}
    assert result.origins[0].activation == first
    assert name != "position_ids" or any(name in finding.sentence for finding in result.findings), str(result)


@pytest.mark.landing(candidate=inner_workings, head=["classification", "multiple_choice"])
@pytest.mark.parametrize("candidate", [inner_workings, hf_eager], ids=lambda c: c.name)
@pytest.mark.parametrize("head", ["classification", "multiple_choice", "token_classification", "question_answering"])
def test_position_ids_and_encoder_states_are_read_under_each_head(head: str, candidate: Any) -> None:
    arrays = {
        "input_ids": [[3, 4, 5], [6, 7, 8]],
        "position_ids": [[2, 0, 1], [4, 4, 3]],
        "encoder_hidden_states": np.random.default_rng(0).normal(size=(2, 4, 32)),
        "encoder_attention_mask": [[1, 1, 0, 1], [0, 1, 1, 1]],
        **({"choice_labels": [1]} if head == "multiple_choice" else {}),
    }
    result = check(candidate, generated("cross-attention", arrays, heads=(head,), pooler=True))
    assert result.conforms, result


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"attention_mask": [[[0, 1], [0, 0]]]}, "a token that attends to none"),
        ({"attention_mask": [[[1, 1]]]}, r"attention_mask is of shape \(1, 1, 2\), expected \(B, S\) or \(B, S, S\)"),
        ({"position_ids": [[0]]}, r"position_ids is of shape \(1, 1\), expected \(B, S\)"),
        ({"encoder_attention_mask": [[1, 1]]}, "without encoder_hidden_states|encoder_attention_mask is of shape"),
        ({"encoder_hidden_states": [[0.5, 1.0]]}, r"encoder_hidden_states is of shape \(1, 2\), expected \(B, T, H\)"),
        ({"encoder_hidden_states": [[[True]]]}, "bool values, expected numbers"),
        ({"encoder_hidden_states": [[[1.0]], [[1.0], [2.0]]]}, "rows are of different lengths"),
        ({"encoder_hidden_states": [[[1.0], [float("nan")]]]}, r"encoder_hidden_states\[0, 1, 0\] is nan"),
        ({"encoder_hidden_states": np.zeros((1, 0, 8))}, "row 0 has no state to attend to"),
        ({"encoder_hidden_states": [[[1.0]]], "encoder_attention_mask": [[0]]}, "row 0 has no state to attend to"),
    ],
)
def test_a_batch_reports_invalid_optional_inputs(arrays: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Batch.of({"input_ids": [[3, 4]], **arrays})


@pytest.mark.parametrize(
    ("golden", "arrays", "message"),
    [
        ("tiny", {"position_ids": [[0, -1]]}, r"position_ids\[0, 1\] is -1, expected 0 to 31"),
        ("tiny", {"encoder_hidden_states": np.ones((1, 3, 32))}, "the network has no cross-attention"),
        ("cross-attention", {"encoder_hidden_states": np.ones((1, 3, 33))}, "33 wide, expected 32"),
        ("decoder", {"attention_mask": [[[0, 1], [0, 1]]]}, "token 0 of row 0 attend to later tokens alone"),
    ],
)
def test_a_golden_reports_optional_inputs_that_do_not_fit_its_network(golden: str, arrays: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        golden_of("own", load_golden(golden).checkpoint, {"given": Batch.of({"input_ids": [[3, 4]], **arrays})})


def test_a_part_of_a_batch_has_the_parts_of_its_optional_inputs() -> None:
    (given,) = load_golden("cross-attention").batches.values()
    pairs = load_golden("further-inputs").batches["pairs"]
    part = given.cut(slice(1, 3), 5)
    assert part.encoder_hidden_states is not None
    assert given.encoder_hidden_states is not None
    np.testing.assert_array_equal(part.encoder_hidden_states, given.encoder_hidden_states[1:3])
    assert pairs.cut(slice(0, 2), 5).keys.shape == (2, 5, 5)
    assert Batch.of({"input_ids": [[3, 4]], "attention_mask": [[[1, 0], [0, 0]]]}).mask.tolist() == [[True, False]]


def test_a_batch_of_other_arrays_than_numpys_is_refused_with_the_conversion() -> None:
    with pytest.raises(UsageError, match="input_ids is a Tensor, expected a NumPy array of int64; Batch.of converts"):
        Batch(torch.tensor([[3, 4]]))
    with pytest.raises(UsageError, match="input_ids is of int32, expected a NumPy array of int64"):
        Batch(np.array([[3, 4]], np.int32))
    assert Batch.of({"input_ids": torch.tensor([[3, 4]])}).input_ids.tolist() == [[3, 4]]


# Conversion of given texts, arrays and lists.


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        ([[2**63]], "input_ids has the value 9223372036854775808, expected integers of at most 64 bits"),
        ([[1, -(2**64)]], "input_ids has the value -18446744073709551616, expected integers of at most 64 bits"),
        ([[1, None]], "input_ids has the value None, expected integers"),
        ([[True, False]], "input_ids has bool values, expected integers"),
        (None, "a batch has input_ids"),
    ],
)
def test_values_that_are_no_integers_of_64_bits_are_named(ids: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Batch.of({"input_ids": ids})


def test_a_text_given_under_an_ascii_locale_is_decoded_and_other_bytes_are_refused_by_name() -> None:
    for text in ("I love cats!", "I løve cats!", "猫"):
        assert utf8(text) == utf8(text.encode().decode("ascii", "surrogateescape")) == text
    with pytest.raises(argparse.ArgumentTypeError, match="is not UTF-8"):
        utf8(os.fsdecode("I løve cats!".encode("latin-1")))


@pytest.mark.parametrize(
    ("wrong", "first"),
    [
        (lambda hidden, probs: ([hidden[0], *hidden[:-1]], probs), "encoder.layer.0.output.LayerNorm"),
        (lambda hidden, probs: (hidden, probs[::-1]), "encoder.layer.0.attention.self.probs"),
    ],
    ids=["hidden states of the layer before", "attentions in reverse order"],
)
def test_a_requested_output_of_another_layer_fails_at_its_place(wrong: Any, first: str) -> None:
    def mistaken(model: Any, inputs: dict[str, Tensor], cache: Any) -> Any:
        return wrong(*inner_workings_cached.step(model, inputs, cache))

    result = check(replace(inner_workings_cached, step=mistaken, name="mistaken"), "decoder")
    assert result.outcome == "fail"
    assert result.origins[0].activation == first


def test_dropout_drawn_again_during_recomputation_fails() -> None:
    def redrawing(bert: Any) -> None:
        bert.encoder.gradient_checkpointing = True
        for layer in bert.encoder.layer:
            right = layer.forward

            def drawn_anew(*inputs: Any, right: Any = right) -> Any:
                torch.rand(7)  # The random state differs between the calls.
                return right(*inputs)

            layer.forward = drawn_anew

    def forgetful(layer: Any, *inputs: Any) -> Any:
        return torch.utils.checkpoint.checkpoint(layer, *inputs, use_reentrant=False, preserve_rng_state=False)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoder, "recomputed", forgetful)
        result = check(broken(redrawing), "tiny", check="training-mode")
    assert result.outcome == "fail", result


def test_activation_checkpointing_gives_the_same_values_and_gradients() -> None:
    golden = load_golden("tiny")
    batch, found = golden.batches["padded"].on("cpu"), []
    for recomputed in (False, True):
        model: Any = inner_workings.module(golden.checkpoint).train()
        model.bert.encoder.gradient_checkpointing = recomputed
        torch.manual_seed(0)
        loss = model(batch.input_ids, batch.attention_mask, labels=batch.class_labels).loss
        loss.backward()
        found.append({"loss": loss.detach(), **{n: p.grad for n, p in model.named_parameters() if p.grad is not None}})
    assert found[0].keys() == found[1].keys()
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])

    def recomputing(bert: Any) -> None:
        bert.encoder.gradient_checkpointing = True

    assert check(broken(recomputing), "tiny", check="training-mode").conforms
