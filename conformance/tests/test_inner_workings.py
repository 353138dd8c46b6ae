"""The second seed implementation, `inner-workings`: the walkthrough's order, each component, and the paths beyond an encoder's
forward pass, each required only where it is declared."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from transformers import BertConfig as TheirConfig
from transformers import BertForSequenceClassification

from conformance import check, load_directory, load_golden
from conformance.implementations import inner_workings as walk
from conformance.implementations.hugging_face import hf_eager, hf_sdpa
from conformance.implementations.inner_workings import BertConfig, inner_workings, shape_log
from conformance.implementations.making_bert import making_bert
from conformance.tests.optional_paths import DECODERS, DTYPES, RELATIVE

IDS = torch.tensor([[101, 146, 1567, 11771, 106, 102, 0, 0, 0], [101, 1124, 18457, 10194, 11478, 7136, 13473, 119, 102]])
LABELS = torch.tensor([1, 0])

WORDS, HEADS, KEYS = (2, 9, 768), (2, 12, 9, 64), (2, 12, 9, 9)
EMBEDDINGS = [(1, 9), (2, 9), (2, 9), WORDS, (1, 9, 768), WORDS, WORDS, WORDS, WORDS]
SELF_ATTENTION = [WORDS, WORDS, WORDS, WORDS, HEADS, HEADS, HEADS, (2, 12, 64, 9), *[KEYS] * 4, HEADS, (2, 9, 12, 64), WORDS]
SELF_OUTPUT = [WORDS] * 4
INTERMEDIATE = [WORDS, (2, 9, 3072), (2, 9, 3072)]
OUTPUT = [(2, 9, 3072), WORDS, WORDS, WORDS]
LAYER = [*SELF_ATTENTION, *SELF_OUTPUT, *INTERMEDIATE, *OUTPUT]
POOLER = [WORDS, (2, 768), (2, 768), (2, 768)]
MODEL = [*EMBEDDINGS, *LAYER * 12, *POOLER]

HIDDEN = torch.empty(WORDS, device="meta")
META = IDS.to("meta")


def shapes_printed_by(call: Any) -> list[tuple[int, ...]]:
    shapes: list[tuple[int, ...]] = []
    with shape_log(lambda what, shape: shapes.append(shape)):
        call()
    return shapes


def test_the_network_reports_the_walkthroughs_shapes_in_order() -> None:
    with torch.device("meta"):
        model = walk.BertModel(BertConfig())
    assert shapes_printed_by(lambda: model(META, META, META)) == MODEL


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_it_conforms(dtype: str) -> None:
    result = check(inner_workings, "tiny", dtype=dtype)
    assert result.conforms, result.reason
    assert result.coverage == (37, 47)


@pytest.mark.parametrize("kind", ["single_label_classification", "multi_label_classification", "regression"])
def test_each_loss_equals_hugging_faces(kind: str) -> None:
    labels = {"single_label_classification": torch.tensor([2, 0]), "regression": torch.tensor([0.5, -1.0])}.get(
        kind, torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]])
    )
    count = 1 if kind == "regression" else 3
    sizes = {"vocab_size": 50, "hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 48}
    torch.manual_seed(0)
    theirs = BertForSequenceClassification(TheirConfig(**sizes, num_labels=count, problem_type=kind)).eval()
    ours = walk.BertForSequenceClassification(BertConfig(**sizes, num_labels=count)).eval()
    ours.load_state_dict(theirs.state_dict())  # strict=True: every name must be one of theirs.
    ids = IDS % 50
    expected = theirs(ids, labels=labels)
    loss, logits = ours(ids, labels=labels)
    torch.testing.assert_close(logits, expected.logits)
    torch.testing.assert_close(loss, expected.loss)


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
