"""`diagnose` of embeddings: truncated texts, omitted prefixes and wrong poolings are named with their numbers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conformance import Batch, Checkpoint, golden_of
from conformance.checks.trace import record
from conformance.cli import main
from conformance.diagnosis import diagnose
from conformance.diagnosis.inputs import other_inputs
from conformance.goldens.generated_weights import weights
from conformance.implementations.hugging_face import hf_eager
from conformance.model.tokenizer import tokenized
from conformance.numerics.formats import Array
from conformance.tests.dense_modules import ARCHITECTURE, TANH, directory, network

Captured = pytest.CaptureFixture[str]
NORMALIZED = network(normalize=True).checkpoint
TEXTS = [[30, 31, 32, 33, 34], [40, 41, 42], [50, 51]]


def texts(rows: list[list[int]], prefix: tuple[int, ...] = (7, 8)) -> Batch:
    """Return a batch of texts with a prefix, padded at the right."""
    length = max(map(len, rows)) + len(prefix) + 2
    ids = [[2, *prefix, *row, 3] for row in rows]
    padded = [row + [0] * (length - len(row)) for row in ids]
    return Batch.of({"input_ids": padded, "attention_mask": [[1] * len(row) + [0] * (length - len(row)) for row in ids]})


BATCH, CUT, WITHOUT = texts(TEXTS), texts([row[:2] for row in TEXTS]), texts(TEXTS, ())


def embeddings(batch: Batch, checkpoint: Checkpoint = NORMALIZED) -> Array:
    golden = golden_of("given", checkpoint, {"given": batch})
    return record(hf_eager, golden, "cpu", "float32").activations["given"]["sentence_embedding"]


def printed(values: Array) -> Any:
    return np.vectorize(lambda v: f"{v:.5f}", otypes=[object])(values).tolist()


@pytest.mark.parametrize("checkpoint", [NORMALIZED, network(TANH).checkpoint], ids=["normalised", "dense"])
@pytest.mark.parametrize(
    ("read", "name", "sentence"),
    [
        (CUT, "text-truncated", "each text is cut to 6 tokens, [CLS] and [SEP] among them"),
        (WITHOUT, "prefix-missing", "the prefix 'query :' of each text is left out"),
    ],
)
def test_a_mistake_in_the_inputs_is_named_with_its_length_or_its_prefix(
    read: Batch, name: str, sentence: str, checkpoint: Checkpoint
) -> None:
    words = [["[CLS]", "query", ":", *map(str, row[3:])] for row in BATCH.input_ids]
    diagnosis = diagnose(checkpoint, BATCH, {"embedding": printed(embeddings(read, checkpoint))}, words=words)
    assert not diagnosis.conforms
    assert diagnose(checkpoint, BATCH, {"embedding": printed(embeddings(BATCH, checkpoint))}).conforms
    tied = [[(fault.name, fault.sentence, fault.where) for fault in e.faults] for e in diagnosis.explanations if e.tied]
    assert tied == [[(name, sentence, "in the inputs")]]


def test_no_input_mistakes_are_tried_for_inputs_that_are_not_plain_texts() -> None:
    padded_at_the_left = Batch(BATCH.input_ids[:, ::-1].copy(), attention_mask=BATCH.mask[:, ::-1].astype(np.int64))
    with_a_mask_for_each_query = Batch(CUT.input_ids, attention_mask=np.tril(np.ones((3, 6, 6), np.int64)))
    with_position_ids = Batch(CUT.input_ids, position_ids=np.zeros((3, 6), np.int64))
    for batch in (padded_at_the_left, with_a_mask_for_each_query, with_position_ids):
        assert not list(other_inputs(batch))


def test_every_length_and_every_shared_prefix_is_tried_and_each_text_keeps_a_token() -> None:
    others = list(other_inputs(BATCH))
    assert [o.sentence.split()[5] for o in others if o.mistake.name == "text-truncated"] == ["8", "7", "6", "5", "4", "3"]
    assert [o.sentence for o in others if o.mistake.name == "prefix-missing"] == [
        "the prefix '7' of each text is left out",
        "the prefix '7 8' of each text is left out",
    ]
    (cut,) = (o.batch for o in others if "cut to 6" in o.sentence)
    np.testing.assert_array_equal(cut.input_ids[:, :6], CUT.input_ids)
    np.testing.assert_array_equal(cut.mask[:, 6:], False)
    np.testing.assert_array_equal(others[-1].batch.input_ids, WITHOUT.input_ids)
    (alone,) = (o for o in other_inputs(Batch.of({"input_ids": [[2, 7, 8, 3]]})) if o.mistake.name == "prefix-missing")
    assert alone.batch.input_ids.tolist() == [[2, 8, 3]]


@pytest.mark.parametrize("pooling", ["weighted-mean", "mean-sqrt-length", "last", "max"])
def test_a_pooling_other_than_the_checkpoints_is_a_failure_that_is_named(pooling: str) -> None:
    other = Checkpoint(ARCHITECTURE.with_(pooling=pooling), NORMALIZED.weights)
    mean = Checkpoint(ARCHITECTURE, NORMALIZED.weights)
    outputs = {"embedding": printed(embeddings(BATCH, other))}
    diagnosis = diagnose(mean, BATCH, outputs)
    assert not diagnosis.conforms
    assert [(e.pooling, e.pooling_differs) for e in diagnosis.explanations] == [(pooling, True)]
    assert diagnose(other, BATCH, outputs).poolings == (pooling,)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A sentence-transformers directory that truncates texts to eight tokens."""
    made = directory(tmp_path, Checkpoint(ARCHITECTURE, weights(7, ARCHITECTURE)))
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "query", ":", *(f"w{i}" for i in range(89))]
    (made / "0_Transformer" / "vocab.txt").write_text("\n".join(words))
    (made / "0_Transformer" / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 8}))
    return made


def test_a_text_beyond_max_seq_length_is_truncated_as_by_sentence_transformers(folder: Path) -> None:
    batch = tokenized(folder, [(" ".join(f"w{i}" for i in range(12)), None), ("w1", None)])
    assert batch.input_ids.tolist() == [[2, 7, 8, 9, 10, 11, 12, 3], [2, 8, 3, 0, 0, 0, 0, 0]]


def test_the_command_names_the_tokens_of_the_prefix(folder: Path, tmp_path: Path, capsys: Captured) -> None:
    texts = [f"query: w{i} w{i + 9}" for i in range(3)]
    bare = tokenized(folder, [(text.removeprefix("query: "), None) for text in texts])
    checkpoint = Checkpoint(ARCHITECTURE, weights(7, ARCHITECTURE))
    np.savetxt(tmp_path / "out.txt", embeddings(bare, checkpoint), "%.5f")
    given = [word for text in texts for word in ("--text", text)]
    assert main(["diagnose", "--checkpoint", str(folder), str(tmp_path / "out.txt"), *given]) == 1
    rendered = " ".join(capsys.readouterr().out.split())
    assert "1. prefix-missing the prefix 'query :' of each text is left out: in the inputs" in rendered
    assert main(["explain", "prefix-missing"]) == 0
    assert "Add the prefix to each text before it is tokenized." in capsys.readouterr().out
