"""Checkpoint directories as found in practice: fine-tuned, of sentence-transformers, pickled; a part of MiniLM with randomly
initialised heads."""

import json
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from conformance import check, load_directory
from conformance.cli import main
from conformance.errors import CheckpointError, DependencyMissingError, UnsupportedArchitectureError
from conformance.goldens.custom_golden import from_directory
from conformance.goldens.recipe import packaged_folder
from conformance.implementations.hugging_face import hf_eager
from conformance.implementations.inner_workings import inner_workings
from conformance.model.files import ALLOW_PICKLE
from conformance.results.to_records import activation_records

LAYERS, WORDS, LABELS = 2, 500, 5

CLASSES: dict[str, tuple[str, ...]] = {
    "BertModel": (),
    "BertForMaskedLM": ("masked_lm",),
    "BertLMHeadModel": ("masked_lm",),
    "BertForNextSentencePrediction": ("next_sentence",),
    "BertForPreTraining": ("masked_lm", "next_sentence"),
    "BertForSequenceClassification": ("classification",),
    "BertForTokenClassification": ("token_classification",),
    "BertForQuestionAnswering": ("question_answering",),
    "BertForMultipleChoice": ("multiple_choice",),
}
WALKED = ("BertForSequenceClassification", "BertForTokenClassification", "BertForQuestionAnswering", "BertForMultipleChoice")


@cache
def trained() -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the config and the parameters of MiniLM's first layers, with the first words of the vocabulary only."""
    try:
        folder = packaged_folder()
    except DependencyMissingError as why:
        pytest.skip(str(why))
    config = json.loads((folder / "config.json").read_text())
    state = load_file(folder / "model.safetensors")
    last = tuple(f"encoder.layer.{i}." for i in range(LAYERS, config["num_hidden_layers"]))
    state = {name: t for name, t in state.items() if not name.startswith(last) and not name.endswith("position_ids")}
    state["embeddings.word_embeddings.weight"] = state["embeddings.word_embeddings.weight"][:WORDS].clone()
    return {**config, "num_hidden_layers": LAYERS, "vocab_size": WORDS}, state


def tuned(kind: str, folder: Path) -> Path:
    """Write a directory as `save_pretrained` of that class does."""
    import transformers

    config, state = trained()
    torch.manual_seed(0)
    # The class takes the width of its output, start and end, from num_labels.
    labels = 2 if kind == "BertForQuestionAnswering" else LABELS
    model = getattr(transformers, kind)(transformers.BertConfig(**{**config, "num_labels": labels}))
    model.base_model.load_state_dict(state, strict=False)  # A class without a pooler saves none.
    for name, parameter in model.named_parameters():
        if name.startswith(("classifier", "qa_outputs", "cls.")) and "word" not in name:
            nn.init.normal_(parameter, std=0.1)
    model.save_pretrained(folder)
    return folder


@pytest.mark.landing(kind=["BertForPreTraining", "BertForSequenceClassification", "BertForMultipleChoice"])
@pytest.mark.parametrize("kind", CLASSES)
def test_a_directory_of_each_class_has_its_heads_and_conforms(kind: str, tmp_path: Path) -> None:
    golden = from_directory(tuned(kind, tmp_path))
    assert golden.checkpoint.architecture.heads == CLASSES[kind]
    for candidate in (hf_eager, inner_workings) if kind in WALKED else (hf_eager,):
        result = check(candidate, golden, depth="screen")
        assert result.conforms, result.reason
        assert not CLASSES[kind] or any(a.activation.endswith("loss") for a in activation_records(result))


def of_sentences(folder: Path, bert: str = "", *, normalize: bool = True, **pooling: bool) -> Path:
    """Write a sentence-transformers directory with its BERT in the folder `bert`."""
    kinds = [("Transformer", bert), ("Pooling", "1_Pooling"), *([("Normalize", "2_Normalize")] if normalize else [])]
    modules = [{"idx": i, "name": str(i), "path": p, "type": f"sentence_transformers.models.{k}"} for i, (k, p) in enumerate(kinds)]
    (folder / "1_Pooling").mkdir(parents=True)
    (folder / "modules.json").write_text(json.dumps(modules))
    modes = {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": False, **pooling}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 384, **modes}))
    (folder / bert).mkdir(exist_ok=True)
    config, state = trained()
    (folder / bert / "config.json").write_text(json.dumps(config))
    save_file(state, folder / bert / "model.safetensors")
    return folder


@pytest.mark.parametrize(
    ("mode", "version_6", "pooling", "bert"),
    [
        ("pooling_mode_mean_tokens", "mean", "mean", ""),
        ("pooling_mode_mean_tokens", ["mean"], "mean", "0_Transformer"),
        ("pooling_mode_cls_token", "cls", "cls", "0_Transformer"),
        ("pooling_mode_max_tokens", "max", "max", ""),
        ("pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens", "mean-sqrt-length", ""),
        ("pooling_mode_weightedmean_tokens", "weightedmean", "weighted-mean", ""),
        ("pooling_mode_lasttoken", "lasttoken", "last", "0_Transformer"),
    ],
)
def test_a_directory_of_sentence_transformers_in_either_form_conforms_with_its_pooling(
    mode: str, version_6: str | list[str], pooling: str, bert: str, tmp_path: Path
) -> None:
    golden = from_directory(of_sentences(tmp_path, bert, normalize=not bert, **{mode: True}))
    a = golden.checkpoint.architecture
    assert (a.pooling, a.normalize) == (pooling, not bert)
    result = check(hf_eager, golden, dtype="bfloat16" if pooling == "weighted-mean" else "float32", depth="screen")
    assert result.conforms, result.reason
    assert "sentence_embedding" in {a.activation for a in activation_records(result) if a.outcome == "pass"}
    assert load_directory(_as_version_6(tmp_path, version_6)).architecture == a


def _as_version_6(folder: Path, mode: str | list[str]) -> Path:
    """Rewrite the configurations of the modules as sentence-transformers 6 writes them."""
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"embedding_dimension": 384, "pooling_mode": mode}))
    names = dict.fromkeys(("module_input_name", "module_output_name"), "sentence_embedding")
    (folder / "2_Normalize").mkdir(exist_ok=True)
    (folder / "2_Normalize" / "config.json").write_text(json.dumps(names))
    return folder


