"""What BERT's code can do besides an encoder's forward pass: each path conforms, and with a mistake in it is found and named."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from torch import Tensor, nn

from conformance import Architecture, Checkpoint, UsageError, check, golden_of, load_directory, load_golden
from conformance.errors import UnsupportedArchitectureError
from conformance.model.batch import Batch
from implementations import inner_workings as walk
from implementations.cached import Cached, hf_cached, inner_workings_cached
from implementations.demystified import demystified
from implementations.hugging_face import HuggingFace, hf_eager, hf_sdpa
from implementations.inner_workings import BertConfig, encoder, inner_workings, shape_log
from implementations.making_bert import making_bert

pytestmark = pytest.mark.usefixtures("one_thread")

RELATIVE = ("relative-key", "relative-key-query")
DECODERS = ("decoder", "cross-attention")
DTYPES = ("float64", "float32", "bfloat16")


def broken(change: Callable[[Any], None], **options: Any) -> Any:
    """The walk's network with a mistake planted in its module."""

    def build(a: Any) -> nn.Module:
        model = inner_workings.build(a)
        change(model.bert)
        return model

    return replace(inner_workings, build=build, name="broken", **options)


def in_attention(change: Callable[[Any], None], layer: int = 0, of: str = "attention") -> Any:
    """A mistake in the self-attention of one layer."""
    return broken(lambda bert: change(getattr(bert.encoder.layer[layer], of).self))


def named(candidate: Any, golden: Any, name: str, layer: int = 0, **options: Any) -> None:
    """Fails, begins in that layer and no earlier, and has that name there."""
    result = check(candidate, golden, **options)
    assert result.outcome == "fail", result
    assert all(f"layer.{layer}." in v.activation for v in result.origins), [v.activation for v in result.origins]
    assert any(name == finding.name for finding in result.findings), str(result)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("golden", [*RELATIVE, *DECODERS, "pruned-heads", "further-inputs"])
def test_the_walks_network_conforms_on_every_path(golden: str, dtype: str) -> None:
    result = check(inner_workings, golden, dtype=dtype)
    assert result.conforms, result


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("candidate", [hf_eager, hf_sdpa], ids=lambda c: c.name)
@pytest.mark.parametrize("golden", [*DECODERS, "further-inputs"])
def test_transformers_conforms_where_it_has_the_path(golden: str, candidate: Any, dtype: str) -> None:
    assert check(candidate, golden, dtype=dtype).conforms


@pytest.mark.parametrize("which", ["gradients", "training-mode"])
@pytest.mark.parametrize("golden", [*RELATIVE, "cross-attention", "pruned-heads", "further-inputs"])
def test_backward_passes_conform_on_every_path(golden: str, which: str) -> None:
    result = check(inner_workings, golden, check=which)
    assert result.conforms, result


@pytest.mark.parametrize("golden", [*RELATIVE, *DECODERS, "pruned-heads", "further-inputs"])
def test_a_candidate_that_names_no_features_is_not_asked_for_them(golden: str) -> None:
    result = check(making_bert, golden)
    assert result.outcome == "skip"
    assert "`features`" in result.reason or golden in RELATIVE


@pytest.mark.parametrize("features", ["is_decoder", ("is_decodr",), 5])
def test_features_that_are_no_names_are_an_error_of_the_candidate(features: Any) -> None:
    result = check(replace(inner_workings, features=features), "decoder")
    assert result.outcome == "fail"
    assert "expected a tuple of names, of relative_key," in result.reason


# Relative positions, as torch's einsum computes them from the table of distances.


def _distances(f: Callable[[Tensor], Tensor]) -> Callable[[Any], None]:
    """The rows of f(i − j) are looked up."""

    def change(attention: Any) -> None:
        right, longest = attention.distance_embedding.forward, attention.longest
        attention.distance_embedding.forward = lambda rows: right((f(rows - longest) + longest).clamp(0, 2 * longest))

    return change


