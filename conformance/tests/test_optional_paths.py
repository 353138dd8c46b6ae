"""What BERT's code supports beyond an encoder's forward pass: each path conforms, and is required only where it is declared."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from conformance import check, load_directory, load_golden
from conformance.implementations import inner_workings as walk
from conformance.implementations.hugging_face import hf_eager, hf_sdpa
from conformance.implementations.inner_workings import BertConfig, inner_workings, shape_log
from conformance.implementations.making_bert import making_bert
from conformance.tests.optional_paths import DECODERS, DTYPES, RELATIVE

pytestmark = pytest.mark.usefixtures("one_thread")


GOLDENS = [*RELATIVE, *DECODERS, "pruned-heads", "further-inputs"]


@pytest.mark.landing({"dtype": "float32"}, golden="relative-key-query")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("golden", GOLDENS)
def test_inner_workings_conforms_on_every_path(golden: str, dtype: str) -> None:
    result = check(inner_workings, golden, dtype=dtype)
    assert result.conforms, result
    others = check(making_bert, golden)  # It declares no features, and is not asked for them.
    assert others.outcome == "skip"
    assert "`features`" in others.reason or golden in RELATIVE


@pytest.mark.landing(dtype="float32", candidate=hf_sdpa)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("candidate", [hf_eager, hf_sdpa], ids=lambda c: c.name)
@pytest.mark.parametrize("golden", [*DECODERS, "further-inputs"])
def test_transformers_conforms_where_it_has_the_path(golden: str, candidate: Any, dtype: str) -> None:
    assert check(candidate, golden, dtype=dtype).conforms


@pytest.mark.landing({"which": "gradients"}, golden="relative-key-query")
@pytest.mark.parametrize("which", ["gradients", "training-mode"])
@pytest.mark.parametrize("golden", [*RELATIVE, "cross-attention", "pruned-heads", "further-inputs"])
def test_backward_passes_conform_on_every_path(golden: str, which: str) -> None:
    result = check(inner_workings, golden, check=which)
    assert result.conforms, result


@pytest.mark.parametrize("features", ["is_decoder", ("is_decodr",), 5])
def test_unknown_features_are_an_error_of_the_candidate(features: Any) -> None:
    result = check(replace(inner_workings, features=features), "decoder")
    assert result.outcome == "fail"
    assert "expected a tuple of names, of relative_key," in result.reason


def _directory(folder: Path, config: dict[str, Any], weights: Mapping[str, Any]) -> Path:
    save_file({name: np.array(value, np.float32) for name, value in weights.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "bert"}), "utf-8")
    return folder


@pytest.mark.parametrize("golden", [*RELATIVE, *DECODERS, "pruned-heads"])
def test_the_kind_of_network_is_read_from_a_directory(golden: str, tmp_path: Path) -> None:
    given = load_golden(golden)
    a, weights = given.checkpoint.architecture, dict(given.checkpoint.weights)
    if golden in RELATIVE:  # Hugging Face's network has this table and does not read it.
        weights["bert.embeddings.position_embeddings.weight"] = np.ones((a.max_position_embeddings, a.hidden_size))
    classes = {"architectures": ["BertForSequenceClassification"], "num_labels": a.num_labels}
    read = load_directory(_directory(tmp_path, {**a.as_dict(), **classes}, weights))
    assert read.architecture == a
    assert read.weights.keys() == given.checkpoint.weights.keys()


def _shapes(call: Callable[[], object]) -> list[tuple[str, tuple[int, ...]]]:
    found: list[tuple[str, tuple[int, ...]]] = []
    with shape_log(lambda what, shape: found.append((what, shape))):
        call()
    return found


def test_the_walkthrough_reports_the_tensors_of_the_optional_paths_in_order() -> None:
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


def test_the_walkthrough_reports_keys_and_values_including_the_past() -> None:
    with torch.device("meta"):
        attention = walk.BertSelfAttention(BertConfig())
        past = [torch.empty(2, 12, 4, 64), torch.empty(2, 12, 4, 64)]
        shapes = dict(_shapes(lambda: attention(torch.empty(2, 1, 768), past=past)))
    assert shapes["key, with the past"] == shapes["value, with the past"] == (2, 12, 5, 64)
    assert shapes["attention scores"] == (2, 12, 1, 5)
    assert [tuple(kept.shape) for kept in past] == [(2, 12, 5, 64)] * 2