def test_modules_and_poolings_without_an_equation_are_refused_by_name(tmp_path: Path) -> None:
    def refused(words: str, error: type[Exception] = UnsupportedArchitectureError) -> None:
        with pytest.raises(error, match=words):
            load_directory(folder)

    folder = of_sentences(tmp_path / "two", pooling_mode_mean_tokens=True, pooling_mode_cls_token=True)
    refused("pools by cls, mean, and there are equations for one of cls, mean")
    _as_version_6(folder, ["cls", "mean"])
    refused("pools by cls, mean, and there are equations for one of")
    _as_version_6(folder, "mean")
    (folder / "2_Normalize" / "config.json").write_text(json.dumps({"module_input_name": "token_embeddings"}))
    refused("reads or writes sentence_embedding, token_embeddings")
    folder = of_sentences(tmp_path / "other", pooling_mode_median_tokens=True)
    refused("pools by pooling_mode_median_tokens")
    file = folder / "modules.json"
    modules = json.loads(file.read_text())
    file.write_text(json.dumps([*modules, {"path": "3_Dense", "type": "sentence_transformers.models.Dense"}]))
    refused("lists Transformer, Pooling, Normalize, Dense")
    file.write_text(json.dumps([{**modules[0], "path": "../elsewhere"}]))
    refused("leads out of the folder", CheckpointError)


def _config(folder: Path, **changes: object) -> None:
    file = folder / "config.json"
    config = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps({name: value for name, value in config.items() if value is not None}))


def test_the_kind_of_classifier_must_be_stated_where_the_parameters_do_not_determine_it(tmp_path: Path) -> None:
    folder = tuned("BertForSequenceClassification", tmp_path / "sequences")
    _config(folder, architectures=None)
    with pytest.raises(CheckpointError, match=r'write into it "architectures": \["BertForSequenceClassification"\] or'):
        load_directory(folder)
    tokens = tuned("BertForTokenClassification", tmp_path / "tokens")
    _config(tokens, architectures=None)  # Without a pooler it can only be a token classifier.
    assert load_directory(tokens).architecture.heads == ("token_classification",)


@pytest.fixture
def pickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory whose parameters are a pickle, in a session that does not allow pickles."""
    monkeypatch.setenv(ALLOW_PICKLE, "0")
    folder = tuned("BertForQuestionAnswering", tmp_path / "pickled")
    file = folder / "model.safetensors"
    torch.save(load_file(file), folder / "pytorch_model.bin")
    file.unlink()
    return folder


def test_a_pickle_is_read_where_the_command_line_allows_it_and_refused_with_code_that_converts_it(
    pickled: Path, tmp_path: Path
) -> None:
    call = ["run", "hf-eager", "--checkpoint", str(pickled), "--depth", "screen", "--in-process"]
    call += ["-o", str(tmp_path / "out")]
    assert main(call) == 2
    assert main([*call, "--allow-pickle"]) == 0
    os.environ[ALLOW_PICKLE] = "0"
    with pytest.raises(CheckpointError, match="pytorch_model.bin is a pickle, which may run any code") as caught:
        load_directory(pickled)
    lines = [line.strip() for line in str(caught.value).splitlines() if line.startswith("    ")]
    assert len(lines) == 2
    exec("\n".join(lines))
    assert load_directory(pickled).architecture.heads == ("question_answering",)


class Code:
    """An object that runs a command when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return os.mkdir, (str(self.mark),)


@pytest.mark.parametrize("content", [lambda mark: {"a": Code(mark)}, lambda mark: [1, 2]])
def test_code_in_an_allowed_pickle_is_not_run(
    content: Callable[[Path], Any], pickled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ALLOW_PICKLE, "1")
    torch.save(content(tmp_path / "mark"), pickled / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="cannot be read as a file of parameters"):
        load_directory(pickled)
    assert not (tmp_path / "mark").exists()


@pytest.mark.landing(kind=["BertForQuestionAnswering", "BertForMultipleChoice"])
@pytest.mark.parametrize("kind", WALKED)
def test_the_expected_logits_equal_those_of_transformers_own_class(kind: str, tmp_path: Path) -> None:
    import transformers

    golden = from_directory(tuned(kind, tmp_path))

    def prepare(checkpoint: object, device: str, dtype: str) -> Callable[[Any], dict[str, Tensor]]:
        model = getattr(transformers, kind).from_pretrained(tmp_path, dtype=getattr(torch, dtype)).eval()

        def run(batch: Any) -> dict[str, Tensor]:
            inputs = {n: getattr(batch, n) for n in ("input_ids", "attention_mask", "token_type_ids")}
            with torch.no_grad():
                if kind == "BertForMultipleChoice":
                    return {"classifier": model(**{n: t[:, None] for n, t in inputs.items()}).logits}
                made = model(**inputs)
            if kind == "BertForQuestionAnswering":
                return {"qa_outputs": torch.stack([made.start_logits, made.end_logits], -1)}
            return {"classifier": made.logits}

        return run

    assert check(prepare, golden, depth="screen").conforms