def _einsum(monkeypatch: pytest.MonkeyPatch, of: str, f: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
    """f of its usual result and its operands in the place of one term of the scores, in every layer."""
    usual = torch.einsum

    def changed(equation: str, x: Tensor, rows: Tensor) -> Tensor:
        return f(usual(equation, x, rows), x, rows) if equation == of else usual(equation, x, rows)

    monkeypatch.setattr(torch, "einsum", changed)


OF_QUERIES, OF_KEYS = "bhld,lrd->bhlr", "bhrd,lrd->bhlr"


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("distance-sign", lambda d: -d),
        ("distance-absolute", lambda d: d.abs()),
        ("distance-clipped", lambda d: d.clamp(-16, 16)),
        ("distance-offset", lambda d: d + 1),
    ],
)
@pytest.mark.parametrize("golden", RELATIVE)
def test_distances_that_are_looked_up_wrongly_are_named(golden: str, name: str, wrong: Callable[[Tensor], Tensor]) -> None:
    named(in_attention(_distances(wrong), layer=1), golden, name, layer=1)


@pytest.mark.parametrize(
    ("name", "of", "wrong"),
    [
        ("distance-query-missing", OF_QUERIES, lambda y, x, rows: 0.0 * y),
        ("distance-key-missing", OF_KEYS, lambda y, x, rows: 0.0 * y),
        ("distance-query-transposed", OF_QUERIES, lambda y, x, rows: y.transpose(-1, -2)),
        ("distance-key-transposed", OF_KEYS, lambda y, x, rows: y.transpose(-1, -2)),
        ("distance-unscaled", OF_QUERIES, lambda y, x, rows: y * x.shape[-1] ** 0.5),
        ("distance-unscaled", OF_KEYS, lambda y, x, rows: y * x.shape[-1] ** 0.5),
    ],
)
def test_terms_of_distances_that_are_wrong_are_named(
    monkeypatch: pytest.MonkeyPatch, name: str, of: str, wrong: Callable[[Tensor, Tensor, Tensor], Tensor]
) -> None:
    _einsum(monkeypatch, of, wrong)
    result = check(inner_workings, "relative-key-query")
    assert [v.activation.rpartition(".")[2] for v in result.origins] == ["probs", "probs"]
    assert any(name == finding.name for finding in result.findings), str(result)


# Decoders.


@pytest.mark.parametrize(("name", "diagonal"), [("mask-causal-strict", -1), ("mask-causal-late", 1), ("mask-not-causal", 99)])
def test_a_causal_mask_that_is_off_is_named(monkeypatch: pytest.MonkeyPatch, name: str, diagonal: int) -> None:
    usual = torch.Tensor.tril

    monkeypatch.setattr(torch.Tensor, "tril", lambda square, past: usual(square, past + diagonal))
    result = check(inner_workings, "decoder")
    assert result.outcome == "fail"
    assert any(name == finding.name for finding in result.findings), str(result)


def test_attention_to_an_encoders_states_without_their_mask_is_named() -> None:
    def unmasked(bert: Any) -> None:
        right = bert.encoder.forward
        bert.encoder.forward = lambda *inputs: right(*inputs[:4], None, *inputs[5:])

    result = check(broken(unmasked), "cross-attention")
    assert result.outcome == "fail"
    assert {v.activation.partition("attention")[0][-5:] for v in result.origins} == {"cross"}
    assert any(finding.name == "mask-ignored" for finding in result.findings), str(result)


def test_a_decoder_of_other_states_fails_where_they_are_read() -> None:
    def own(attention: Any) -> None:
        right = attention.forward
        attention.forward = lambda hidden, mask, heads, states, past: right(hidden, mask, heads, states.flip(1), past)

    result = check(in_attention(own, layer=1, of="crossattention"), "cross-attention")
    assert [v.activation for v in result.origins] == [f"encoder.layer.1.crossattention.self.{n}" for n in ("key", "value")]


# A token at a time, with a cache.


@pytest.mark.parametrize(("golden", "dtype"), [("decoder", "float32"), ("decoder", "bfloat16"), ("cross-attention", "float32")])
@pytest.mark.parametrize("candidate", [inner_workings_cached, hf_cached], ids=lambda c: c.name)
def test_a_decoder_step_by_step_equals_all_at_once(candidate: Cached, golden: str, dtype: str) -> None:
    result = check(candidate, golden, dtype=dtype)
    assert result.conforms, result


def test_relative_positions_go_on_where_the_cache_ends() -> None:
    given = load_golden("relative-key-query")
    checkpoint = Checkpoint(given.checkpoint.architecture.with_(is_decoder=True), given.checkpoint.weights)
    golden = golden_of("relative decoder", checkpoint, given.batches)
    assert check(inner_workings, golden).conforms
    assert check(inner_workings_cached, golden).conforms


