"""`diff`, `report`, `trace`, `replay`, and `run` on a checkpoint of one's own."""

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from safetensors.torch import save_file

from conformance import golden_of, load_directory, load_golden
from conformance.checkpoint import Checkpoint
from conformance.cli import main
from conformance.diff import compare
from conformance.errors import CheckpointError, UsageError
from conformance.goldens.own import from_directory, read_batches
from conformance.oracle import Network
from conformance.published import BERT_BASE_UNCASED, Published, check_published, published_of
from conformance.records import read
from conformance.tests.planted import MadeOf, Planted, epsilon, tanh_gelu, unscaled
from conformance.traces import record, true_trace
from implementations.hugging_face import HuggingFace
from implementations.making_bert import making_bert

TINY = load_golden("tiny")


def _diff(a: object, b: object) -> list[object]:
    return list(compare(record(a, TINY, "cpu", "float32"), record(b, TINY, "cpu", "float32"), TINY.checkpoint))


def test_two_correct_implementations_differ_by_rounding_alone_and_are_aligned_where_one_hides_some() -> None:
    found = _diff(making_bert, HuggingFace("sdpa"))
    assert not any(d.begins for d in found)
    only = {d.activation: d.only for d in found if d.only}
    assert only["pooler.dense"] == "B"
    assert only["encoder.layer.0.attention.self.probs"] == "A"


def test_a_difference_begins_where_the_mistake_is_and_nowhere_else() -> None:
    found = _diff(Planted(tanh_gelu(0), epsilon(1)), HuggingFace("eager"))
    begins = [d.activation for d in found if d.begins]
    assert begins == ["encoder.layer.0.intermediate.intermediate_act_fn", "encoder.layer.1.attention.output.LayerNorm"]
    after = next(d for d in found if d.activation == "encoder.layer.0.output.LayerNorm")
    assert after.accumulated is not None
    assert after.accumulated > 10.0


def test_a_candidate_against_the_oracle_s_own_values() -> None:
    found = list(compare(record(making_bert, TINY, "cpu", "bfloat16"), true_trace(TINY), TINY.checkpoint))
    assert not any(d.begins for d in found)


def test_traces_of_other_inputs_are_not_compared() -> None:
    other = golden_of("tiny", TINY.checkpoint, {"padded": replace(TINY.batches["padded"], token_type_ids=None)})
    with pytest.raises(UsageError, match="run both on the same"):
        list(compare(record(making_bert, TINY, "cpu", "float32"), record(making_bert, other, "cpu", "float32"), TINY.checkpoint))


def test_trace_saves_what_diff_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "t.safetensors"
    assert main(["trace", "making-bert", "-o", str(file)]) == 0
    assert "6 × 16 × 32" in capsys.readouterr().out
    assert main(["diff", str(file), "golden:tiny"]) == 0
    assert main(["diff", str(file), "hf-eager", "--format", "json"]) == 0
    with pytest.raises(UsageError, match="no trace"):
        from conformance.traces import read as read_trace

        read_trace(Path(__file__))


BAD = "conformance.tests.test_commands:bad"
bad = Planted(epsilon(0))


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    assert main(["run", "-i", BAD, "-i", "hf-eager", "--golden", "tiny", "--out", str(folder)]) == 1
    return folder


