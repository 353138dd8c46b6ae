"""`trace`: what happens to an input step by step, on the terminal, as Markdown, and as a page."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import conformance
from conformance import golden_of, load_golden
from conformance.checks.trace import Trace, true_trace
from conformance.errors import DependencyMissingError, UsageError
from conformance.goldens import golden, recipe
from conformance.model.batch import Batch
from conformance.report.trace_report import Statistics, TracedBatch, traced_batch
from conformance.tests.commands import Command
from conformance.tests.test_own_checkpoints import _write

TINY = load_golden("tiny")
TRUE = true_trace(TINY)
QUERY = "encoder.layer.0.attention.self.query"
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "i", "love", "cats", "!", "<b>hot</b>"]
VOCABULARY += [f"w{i}" for i in range(96 - len(VOCABULARY))]


def _first(trace: Trace) -> TracedBatch:
    return traced_batch(trace, next(iter(trace.batches)))


def _statistics(trace: Trace, name: str) -> Statistics:
    return next(step.statistics for step in _first(trace).steps if step.row.name == name)


@pytest.fixture
def my_bert(tmp_path: Path) -> Path:
    """A checkpoint with a masked-LM head and a vocabulary."""
    folder = _write(tmp_path / "my-bert")
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY))
    return folder


def test_statistics_include_real_tokens_and_exclude_padding() -> None:
    value, mask = TRUE.activations["padded"][QUERY], TINY.batches["padded"].mask
    found, real = _statistics(TRUE, QUERY), value[mask]
    rms = np.sqrt((real**2).mean())
    expected = (real.mean(), real.std(), real.min(), real.max(), rms)
    assert (found.mean, found.deviation, found.min, found.max, found.rms) == pytest.approx(expected)
    changed = {"padded": {**TRUE.activations["padded"], QUERY: np.where(mask[:, :, None], value, 1e9)}}
    assert _statistics(replace(TRUE, activations=changed), QUERY) == found
    all_padding = Batch.of({"input_ids": [[1, 2]], "attention_mask": [[0, 1]]})
    trace = true_trace(golden_of("mine", TINY.checkpoint, {"left": all_padding}))  # where everything counts
    assert _statistics(trace, "pooler.dense").mean == pytest.approx(trace.activations["left"]["pooler.dense"].mean())


def test_trace_in_python_runs_an_implementation_on_texts(my_bert: Path) -> None:
    found = conformance.trace("golden:my-bert", f"checkpoint:{my_bert}", texts=["i love cats !"])
    assert isinstance(found, conformance.Trace)
    assert [t.text for t in _first(found).tokens[0]] == ["[CLS]", "i", "love", "cats", "!", "[SEP]"]
    with pytest.raises(UsageError, match="golden tiny has no tokenizer"):
        conformance.trace("golden:tiny", texts=["i love cats !"])


def test_a_trace_is_printed_as_json_and_a_saved_one_is_traced_again(my_bert: Path, tmp_path: Path, command: Command) -> None:
    saved, written = tmp_path / "out" / "walk.safetensors", tmp_path / "out" / "walk.json"
    texts = ("--text", "i love [MASK] !", "--text", "cats")
    outputs = ("-o", saved, "-o", written)
    ended = command("trace", "golden:my-bert", "--checkpoint", my_bert, *texts, *outputs)
    assert (ended.code, ended.out) == (0, "")
    listed = json.loads(written.read_text())
    query = next(row for row in listed if row["activation"] == QUERY)
    assert (query["axes"], query["lengths"], query["parents"]) == (
        ["batch", "position", "feature"],
        [2, 6, 32],
        ["embeddings.dropout"],
    )
    (predicted,) = (row["predictions"] for row in listed if row["predictions"])
    assert predicted[0]["position"] == 3
    assert json.loads(command("trace", saved, "--format", "json").out) == listed
    assert command("diff", saved, "golden:my-bert").code == 0  # on the saved batch instead of a generated one


def test_texts_are_tokenized_with_minilm_by_default(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Path:
        raise DependencyMissingError(f"not installed: {recipe.INSTALL}")

    with monkeypatch.context() as patch:
        patch.setattr(recipe, "packaged_folder", missing)
        golden._verified.cache_clear()  # Another test may have opened it.
        ended = command("trace", "hf-eager", "--text", "I love cats!")
        assert (ended.code, recipe.INSTALL in ended.err) == (3, True)
    try:
        recipe.packaged_folder()
    except DependencyMissingError as why:
        pytest.skip(str(why))
    assert "[CLS] i love cats ! [SEP]" in command("trace", "golden:minilm", "--text", "I love cats!").out