def test_a_cache_with_positions_that_start_anew_fails_at_the_embeddings() -> None:
    def restarted(model: Any, inputs: dict[str, Tensor], cache: Any) -> Any:
        output = model.bert(
            **inputs,
            position_ids=torch.zeros(1, 1, dtype=torch.long),
            cache=cache,
            output_attentions=True,
            output_hidden_states=True,
        )
        return output.hidden_states, output.attentions

    result = check(replace(inner_workings_cached, step=restarted, name="restarted"), "decoder")
    assert [v.activation for v in result.origins] == ["embeddings.dropout"]


def test_keys_and_values_of_another_layer_fail_where_they_are_read() -> None:
    def mistaken(model: Any, inputs: dict[str, Tensor], cache: Any) -> Any:
        cache[2] = list(cache[0])  # two lists a layer
        output = model.bert(**inputs, cache=cache, output_attentions=True, output_hidden_states=True)
        return output.hidden_states, output.attentions

    result = check(replace(inner_workings_cached, step=mistaken, name="mistaken"), "decoder")
    assert [v.activation for v in result.origins] == [f"encoder.layer.1.{n}" for n in ("attention.self.probs", "output.LayerNorm")]


def test_a_mask_that_does_not_fit_the_cache_is_refused() -> None:
    model = walk.BertModel(
        BertConfig(hidden_size=8, num_attention_heads=2, intermediate_size=8, num_hidden_layers=1, is_decoder=True)
    )
    cache = walk.new_cache(BertConfig(num_hidden_layers=1))
    ids = torch.tensor([[5, 6, 7]])
    model(ids, torch.ones(1, 3), cache=cache)
    with pytest.raises(ValueError, match=r"for 3 tokens; the cache has 3 and this call 1, so it must be for 4"):
        model(ids[:, :1], torch.ones(1, 3), cache=cache)


def test_a_mask_of_an_encoders_states_that_is_shifted_fails_where_it_is_read() -> None:
    def call(model: Any, given: Any) -> dict[str, Tensor]:
        given.encoder_attention_mask = given.encoder_attention_mask.roll(1, 1)
        return inner_workings.call(model, given)  # type: ignore[no-any-return]

    result = check(replace(inner_workings, call=call, name="broken"), "cross-attention")
    assert result.outcome == "fail", result
    assert [v.activation for v in result.origins] == [f"encoder.layer.{i}.crossattention.self.probs" for i in (0, 1)]


# Pruned heads.


def test_heads_that_are_pruned_after_loading_leave_what_a_head_mask_leaves() -> None:
    """The parameters that are left are those of the kept heads; with them the pruned architecture conforms."""
    golden = load_golden("tiny")
    pruned = ((0, (0, 2)), (1, (3,)))
    model: Any = inner_workings.module(golden.checkpoint, dtype="float64")
    batch, mask = golden.batches["padded"].on("cpu"), torch.ones(2, 4)
    for layer, heads in pruned:
        mask[layer, list(heads)] = 0.0
    masked = model(batch.input_ids, batch.attention_mask, batch.token_type_ids, mask).logits
    for layer, heads in pruned:
        model.bert.encoder.layer[layer].attention.prune_heads(heads)
    left = model(batch.input_ids, batch.attention_mask, batch.token_type_ids).logits
    torch.testing.assert_close(left, masked)
    weights = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    a = golden.checkpoint.architecture.with_(pruned_heads=pruned, heads=("classification",))
    result = check(inner_workings, golden_of("pruned", Checkpoint(a, weights), golden.batches))
    assert result.conforms, result


def test_another_heads_output_in_the_place_of_a_pruned_one_fails_at_the_output_projection() -> None:
    def rotated(bert: Any) -> None:
        attention = bert.encoder.layer[0].attention
        attention.self.register_forward_hook(lambda _, __, output: (output[0].roll(8, -1), output[1]))

    result = check(broken(rotated), "pruned-heads")
    assert [v.activation for v in result.origins] == ["encoder.layer.0.attention.self.context"]


