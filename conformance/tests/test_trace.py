"""`trace`: what happens to an input step by step, on the terminal, as Markdown and as a page."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import conformance
from conformance import golden_of, load_golden
from conformance.checks.trace import Trace, true_trace
from conformance.cli import main
from conformance.errors import DependencyMissingError, UsageError
from conformance.goldens import golden, minilm
from conformance.goldens.custom_golden import from_directory
from conformance.model.batch import Batch
from conformance.numerics.formats import Array
from conformance.report.document import Block, Folded, Ranges, Table
from conformance.report.html.page import page
from conformance.report.markdown import markdown
from conformance.report.terminal import plain
from conformance.report.trace.trace_document import document, rows
from conformance.report.trace.trace_view import rendered, trace_view
from conformance.tests.test_own_checkpoints import _write

TINY = load_golden("tiny")
TRUE = true_trace(TINY)
QUERY, PROBS = "encoder.layer.0.attention.self.query", "encoder.layer.0.attention.self.probs"
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "i", "love", "cats", "!", "<b>hot</b>"]
Captured = pytest.CaptureFixture[str]


def _with(trace: Trace, changes: Mapping[str, Array | None], **fields: object) -> Trace:
    """Return the same trace with other values, without those that are None."""
    activations = {
        batch: {n: v for n, v in {**found, **changes}.items() if v is not None} for batch, found in trace.activations.items()
    }
    return replace(trace, activations=activations, **fields)


def _statistics(trace: Trace, name: str) -> object:
    return next(step.sides[0] for step in trace_view(trace).batches[0].steps if step.row.name == name)


def _tables(blocks: Iterable[Block]) -> Iterator[Table]:
    for block in blocks:
        if isinstance(block, Table):
            yield block
        elif isinstance(block, Folded):
            yield from _tables(block.blocks)


@pytest.fixture
def my_bert(tmp_path: Path) -> Path:
    """A checkpoint with a masked-LM head and a vocabulary."""
    folder = _write(tmp_path / "my-bert")
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY + [f"w{i}" for i in range(96 - len(VOCABULARY))]))
    return folder


def test_statistics_include_real_tokens_and_exclude_padding() -> None:
    value, mask = TRUE.activations["padded"][QUERY], TINY.batches["padded"].mask
    found, real = _statistics(TRUE, QUERY), value[mask]
    assert found.mean == pytest.approx(real.mean())
    assert found.deviation == pytest.approx(real.std())
    assert (found.least, found.most) == (real.min(), real.max())
    assert found.rms == pytest.approx(np.sqrt((real**2).mean()))
    padding = np.where(mask[:, :, None], value, 1e9)
    assert _statistics(_with(TRUE, {QUERY: padding}), QUERY) == found
    assert _statistics(_with(TRUE, {QUERY: value + 1.0}), QUERY).mean == pytest.approx(real.mean() + 1.0)


def test_values_that_are_not_finite_are_reported_and_drawn_blank() -> None:
    huge = _with(TRUE, {QUERY: TRUE.activations["padded"][QUERY] * 1e300})
    with np.errstate(over="ignore", invalid="ignore"):
        found = trace_view(huge)
    assert json.loads(json.dumps(rows(found), allow_nan=False))
    query = next(
        row for table in _tables(document(found, (huge,)).blocks) for _, (row, *_) in table.groups if row.cells[0] == "query"
    )
    assert Ranges((None,)) in query.cells


def test_without_real_tokens_the_statistics_include_everything() -> None:
    batch = Batch.of({"input_ids": [[1, 2]], "attention_mask": [[0, 1]]})
    trace = true_trace(golden_of("mine", TINY.checkpoint, {"left": batch}))
    assert _statistics(trace, "pooler.dense").mean == pytest.approx(trace.activations["left"]["pooler.dense"].mean())


def test_two_traces_are_shown_side_by_side_with_their_largest_difference() -> None:
    other = TRUE.activations["padded"][QUERY].copy()
    real, padded = np.argwhere(TINY.batches["padded"].mask)[0], np.argwhere(~TINY.batches["padded"].mask)[0]
    other[(*real, 3)] += 0.5
    other[(*padded, 3)] += 7.0
    found = {s.row.name: s for s in trace_view(TRUE, _with(TRUE, {QUERY: other, PROBS: None}, name="other")).batches[0].steps}
    assert found[QUERY].largest == pytest.approx(0.5)
    assert (found[PROBS].sides[1], found[PROBS].largest) == (None, None)
    assert found["embeddings.LayerNorm"].largest == 0.0
    assert trace_view(TRUE).batches[0].steps[0].largest is None


def test_traces_of_other_inputs_cannot_be_shown_side_by_side() -> None:
    short = golden_of("tiny", TINY.checkpoint, {"padded": Batch.of({"input_ids": [[1, 2]]})})
    with pytest.raises(UsageError, match="run both on the same"):
        trace_view(TRUE, true_trace(short))


def test_a_hidden_step_is_omitted_and_counted_as_not_shown() -> None:
    found = trace_view(_with(TRUE, {PROBS: None}))
    assert PROBS not in {s.row.name for s in found.batches[0].steps}
    assert (len(found.shown[0]), len(found.table)) == (46, 47)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"), (None, "-"), (0.12345, "0.123"), (-0.001234, "-0.00123"), (-1.234e-5, "-1.23e-5"),
        (999.4, "999"), (12345.6, "12346"), (-1.234e10, "-1.23e10"), (float("nan"), "nan"),
    ],
)  # fmt: skip
def test_numbers_are_short(value: float | None, text: str) -> None:
    assert rendered(value) == text


def test_the_likeliest_tokens_are_reported_for_each_mask(my_bert: Path) -> None:
    golden = from_directory(my_bert, ["i love [MASK] !", "[MASK]"])
    trace = true_trace(golden)
    first, second = trace_view(trace).batches[0].predictions
    assert [(b.row, b.position) for b in (first, second)] == [(0, 3), (1, 1)]
    logits = trace.activations["text"]["cls.predictions.decoder"][0, 3]
    probabilities = np.exp(logits) / np.exp(logits).sum()
    words = VOCABULARY + [f"w{i}" for i in range(86)]
    assert [g.token for g in first.guesses[0]] == [words[i] for i in np.argsort(-probabilities)[:5]]
    assert [g.probability for g in first.guesses[0]] == pytest.approx(np.sort(probabilities)[:-6:-1])
    silent = _with(trace, {"cls.predictions.decoder": None}, name="silent")
    assert trace_view(trace, silent).batches[0].predictions[0].guesses[1] == ()


def test_nothing_is_predicted_without_a_mask_a_tokenizer_or_a_head(my_bert: Path) -> None:
    trace = true_trace(from_directory(my_bert, ["i love [MASK] !"]))
    assert trace_view(trace).batches[0].predictions
    assert not trace_view(true_trace(from_directory(my_bert, ["i love cats !"]))).batches[0].predictions
    assert not trace_view(replace(trace, folder=None)).batches[0].predictions
    assert not trace_view(_with(trace, {"cls.predictions.decoder": None})).batches[0].predictions


def test_a_page_of_any_trace_stays_small_and_says_what_is_omitted() -> None:
    batch = Batch.of({"input_ids": np.arange(8 * 32).reshape(8, 32) % 96})
    many = true_trace(golden_of("many", TINY.checkpoint, {f"b{i}": batch for i in range(60)}))
    text = page(document(trace_view(many), [many]))
    assert len(text.encode()) < 3_000_000
    for words in ("batches more", "Not drawn, so that the page stays small"):
        assert words in text
    assert "so that the page stays small" not in page(document(trace_view(TRUE), [TRUE]))


def test_a_batch_of_many_tokens_is_abridged_on_a_page_and_complete_in_text() -> None:
    batch = Batch.of({"input_ids": np.zeros((300, 32), int)})
    long = true_trace(golden_of("long", TINY.checkpoint, {"long": batch}))
    made = document(trace_view(long), [long])
    assert "175 rows more are not shown, so that the page stays small." in page(made)
    assert "\n299 " in plain(made, 80)


def test_hostile_names_and_tokens_are_escaped(my_bert: Path) -> None:
    hostile = "<script>alert(1)</script>"
    vocabulary = (my_bert / "vocab.txt").read_text().replace("love", "<img")
    (my_bert / "vocab.txt").write_text(vocabulary)
    trace = replace(true_trace(from_directory(my_bert, ["[MASK] <b>hot</b>", "<img cats"])), name=hostile)
    for text in (page(document(trace_view(trace), [trace])), trace._repr_html_()):
        body = re.sub(r"<script>(?!alert).*?</script>", "", text, flags=re.DOTALL)
        assert "<script" not in body
        assert "<img" not in body
        assert "&lt;script&gt;" in body
    assert "<script" not in markdown(document(trace_view(trace), [trace]))


def test_a_notebook_shows_the_trace_view() -> None:
    shown = TRUE._repr_html_()
    assert shown.startswith("<style>")
    assert "<html" not in shown
    assert shown.count("<svg") > 10
    assert "How an input flows through golden:tiny" in shown


def test_trace_in_python_runs_an_implementation_on_texts(my_bert: Path) -> None:
    golden = f"checkpoint:{my_bert}"
    found = conformance.trace("golden:my-bert", golden, texts=["i love cats !"])
    assert isinstance(found, conformance.Trace)
    assert [t.text for t in trace_view(found).batches[0].tokens[0]] == ["[CLS]", "i", "love", "cats", "!", "[SEP]"]
    with pytest.raises(UsageError, match="golden tiny has no tokenizer"):
        conformance.trace("golden:tiny", texts=["i love cats !"])


def test_a_terminal_of_80_columns_has_all_numbers_and_one_of_200_everything() -> None:
    narrow, wide = (plain(document(trace_view(TRUE), [TRUE]), width).splitlines() for width in (80, 200))
    for lines, width in ((narrow, 80), (wide, 200)):
        assert max(map(len, lines)) <= width
    (head,) = (line.split() for line in narrow if line.startswith("  activation"))
    assert head == ["activation", "shape", "mean", "deviation", "min", "max", "rms"]
    (head,) = (line.split() for line in wide if line.startswith("  activation"))
    assert head[-2:] == ["equation", "from"]
    assert any(line.split()[:2] == ["context", "6×16×32"] for line in narrow)
    module, _, name = QUERY.rpartition(".")
    below = narrow[narrow.index(f"  {module}") :]
    assert below[1].split()[0] == name


def test_markdown_has_tokens_drawings_and_every_step(my_bert: Path) -> None:
    trace = true_trace(from_directory(my_bert, ["i love [MASK] !", "cats"]))
    text = markdown(document(trace_view(trace), [trace]))
    assert "0. [CLS] i love [MASK] ! [SEP]" in text.replace("\\", "")
    assert text.replace("\\", "").count("~~[PAD]~~") == 3
    assert text.count("```mermaid") == 3
    rows = re.findall(r"^\| (?!\*\*|---|activation \| shape)", text, re.MULTILINE)
    assert len(rows) == len(trace.activations["text"])
    assert "row 0, position 3: " in text


def test_the_suffix_determines_the_output_format_and_a_saved_trace_is_traced_again(
    my_bert: Path, tmp_path: Path, capsys: Captured
) -> None:
    files = [tmp_path / f"out/walk{suffix}" for suffix in (".html", ".md", ".json", ".txt", ".safetensors")]
    outputs = [argument for file in files for argument in ("-o", str(file))]
    arguments = ["--checkpoint", str(my_bert), "--text", "i love [MASK] !", "--text", "cats"]
    assert main(["trace", "golden:my-bert", *arguments, *outputs, "--format", "json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert listed == json.loads(files[2].read_text())
    query = next(row for row in listed if row["activation"] == QUERY)
    assert (query["shape"], query["axes"], query["lengths"]) == ("2 × 6 × 32", ["batch", "position", "feature"], [2, 6, 32])
    assert query["mean"] == f"{query['sides'][0]['mean']:.4g}"
    assert query["parents"] == ["embeddings.dropout"]
    (predicted,) = (row["predictions"] for row in listed if "predictions" in row)
    assert predicted[0]["position"] == 3
    assert "<h1>How an input flows through golden:my-bert</h1>" in files[0].read_text()
    assert main(["trace", str(files[4]), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == listed
    assert main(["diff", str(files[4]), "golden:my-bert"]) == 0  # The trace uses the saved batch instead of a generated one.


def test_two_implementations_are_traced_side_by_side(tmp_path: Path, capsys: Captured) -> None:
    page = tmp_path / "two.html"
    assert main(["trace", "golden:tiny", "hf-sdpa", "-o", str(page), "--format", "markdown"]) == 0
    rows = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()]
    assert next(row for row in rows if row[1:2] == ["shape"])[2:4] == ["mean A", "mean B"]
    lines = {row[0]: row for row in rows}
    assert lines["probs"][3] == "-"
    assert float(lines["query"][12]) < 1e-5
    assert "hf-sdpa does not expose encoder.layer.*.attention.self.probs" in page.read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["golden:tiny", "-o", "trace.pdf"], "expected a suffix of .html, .md, .json, .txt, .safetensors"),
        (["golden:tiny", "golden:tiny", "-o", "trace.safetensors"], "holds the activations of one implementation"),
        (["hf-eager", "--golden", "tiny", "--text", "hello"], "golden tiny has no tokenizer"),
        (["golden:tiny", "--text", "hello"], "golden tiny has no tokenizer"),
        (["hf-eager", "--golden", "tiny", "--checkpoint", "somewhere"], "are two networks"),
        (["golden:tiny", "--golden", "deep"], "add --golden tiny"),
        (["nowhere.safetensors"], "nowhere.safetensors cannot be read as a trace: No such file"),
    ],
)
def test_what_cannot_be_traced_is_one_clear_error(arguments: list[str], words: str, capsys: Captured) -> None:
    assert main(["trace", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_texts_are_tokenized_with_minilm_by_default(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Path:
        raise DependencyMissingError(f"not installed: {minilm.INSTALL}")

    with monkeypatch.context() as patch:
        patch.setattr(minilm, "directory", missing)
        golden._verified.cache_clear()  # Another test may have opened it.
        assert main(["trace", "hf-eager", "--text", "I love cats!"]) == 3
        assert minilm.INSTALL in capsys.readouterr().err
    try:
        minilm.directory()
    except DependencyMissingError as why:
        pytest.skip(str(why))
    assert main(["trace", "golden:minilm", "--text", "I love cats!"]) == 0
    assert "[CLS] i love cats ! [SEP]" in capsys.readouterr().out


def test_a_users_batch_is_traced_on_a_goldens_network(tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "batch.json"
    file.write_text('{"input_ids": [[1, 2, 3]]}')
    assert main(["trace", "golden:tiny", "--batch", str(file)]) == 0
    assert "1×3×32" in capsys.readouterr().out.replace(" ", "")
