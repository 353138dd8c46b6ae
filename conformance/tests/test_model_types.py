"""Directories of other model types: a RoBERTa against transformers' own, and what the other types are."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertModel, ElectraConfig, ElectraModel, RobertaConfig, RobertaForMaskedLM, RobertaForSequenceClassification

from conformance import Golden, check, golden_of, load_directory
from conformance.cli import main
from conformance.errors import CheckpointError, UnsupportedArchitectureError
from conformance.model.batch import Batch
from conformance.model.directory import ROBERTA
from conformance.report.findings import findings
from conformance.results.to_records import activation_records
from conformance.tests.test_own_checkpoints import _write

SIZES: dict[str, Any] = {"vocab_size": 40, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
SIZES |= {"intermediate_size": 48, "max_position_embeddings": 20, "type_vocab_size": 1, "layer_norm_eps": 1e-5, "pad_token_id": 1}
IDS = np.array([[0, 7, 9, 30, 2, 1, 1, 1], [0, 5, 6, 8, 31, 12, 13, 2]])


def _saved(folder: Path, kind: Any = RobertaForMaskedLM, **changes: Any) -> Path:
    torch.manual_seed(0)
    model = kind(RobertaConfig(**{**SIZES, **changes}))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    return folder


def _golden(folder: Path) -> Golden:
    return golden_of("roberta", load_directory(folder), {"padded": Batch(IDS, attention_mask=(IDS != 1).astype(np.int64))})


def _shown(model: Any, **inputs: Any) -> Callable[..., Any]:
    """transformers' own network as a candidate; `inputs` replace what it would compute."""

    def run(batch: Any) -> Mapping[str, Any]:
        with torch.no_grad():
            given = model(batch.input_ids, attention_mask=batch.attention_mask, output_hidden_states=True, **inputs)
        states = {f"encoder.layer.{i}.output.LayerNorm": state for i, state in enumerate(given.hidden_states[1:])}
        logits = {"cls.predictions.decoder": given.logits} if "logits" in given else {}
        return {"embeddings.LayerNorm": given.hidden_states[0], **states, **logits}

    return lambda checkpoint, device, dtype: run


def test_transformers_roberta_conforms_to_a_bert_with_a_position_offset(tmp_path: Path) -> None:
    golden = _golden(_saved(tmp_path))
    assert golden.checkpoint.architecture.position_offset == 2
    assert golden.checkpoint.architecture.heads == ("masked_lm",)
    model = RobertaForMaskedLM.from_pretrained(tmp_path).eval()
    result = check(_shown(model), golden)
    assert result.outcome == "pass", str(result)
    counted_like_a_bert = check(_shown(model, position_ids=torch.arange(IDS.shape[1])[None]), golden)
    assert counted_like_a_bert.outcome == "fail"
    named = findings(activation_records(counted_like_a_bert))
    assert "positions-from-zero" in {f.fault.name for f in named if f.fault}


@pytest.mark.parametrize("kind", ROBERTA)
def test_the_position_offset_of_each_roberta_type_follows_from_its_padding_id(kind: str, tmp_path: Path) -> None:
    file = _saved(tmp_path, pad_token_id=3) / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "model_type": kind}))
    assert load_directory(tmp_path).architecture.position_offset == 4


def test_features_of_a_roberta_that_bert_does_not_have_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="classifier of sequences of a RoBERTa has a dense layer of its own"):
        load_directory(_saved(tmp_path / "classifier", RobertaForSequenceClassification))
    with pytest.raises(UnsupportedArchitectureError, match="hidden_act is 'relu', and the masked-LM head of a RoBERTa has gelu"):
        load_directory(_saved(tmp_path / "relu", hidden_act="relu"))


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        ("distilbert", "without token types and pooler, under other names; rename its parameters"),
        ("electra", "rename `electra.` to `bert.`"),
        ("unheard-of", "are those of bert, roberta, xlm-roberta, camembert$"),
    ],
)
def test_an_unsupported_model_type_is_described_before_any_missing_parameter(kind: str, what: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind, "dim": 32}))
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(UnsupportedArchitectureError, match=what) as caught:
        load_directory(tmp_path)
    assert f"is of a '{kind}'" in str(caught.value)


def test_an_electra_with_one_width_is_a_bert_after_renaming_its_parameters(tmp_path: Path) -> None:
    torch.manual_seed(0)
    sizes = {**SIZES, "type_vocab_size": 2, "embedding_size": SIZES["hidden_size"]}
    model = ElectraModel(ElectraConfig(**sizes)).eval()
    model.save_pretrained(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    save_file({name.replace("electra.", "bert."): tensor for name, tensor in state.items()}, tmp_path / "model.safetensors")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "model_type": "bert"}))

    result = check(_shown(model), _golden(tmp_path))
    assert result.outcome == "pass", str(result)


def test_a_wrong_number_of_heads_read_by_candidate_and_oracle_conforms_and_is_reported_as_unconfirmed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = _write(tmp_path / "bert")
    config = json.loads((folder / "config.json").read_text())
    heads = 2 * config["num_attention_heads"]
    (folder / "config.json").write_text(json.dumps({**config, "num_attention_heads": heads}))
    screen = ["--depth", "screen", "--in-process", "--out", str(tmp_path / "out")]
    assert main(["run", "-i", "hf-eager", "--checkpoint", str(folder), *screen]) == 0
    rendered = " ".join(capsys.readouterr().out.split())
    assert f"bert: num_attention_heads {heads}, layer_norm_eps" in rendered
    assert "confirmed by nothing else" in rendered
    with torch.no_grad():
        hidden = BertModel.from_pretrained(folder).eval()(torch.tensor([[5, 6, 7]])).last_hidden_state
    outputs = tmp_path / "out.json"
    outputs.write_text(json.dumps({"input_ids": [[5, 6, 7]], "last_hidden_state": hidden.double().numpy().round(4).tolist()}))
    assert main(["diagnose", str(outputs), "--checkpoint", str(folder)]) == 0
    assert f"num_attention_heads {heads}, layer_norm_eps" in " ".join(capsys.readouterr().out.split())
    assert main(["run", "-i", "hf-eager", "--golden", "tiny", *screen[:-1], str(tmp_path / "tiny")]) == 0
    assert "confirmed by nothing else" not in capsys.readouterr().out