def test_heads_that_are_not_there_are_refused() -> None:
    attention = walk.BertAttention(BertConfig(hidden_size=8, num_attention_heads=2))
    with pytest.raises(ValueError, match=r"no heads \[2\] to prune; there are 2"):
        attention.prune_heads([0, 2])
    with pytest.raises(UnsupportedArchitectureError, match=r"pruned_heads has \[0, 4\] of layer 0"):
        load_golden("tiny").checkpoint.architecture.with_(pruned_heads=((0, (0, 4)),))


# Inputs and outputs.


def _embedded(scale: float) -> Any:
    """The walk's network given word embeddings, `scale` times what they should be, and no ids."""

    def call(model: Any, batch: Any) -> dict[str, Tensor]:
        words = scale * model.bert.embeddings.word_embeddings(batch.input_ids)
        model(attention_mask=batch.attention_mask, token_type_ids=batch.token_type_ids, inputs_embeds=words)
        return {}

    return replace(inner_workings, call=call, name="embedded")


def test_embeddings_in_the_place_of_ids_give_the_same() -> None:
    assert check(_embedded(1.0), "tiny").conforms
    result = check(_embedded(2.0), "tiny")
    assert [v.activation for v in result.origins] == ["embeddings.LayerNorm"]


class _Changed(HuggingFace):
    """transformers' network, changed once it is loaded."""

    def __init__(self, change: Callable[[Any], object]) -> None:
        super().__init__("eager", "changed")
        self._change = change

    def module(self, *case: Any) -> Any:
        model = super().module(*case)
        self._change(model["bert"])
        return model


def _given_embeddings(bert: Any) -> None:
    """Called with word embeddings in the place of ids."""

    def instead(_: Any, ids: tuple[Tensor], others: dict[str, Any]) -> Any:
        return (), {**others, "inputs_embeds": bert.embeddings.word_embeddings(*ids)}

    bert.register_forward_pre_hook(instead, with_kwargs=True)


def test_transformers_conforms_with_embeddings_in_the_place_of_ids() -> None:
    assert check(_Changed(_given_embeddings), "tiny").conforms


def test_transformers_conforms_where_activations_are_computed_again() -> None:
    result = check(_Changed(lambda bert: bert.gradient_checkpointing_enable()), "tiny", check="training-mode")
    assert result.conforms, result


