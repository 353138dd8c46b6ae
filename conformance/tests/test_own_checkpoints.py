"""A user's own checkpoints and inputs: `run --checkpoint DIR --text … --batch FILE`."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from conformance import golden_of, load_directory, load_golden
from conformance.cli import main
from conformance.errors import CheckpointError, UsageError
from conformance.goldens.custom_golden import from_directory, read_batches
from conformance.model.tokenizer import tokenized
from conformance.results.file import read_results

TINY = load_golden("tiny")


def _write(
    folder: Path, *, prefix: bool = True, heads: bool = True, old_names: bool = False, dtype: str = "float32", **config: object
) -> Path:
    """Write the network of `tiny` as a Hugging Face directory, in any of the forms in which such directories occur."""
    state = TINY.checkpoint.state_dict(dtype)
    state["bert.embeddings.position_ids"] = state["bert.embeddings.position_embeddings.weight"][:, 0].long()
    state["cls.predictions.decoder.weight"] = state["bert.embeddings.word_embeddings.weight"].clone()
    if not heads:
        state = {n: t for n, t in state.items() if n.startswith("bert.")}
    if not prefix:
        state = {n.removeprefix("bert."): t for n, t in state.items()}
    if old_names:
        state = {
            n.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): t
            for n, t in state.items()
        }
    folder.mkdir(parents=True, exist_ok=True)
    save_file({n: t.contiguous() for n, t in state.items()}, folder / "model.safetensors")
    sizes = {
        k: v
        for k, v in TINY.checkpoint.architecture.as_dict().items()
        if k not in ("heads", "pooler", "embedding_norm", "shared_layer_norm")
    }
    sizes["architectures"] = ["BertForSequenceClassification"]
    (folder / "config.json").write_text(json.dumps({**sizes, "model_type": "bert", **config}))
    return folder


def test_a_directory_is_read_in_each_of_its_forms(tmp_path: Path) -> None:
    for prefix, old_names, heads, dtype in (
        (True, False, True, "bfloat16"),
        (False, True, False, "float32"),
        (False, False, True, "float32"),
    ):
        checkpoint = load_directory(_write(tmp_path, prefix=prefix, heads=heads, old_names=old_names, dtype=dtype))
        assert bool(checkpoint.architecture.heads) is heads
        for name, array in checkpoint.weights.items():
            assert np.array_equal(array, TINY.checkpoint.weights[name]), name


def test_run_on_a_users_checkpoint_and_batch(tmp_path: Path) -> None:
    folder, batch, out = _write(tmp_path / "my-bert"), tmp_path / "batch.json", tmp_path / "out"
    batches = {"a": {"input_ids": [[1, 2, 3]]}, "b": {"input_ids": [[5, 6], [7, 8]], "attention_mask": [[1, 1], [1, 0]]}}
    batch.write_text(json.dumps(batches))
    on = ["--checkpoint", str(folder), "--batch", str(batch), "--in-process", "-o", str(out)]
    assert main(["run", "hf-eager", "making-bert", *on]) == 0
    results = read_results(out / "results.jsonl")
    assert {c.golden for c in results.checks} == {"my-bert"}
    assert {a.batch for a in results.activations} == {"a", "b"}


def test_texts_are_tokenized_with_the_checkpoints_vocabulary(tmp_path: Path) -> None:
    folder = _write(tmp_path)
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "i", "love", "cats", "!"]))
    batch = from_directory(folder, ["I love cats!", "cats"]).batches["text"]
    assert batch.input_ids.tolist() == [[2, 5, 6, 7, 8, 3], [2, 7, 3, 0, 0, 0]]
    assert batch.mask.sum() == 9


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"input_ids": [[1, 2], [3]]}', "different lengths"),
        ('{"input_ids": [[1.5, 2]]}', "float64 values, expected integers"),
        ('{"input_ids": [[1, 96]]}', "input_ids[0, 1] is 96, expected 0 to 95"),
        ('{"input_ids": [[1, -1]]}', "input_ids[0, 1] is -1"),
        ('{"input_ids": [[1]], "token_type_ids": [[2]]}', "token_type_ids[0, 0] is 2"),
        ('{"input_ids": [[1]], "attention_mask": [[1, 1]]}', "attention_mask is of shape (1, 2)"),
        ('{"input_ids": [[1]], "attention_mask": [[0]]}', "0 all over row 0"),
        ('{"input_ids": [[1]], "attention_mask": [[2]]}', "values other than 0 and 1"),
        ('{"input_id": [[1]]}', "holds no batch"),
        ('{"x": {"input_id": [[1]]}}', "found input_id"),
        (json.dumps({"input_ids": [[1] * 33]}), "33 tokens, and the network takes at most 32"),
        ("[", "cannot be read as a batch"),
        ("[]", "Expected `object`, got `array`"),
    ],
)
def test_an_error_in_a_batch_names_the_place_and_the_expected_value(content: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "batch.json"
    file.write_text(content)
    with pytest.raises(UsageError) as caught:
        golden_of("mine", TINY.checkpoint, read_batches(file))
    assert words in str(caught.value)


def test_each_error_in_a_directory_is_reported(tmp_path: Path) -> None:
    folder = _write(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    for change, words in (
        ({"hidden_act": "swish"}, "has no equation here"),
        ({"model_type": "albert"}, "'albert'"),
        ({"intermediate_size": 60}, "wrong shape"),
        ({"num_hidden_layers": 3}, "missing: bert.encoder.layer.2"),
        ({"num_hidden_layers": 1}, "unexpected: bert.encoder.layer.1"),
    ):
        (folder / "config.json").write_text(json.dumps({**config, **change}))
        with pytest.raises(UsageError) as caught:
            load_directory(folder)
        assert words in str(caught.value)
    (folder / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="lacks vocab_size"):
        load_directory(folder)
    (folder / "model.safetensors").write_bytes(b"no")
    with pytest.raises(CheckpointError):
        load_directory(folder)


def test_an_untied_decoder_is_not_replaced_by_the_tied_one(tmp_path: Path) -> None:
    folder = _write(tmp_path)
    state = load_file(folder / "model.safetensors")
    state["cls.predictions.decoder.weight"] = state["cls.predictions.decoder.weight"] + 1
    save_file(state, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match="the decoder is not tied"):
        load_directory(folder)


LAST = "encoder.layer.1.output.LayerNorm"


@pytest.mark.parametrize(("cased", "expected"), [(True, "Paris"), (False, "paris")])
def test_a_vocabulary_without_tokenizer_json_is_cased_if_its_settings_say_so(cased: bool, expected: str, tmp_path: Path) -> None:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "Paris", "paris", "is"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": not cased, "model_max_length": 512}))
    batch = tokenized(tmp_path, [("Paris is", None)])
    assert [words[i] for i in batch.input_ids[0]] == ["[CLS]", expected, "is", "[SEP]"]