def test_a_failure_leaves_behind_what_replay_runs_again(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (left,) = (results / "failures").iterdir()
    assert main(["replay", str(left)]) == 1
    assert "LayerNorm epsilon is not the checkpoint's" in " ".join(capsys.readouterr().out.split())
    with pytest.raises(UsageError, match="not what a failure leaves behind"):
        from conformance.replay import replay

        replay(results / "results.jsonl")


def test_report_puts_files_together_and_keeps_their_exit_code(results: Path, tmp_path: Path) -> None:
    file = results / "results.jsonl"
    for name in ("out.md", "out.xml", "out.json"):
        assert main(["report", str(file), str(file), "-o", str(tmp_path / name)]) == 1
    assert (tmp_path / "out.md").read_text().startswith("**ran 4 / 4 declared: 2 fail, 2 pass**")
    suite = ElementTree.parse(tmp_path / "out.xml").getroot()[0]
    assert (suite.attrib["tests"], suite.attrib["failures"]) == ("4", "2")
    assert len(json.loads((tmp_path / "out.json").read_text())) == 4


def test_a_file_cut_short_is_told_as_such(results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = (results / "results.jsonl").read_bytes()
    cut = tmp_path / "cut.jsonl"
    cut.write_bytes(whole[: whole.rindex(b'{"kind":"footer"') + 9])
    assert not read(cut).complete
    assert main(["report", str(cut)]) == 1
    assert "cut short" in capsys.readouterr().out


def test_diff_of_results_tells_what_is_worse_better_new_and_gone(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = results / "results.jsonl"
    place = "encoder.layer.0.attention.output.LayerNorm"
    mended = tmp_path / "mended.jsonl"
    lines = [json.loads(line) for line in before.read_text().splitlines()]
    for line in lines:
        if line["kind"] == "activation" and line["activation"] == place:
            line["outcome"] = "pass"
    mended.write_text("".join(json.dumps(line) + "\n" for line in lines if line.get("activation") != "pooler.dense"))
    assert main(["diff", str(before), str(before)]) == 0
    assert "no verdict changed" in capsys.readouterr().out
    assert main(["diff", str(before), str(mended)]) == 1
    told = capsys.readouterr().out
    assert told.count("gone") == 2
    assert "better" in told
    assert main(["diff", str(mended), str(before)]) == 1
    told = capsys.readouterr().out
    assert "worse" in told
    assert told.count("new ") == 2


def test_results_on_another_version_of_a_golden_are_not_compared(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = results / "results.jsonl"
    other = tmp_path / "other.jsonl"
    other.write_text(before.read_text().replace('"version":1', '"version":2'))
    assert main(["diff", str(before), str(other)]) == 0
    assert "golden tiny is another" in capsys.readouterr().err
    assert main(["report", str(before), str(other)]) == 2


# A checkpoint of one's own ----------------------------------------------------------------------------------------------------


def _write(
    folder: Path, *, prefix: bool = True, heads: bool = True, old_names: bool = False, dtype: str = "float32", **config: object
) -> Path:
    """The network of `tiny` as a Hugging Face directory, in any of the ways in which they come."""
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
    (folder / "config.json").write_text(json.dumps({**sizes, "model_type": "bert", **config}))
    return folder


@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize("old_names", [True, False])
@pytest.mark.parametrize("heads", [True, False])
def test_a_directory_is_read_in_every_way_in_which_they_come(prefix: bool, heads: bool, old_names: bool, tmp_path: Path) -> None:
    checkpoint = load_directory(_write(tmp_path, prefix=prefix, heads=heads, old_names=old_names))
    assert bool(checkpoint.architecture.heads) is heads
    for name, array in checkpoint.weights.items():
        assert np.array_equal(array, TINY.checkpoint.weights[name])


def test_bfloat16_weights_are_read(tmp_path: Path) -> None:
    checkpoint = load_directory(_write(tmp_path, dtype="bfloat16"))
    assert np.array_equal(checkpoint.weights["classifier.weight"], TINY.checkpoint.weights["classifier.weight"])


def test_run_on_a_checkpoint_and_a_batch_of_one_s_own(tmp_path: Path) -> None:
    folder = _write(tmp_path / "my-bert")
    batch = tmp_path / "batch.json"
    batch.write_text(
        json.dumps({"a": {"input_ids": [[1, 2, 3]]}, "b": {"input_ids": [[5, 6], [7, 8]], "attention_mask": [[1, 1], [1, 0]]}})
    )
    call = [
        "run",
        "-i",
        "hf-eager",
        "-i",
        "making-bert",
        "--checkpoint",
        str(folder),
        "--batch",
        str(batch),
        "--out",
        str(tmp_path / "out"),
    ]
    assert main(call) == 0
    found = read(tmp_path / "out" / "results.jsonl")
    assert {c.golden for c in found.checks} == {"my-bert"}
    assert {a.batch for a in found.activations} == {"a", "b"}


def test_run_on_a_checkpoint_without_inputs_generates_them(tmp_path: Path) -> None:
    folder = _write(tmp_path / "my-bert", heads=False)
    assert main(["run", "-i", "hf-eager", "--checkpoint", str(folder), "--out", str(tmp_path / "out")]) == 0
    assert main(["run", "-i", BAD, "--checkpoint", str(folder), "--out", str(tmp_path / "out")]) == 1
    (left,) = (tmp_path / "out" / "failures").iterdir()
    assert main(["replay", str(left)]) == 1


def test_texts_are_read_by_the_checkpoint_s_vocabulary(tmp_path: Path) -> None:
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
        ("[]", "it is a list"),
    ],
)
def test_a_batch_that_does_not_fit_is_told_where_and_what_was_expected(content: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "batch.json"
    file.write_text(content)
    with pytest.raises(UsageError) as caught:
        golden_of("mine", TINY.checkpoint, read_batches(file))
    assert words in str(caught.value)


def test_what_is_wrong_with_a_directory_is_told(tmp_path: Path) -> None:
    folder = _write(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    for change, words in (
        ({"hidden_act": "swish"}, "has no equation here"),
        ({"model_type": "roberta"}, "'roberta'"),
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


def test_an_untied_decoder_is_not_taken_for_the_tied_one(tmp_path: Path) -> None:
    folder = _write(tmp_path)
    from safetensors.torch import load_file

    state = load_file(folder / "model.safetensors")
    state["cls.predictions.decoder.weight"] = state["cls.predictions.decoder.weight"] + 1
    save_file(state, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match="the decoder is not tied"):
        load_directory(folder)


# Published values ---------------------------------------------------------------------------------------------------------------

LAST = "encoder.layer.1.output.LayerNorm"


def _published(checkpoint: Checkpoint, digits: int = 4) -> Published:
    batch = replace(TINY.batches["padded"], labels=None, next_sentence_label=None, class_labels=None)
    truth = dict(Network(checkpoint.architecture, checkpoint.weights, batch).walk())[LAST]
    values = tuple(tuple(round(float(v), digits) for v in row) for row in truth[0, 1:4, 1:4])
    return Published("tiny-bert", {"hidden_size": 32}, batch, LAST, (0, 1, 1), values, digits, "constructed")


def test_published_values_are_met_by_a_correct_candidate_and_missed_by_a_wrong_one() -> None:
    golden, published = golden_of("tiny-bert", TINY.checkpoint, TINY.batches), _published(TINY.checkpoint)
    for dtype in ("float32", "bfloat16"):
        assert check_published(HuggingFace("sdpa"), golden, published, "cpu", dtype).conforms
    wrong = check_published(Planted(unscaled(0)), golden, published, "cpu", "float32")
    assert wrong.outcome == "fail"
    assert "published is" in wrong.reason
    hidden = check_published(MadeOf(lambda f: {"classifier": f["classifier"]}), golden, published, "cpu", "float32")
    assert "not exposed" in hidden.reason


def test_published_values_are_for_the_checkpoint_of_that_name_and_size(tmp_path: Path) -> None:
    known = (replace(_published(TINY.checkpoint), checkpoint="my-bert"),)
    cached = from_directory(_write(tmp_path / "models--someone--my-bert" / "snapshots" / "0"))
    assert published_of(cached, known) is known[0]
    assert published_of(from_directory(_write(tmp_path / "another")), known) is None
    assert published_of(cached, (replace(known[0], sizes={"hidden_size": 768}),)) is None
    assert published_of(from_directory(_write(tmp_path / "bert-base-uncased"))) is None
    assert BERT_BASE_UNCASED.batch.mask.sum() == 10