@pytest.mark.parametrize(
    ("batch", "name", "wrong", "first"),
    [
        ("positions", "position_ids", lambda ids: None, "embeddings.position_embeddings"),
        ("pairs", "attention_mask", lambda mask: mask.diagonal(dim1=1, dim2=2), "encoder.layer.0.attention.self.probs"),
        ("pairs", "attention_mask", lambda mask: mask.transpose(1, 2), "encoder.layer.0.attention.self.probs"),
    ],
)
def test_inputs_that_are_ignored_or_read_wrongly_fail_where_they_are_read(
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


def test_position_ids_that_are_ignored_are_named() -> None:
    def call(model: Any, given: Any) -> dict[str, Tensor]:
        given.position_ids = None
        return inner_workings.call(model, given)  # type: ignore[no-any-return]

    result = check(replace(inner_workings, call=call, name="broken"), "further-inputs")
    assert any("position_ids" in finding.sentence for finding in result.findings), str(result)


def test_sinusoids_of_position_ids_that_are_given_are_judged() -> None:
    golden = load_golden("sinusoidal")
    batch = Batch.of({"input_ids": [[3, 4, 5], [6, 7, 8]], "position_ids": [[2, 0, 1], [4, 4, 3]]})
    result = check(replace(demystified, features=("position_ids",)), golden_of("own", golden.checkpoint, {"given": batch}))
    assert result.outcome == "fail"
    assert {v.activation for v in result.origins} == {"embeddings.position_embeddings"}


def test_outputs_that_are_asked_for_are_the_activations_themselves() -> None:
    golden = load_golden("cross-attention")
    model: Any = inner_workings.module(golden.checkpoint)
    batch = golden.batches["padded"].on("cpu")
    seen: dict[str, Tensor] = {}
    for i, layer in enumerate(model.bert.encoder.layer):
        layer.output.register_forward_hook(lambda _, __, y, i=i: seen.update({f"hidden {i}": y}))
        layer.attention.self.dropout.register_forward_hook(lambda _, __, y, i=i: seen.update({f"probs {i}": y}))
        layer.crossattention.self.dropout.register_forward_hook(lambda _, __, y, i=i: seen.update({f"cross {i}": y}))
    states = batch.encoder_hidden_states.float()
    output = model.bert(
        batch.input_ids, batch.attention_mask, encoder_hidden_states=states, output_attentions=True, output_hidden_states=True
    )
    assert len(output.hidden_states) == 3
    assert output.hidden_states[-1] is output.last_hidden_state
    for i in range(2):
        assert output.hidden_states[i + 1] is seen[f"hidden {i}"]
        assert output.attentions[i] is seen[f"probs {i}"]
        assert output.cross_attentions[i] is seen[f"cross {i}"]
    nothing = model.bert(batch.input_ids, encoder_hidden_states=states)
    assert (nothing.hidden_states, nothing.attentions, nothing.cross_attentions) == (None, None, None)


@pytest.mark.parametrize(
    ("wrong", "first"),
    [
        (lambda hidden, probs: ([hidden[0], *hidden[:-1]], probs), "encoder.layer.0.output.LayerNorm"),
        (lambda hidden, probs: (hidden, probs[::-1]), "encoder.layer.0.attention.self.probs"),
    ],
    ids=["hidden states of the layer before", "attentions in reverse order"],
)
def test_outputs_of_another_layer_fail_where_they_stand(wrong: Any, first: str) -> None:
    def mistaken(model: Any, inputs: dict[str, Tensor], cache: Any) -> Any:
        return wrong(*inner_workings_cached.step(model, inputs, cache))

    result = check(replace(inner_workings_cached, step=mistaken, name="mistaken"), "decoder")
    assert result.outcome == "fail"
    assert result.origins[0].activation == first


def test_activations_that_are_computed_again_give_the_same_values_and_gradients() -> None:
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


def test_dropout_that_is_drawn_anew_when_activations_are_computed_again_fails() -> None:
    def redrawing(bert: Any) -> None:
        bert.encoder.gradient_checkpointing = True
        for layer in bert.encoder.layer:
            right = layer.forward

            def drawn_anew(*inputs: Any, right: Any = right) -> Any:
                torch.rand(7)  # the random state is another one each time
                return right(*inputs)

            layer.forward = drawn_anew

    def forgetful(layer: Any, *inputs: Any) -> Any:
        return torch.utils.checkpoint.checkpoint(layer, *inputs, use_reentrant=False, preserve_rng_state=False)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoder, "recomputed", forgetful)
        result = check(broken(redrawing), "tiny", check="training-mode")
    assert result.outcome == "fail", result


# Directories.


@pytest.mark.parametrize("pruned", [{"0": 1}, {"0": ["a", 1]}, {"x": [1]}, {"0": [1], "00": [2]}, {"9" * 5000: [0]}])
def test_pruned_heads_that_are_none_are_refused(pruned: dict[str, Any]) -> None:
    a = load_golden("tiny").checkpoint.architecture
    with pytest.raises(UnsupportedArchitectureError, match="pruned_heads (is|has layers)"):
        Architecture.from_config({**a.as_dict(), "pruned_heads": pruned})


def _directory(folder: Path, config: dict[str, Any], weights: Mapping[str, Any]) -> Path:
    save_file({name: np.array(value, np.float32) for name, value in weights.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "bert"}), "utf-8")
    return folder


@pytest.mark.parametrize("golden", [*RELATIVE, *DECODERS, "pruned-heads"])
def test_a_directory_says_which_of_these_networks_it_has(golden: str, tmp_path: Path) -> None:
    given = load_golden(golden)
    a, weights = given.checkpoint.architecture, dict(given.checkpoint.weights)
    if golden in RELATIVE:  # Hugging Face's network has this table, and does not read it
        weights["bert.embeddings.position_embeddings.weight"] = np.ones((a.max_position_embeddings, a.hidden_size))
    classes = {"architectures": ["BertForSequenceClassification"], "num_labels": a.num_labels}
    found = load_directory(_directory(tmp_path, {**a.as_dict(), **classes}, weights))
    assert found.architecture == a
    assert check(inner_workings, golden_of("again", found, given.batches)).conforms
    assert check(making_bert, golden_of("again", found, given.batches)).outcome == "skip"


# Shapes, in the order of computation.


