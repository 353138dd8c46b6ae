"""Registering a module by two tables: packing and unpacking of layouts, the example package's model, and every misuse of a
table."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from conformance import Tap, captured, check, fused, interleaved, load_golden, per_head, stacked, tied, transposed
from conformance.candidates.layouts import plain
from conformance.implementations.making_bert import making_bert

sys.path.insert(0, str(Path(__file__).parent / "example_package" / "src"))
from example_bert.conformance import example_bert

GOLDEN = load_golden("tiny")
A = GOLDEN.checkpoint.architecture
SELF = "bert.encoder.layer.{layer}.attention.self"
Q, K, V = (f"{SELF}.{n}.weight" for n in ("query", "key", "value"))


@pytest.mark.parametrize(
    ("layout", "shape"),
    [
        (plain(Q), (32, 32)),
        (transposed(Q), (32, 32)),
        (fused(Q, K, V), (96, 32)),
        (transposed(fused(Q, K, V)), (32, 96)),
        (fused(transposed(Q), transposed(K), axis=1), (32, 64)),
        (per_head(Q), (4, 8, 32)),
        (per_head(Q, axis=1), (32, 4, 8)),
        (fused(per_head(Q), per_head(K), per_head(V), axis=1), (4, 24, 32)),
        (interleaved(Q, K, V), (96, 32)),
        (stacked(Q), (2, 32, 32)),
        (stacked(fused(Q, K, V)), (2, 96, 32)),
        (stacked(Q, K, V), (3, 32, 32)),
        (stacked(stacked(Q, K, V)), (2, 3, 32, 32)),
        (tied(transposed(Q)), (32, 32)),
    ],
)
def test_every_layout_packs_to_its_shape_and_unpacking_restores_the_parameters(layout: Any, shape: tuple[int, ...]) -> None:
    layers = range(2) if layout.across else [0]
    names = [n.format(layer=i) for i in layers for n in layout.names]
    parts = [np.asarray(GOLDEN.checkpoint.weights[n]) for n in names]
    packed = layout.pack(parts, A)
    assert packed.shape == shape
    for part, again in zip(parts, layout.unpack(packed, [p.shape for p in parts], A), strict=True):
        assert np.array_equal(part, again)


def test_interleaved_heads_are_packed_in_order() -> None:
    q, k = (np.asarray(GOLDEN.checkpoint.weights[n.format(layer=0)]) for n in (Q, K))
    np.testing.assert_array_equal(interleaved(Q, K).pack([q, k], A)[:24], np.concatenate([q[:8], k[:8], q[8:16]]))


@pytest.mark.parametrize(("golden", "dtype"), [("tiny", "bfloat16"), ("deep", "float32")])
def test_the_example_package_conforms(golden: str, dtype: str) -> None:
    result = check(example_bert, golden, dtype=dtype)
    assert result.conforms, result.reason
    assert result.coverage[0] == 1 + 7 * load_golden(golden).checkpoint.architecture.num_hidden_layers


def test_a_wrong_layout_in_the_example_package_fails_at_its_place() -> None:
    parameters = {**example_bert.parameters, "blocks.{layer}.merge": transposed(per_head(OUTPUT, axis=1))}
    wrong = check(replace(example_bert, parameters=parameters))
    assert wrong.outcome == "error"
    assert "wrong shape" in wrong.reason
    parameters["blocks.{layer}.qkv.kernel"] = transposed(fused(K, Q, V))
    parameters["blocks.{layer}.merge"] = example_bert.parameters["blocks.{layer}.merge"]
    swapped = check(replace(example_bert, parameters=parameters))
    assert {v.activation.rsplit(".", 1)[1] for v in swapped.origins} == {"query", "key"}


OUTPUT = "bert.encoder.layer.{layer}.attention.output.dense.weight"
MISUSES: list[tuple[str, dict[str, Any], list[str]]] = [
    ("parameters", {"embedding.token_type_embedding.weight": None}, ["unexpected: the module's embedding", "missing:"]),
    ("parameters", {"embedding.token_embedding.weight": "bert.embeddings.word_embedings.weight"}, ["did you mean"]),
    ("parameters", {"embedding.tokens.weight": "bert.pooler.dense.weight"}, ["matches nothing: the module has no"]),
    (  # A name in use is not suggested.
        "parameters",
        {"transformer.{layer}.residual.mlp1.biases": "bert.encoder.layer.{layer}.intermediate.dense.bias"},
        ["matches nothing: the module has no 'transformer.0.residual.mlp1.biases'\n"],
    ),
    ("parameters", {"lm_head.unembedding.weight": "bert.embeddings.word_embeddings.weight"}, ["used twice", "tied()"]),
    ("parameters", {"lm_head.mlp.bias": "cls.predictions.bias"}, ["wrong shape: lm_head.mlp.bias is (32,)", "used twice"]),
    ("parameters", {"embedding.layer_norm.bias": Q}, ["{layer} in it needs {layer} on the other side as well"]),
    (
        "parameters",
        {"transformer.{2*layer}.layer_norm.bias": "bert.encoder.layer.{layer}.attention.output.LayerNorm.bias"},
        ["matches nothing: the module has no 'transformer.2.layer_norm.bias'"],
    ),
    ("parameters", {"lm_head.mlp.bias": "bert.pooler.dense.bias"}, ["used, though named in `unused`: bert.pooler.dense.bias"]),
    ("activations", {"embedding.layer_norm": "embeddings.Layernorm"}, ["unknown activation: embeddings.Layernorm; did you mean"]),
    ("activations", {"embedding.norm": "embeddings.dropout"}, ["matches nothing: the module has no submodule 'embedding.norm'"]),
    ("activations", {"lm_head": "cls.predictions.decoder"}, ["shown twice: cls.predictions.decoder"]),
    ("activations", {"embedding.dropout": "encoder.layer.{layer}.output.dense"}, ["{layer} on one side only: embedding.dropout"]),
]


@pytest.mark.parametrize(("table", "change", "words"), MISUSES)
def test_every_misuse_of_a_table_is_one_error_with_the_remedy(table: str, change: dict[str, Any], words: list[str]) -> None:
    entries = {k: v for k, v in {**getattr(making_bert, table), **change}.items() if v is not None}
    result = check(replace(making_bert, **{table: entries}))
    assert (result.outcome, result.exit_code) == ("error", 1)
    assert all(word in result.reason for word in words), result.reason


def test_a_module_used_at_two_places_is_tapped_at_both() -> None:
    shared = nn.Linear(2, 2)
    model = nn.Sequential(shared, nn.Tanh(), shared)
    taps = {"a": Tap("0"), "b": Tap("2", call=1)}
    found = dict(captured(model, taps, lambda: {"c": model(torch.ones(1, 2))}))
    assert torch.equal(found["b"], found["c"])
    assert not torch.equal(found["a"], found["b"])