def _shapes(call: Callable[[], object]) -> list[tuple[str, tuple[int, ...]]]:
    found: list[tuple[str, tuple[int, ...]]] = []
    with shape_log(lambda what, shape: found.append((what, shape))):
        call()
    return found


def test_the_walk_reports_the_tensors_of_the_optional_paths_in_their_order() -> None:
    config = BertConfig(position_embedding_type="relative_key_query", is_decoder=True, add_cross_attention=True)
    with torch.device("meta"):
        layer = walk.BertLayer(config)
        hidden, states = torch.empty(2, 9, 768), torch.empty(2, 7, 768)
    shapes = _shapes(lambda: layer(hidden, states=states))
    names = [name for name, _ in shapes]
    of_distances = names.index("attention scores") + 1
    assert shapes[of_distances : of_distances + 5] == [
        ("distance embeddings", (9, 9, 64)),
        ("distance scores, query", (2, 12, 9, 9)),
        ("distance scores, key", (2, 12, 9, 9)),
        ("attention scores, scaled", (2, 12, 9, 9)),
        ("attention probabilities", (2, 12, 9, 9)),
    ]
    assert [shape for name, shape in shapes if name == "key"] == [(2, 12, 9, 64), (2, 12, 7, 64)]
    assert [shape for name, shape in shapes if name == "attention probabilities"] == [(2, 12, 9, 9), (2, 12, 9, 7)]
    assert names[-1] == "output, normalised"


def test_the_walk_reports_keys_and_values_with_the_past() -> None:
    with torch.device("meta"):
        attention = walk.BertSelfAttention(BertConfig())
        past = [torch.empty(2, 12, 4, 64), torch.empty(2, 12, 4, 64)]
        shapes = dict(_shapes(lambda: attention(torch.empty(2, 1, 768), past=past)))
    assert shapes["key, with the past"] == shapes["value, with the past"] == (2, 12, 5, 64)
    assert shapes["attention scores"] == (2, 12, 1, 5)
    assert [tuple(kept.shape) for kept in past] == [(2, 12, 5, 64)] * 2


# Batches that make no sense.


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"attention_mask": [[[1, 0], [0, 0]]]}, None),
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
def test_a_batch_says_what_is_wrong_with_further_inputs(arrays: dict[str, Any], message: str | None) -> None:
    if message is None:
        assert Batch.of({"input_ids": [[3, 4]], **arrays}).mask.tolist() == [[True, False]]
        return
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
def test_a_golden_says_which_further_inputs_do_not_fit_its_network(golden: str, arrays: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        golden_of("own", load_golden(golden).checkpoint, {"given": Batch.of({"input_ids": [[3, 4]], **arrays})})


def test_part_of_a_batch_has_the_parts_of_its_further_inputs() -> None:
    (given,) = load_golden("cross-attention").batches.values()
    pairs = load_golden("further-inputs").batches["pairs"]
    part = given.cut(slice(1, 3), 5)
    assert part.encoder_hidden_states is not None
    assert given.encoder_hidden_states is not None
    np.testing.assert_array_equal(part.encoder_hidden_states, given.encoder_hidden_states[1:3])
    assert pairs.cut(slice(0, 2), 5).keys.shape == (2, 5, 5)


# Batches that are drawn.


@pytest.mark.parametrize("law", ["generated-batches", "batching", "padding-length", "length-refused", "called-again"])
def test_drawn_batches_have_states_of_an_encoder_where_there_is_cross_attention(law: str) -> None:
    def forgetful(model: Any, batch: Any) -> dict[str, Tensor]:
        if batch.encoder_hidden_states is not None:
            batch.encoder_hidden_states = batch.encoder_hidden_states.flip(1)
        return inner_workings.call(model, batch)  # type: ignore[no-any-return]

    assert check(inner_workings, "cross-attention", check=law).conforms
    if law == "generated-batches":
        assert check(replace(inner_workings, call=forgetful, name="broken"), "cross-attention", check=law).outcome == "fail"


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_states_are_judged_as_a_candidate_of_the_format_reads_them(dtype: str) -> None:
    states = np.random.default_rng(0).normal(size=(2, 3, 32))
    batch = Batch.of({"input_ids": [[5, 6, 7], [8, 9, 1]], "encoder_hidden_states": states})
    own = golden_of("own", load_golden("cross-attention").checkpoint, {"own": batch})
    assert check(inner_workings, own, dtype=dtype).conforms
