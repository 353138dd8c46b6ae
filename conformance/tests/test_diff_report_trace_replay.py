"""The commands `diff`, `report`, `trace` and `replay`."""

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from conformance import golden_of, load_golden
from conformance.candidates.recorded import file_format
from conformance.checks.replay import replayed
from conformance.checks.trace import record, true_trace
from conformance.cli import main
from conformance.errors import UsageError
from conformance.implementations.hugging_face import HuggingFace
from conformance.implementations.making_bert import making_bert
from conformance.report.difference.difference import compare
from conformance.results.file import read_results
from conformance.tests.planted_mistakes import Planted, epsilon, tanh_gelu

TINY = load_golden("tiny")
Captured = pytest.CaptureFixture[str]


def _diff(a: object, b: object) -> list[object]:
    return list(compare(record(a, TINY, "cpu", "float32"), record(b, TINY, "cpu", "float32"), TINY.checkpoint))


def test_two_correct_implementations_differ_only_by_rounding_also_where_one_hides_activations() -> None:
    found = _diff(making_bert, HuggingFace("sdpa"))
    assert not any(d.begins for d in found)
    only = {d.activation: d.only for d in found if d.only}
    assert only["pooler.dense"] == "B"
    assert only["encoder.layer.0.attention.self.probs"] == "A"


def test_a_difference_is_reported_to_begin_at_the_mistake_only() -> None:
    found = _diff(Planted(tanh_gelu(0), epsilon(1)), HuggingFace("eager"))
    begins = [d.activation for d in found if d.begins]
    assert begins == ["encoder.layer.0.intermediate.intermediate_act_fn", "encoder.layer.1.attention.output.LayerNorm"]
    after = next(d for d in found if d.activation == "encoder.layer.0.output.LayerNorm")
    assert after.accumulated is not None
    assert after.accumulated > 10.0


def test_a_candidate_is_compared_with_the_oracle() -> None:
    found = list(compare(record(making_bert, TINY, "cpu", "bfloat16"), true_trace(TINY), TINY.checkpoint))
    assert not any(d.begins for d in found)


def test_traces_of_different_inputs_are_not_compared() -> None:
    other = golden_of("tiny", TINY.checkpoint, {"padded": replace(TINY.batches["padded"], token_type_ids=None)})
    with pytest.raises(UsageError, match="run both on the same"):
        list(compare(record(making_bert, TINY, "cpu", "float32"), record(making_bert, other, "cpu", "float32"), TINY.checkpoint))


def test_a_saved_trace_is_read_by_diff(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "t.safetensors"
    assert main(["trace", "making-bert", "-o", str(file)]) == 0
    assert "6×16×32" in capsys.readouterr().out.replace(" ", "")
    assert main(["diff", str(file), "golden:tiny"]) == 0
    assert main(["diff", str(file), "hf-eager", "--format", "json"]) == 0
    with pytest.raises(UsageError, match="cannot be read as a trace"):
        file_format.read(Path(__file__))


BAD = "conformance.tests.test_diff_report_trace_replay:bad"
bad = Planted(epsilon(0))


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    assert main(["run", "-i", BAD, "-i", "hf-eager", "--golden", "tiny", "--out", str(folder)]) == 1
    return folder


def test_a_failure_is_recorded_and_run_again_by_replay(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (left,) = (results / "failures").glob("*.safetensors")
    assert main(["replay", str(left)]) == 1
    assert "epsilon is 1e-05, the checkpoint says 1e-12" in " ".join(capsys.readouterr().out.split())
    with pytest.raises(UsageError, match="cannot be read as a saved failure"):
        replayed(Path(__file__).with_suffix(".safetensors"))


def _elsewhere(file: Path, folder: Path) -> Path:
    """Return the same results, recorded on another device."""
    elsewhere = folder / "elsewhere.jsonl"
    elsewhere.write_text(file.read_text().replace('"device":"cpu"', '"device":"xpu"'))
    return elsewhere


def test_report_merges_files_in_every_format_and_keeps_their_exit_code(results: Path, tmp_path: Path, capsys: Captured) -> None:
    file = results / "results.jsonl"
    names = ("out.md", "out.xml", "out.json", "out.txt")
    forms = [part for name in names for part in ("-o", str(tmp_path / name))]
    assert main(["report", str(file), str(_elsewhere(file, tmp_path)), *forms]) == 1
    assert not capsys.readouterr().out
    assert (tmp_path / "out.md").read_text().startswith("**ran 4 of 4: 2 fail, 2 pass**")
    assert (tmp_path / "out.txt").read_text().startswith("ran 4 of 4: 2 fail, 2 pass\n")
    suite = ElementTree.parse(tmp_path / "out.xml").getroot()[0]
    assert (suite.attrib["tests"], suite.attrib["failures"]) == ("4", "2")
    assert len(json.loads((tmp_path / "out.json").read_text())["cases"]) == 4


def test_a_file_that_is_given_twice_counts_once(results: Path, capsys: Captured) -> None:
    file = str(results / "results.jsonl")
    assert main(["report", file, file]) == 1  # The exit code of the failure in the file.
    rendered = capsys.readouterr().out
    assert rendered.startswith("ran 2 of 2: 1 fail, 1 pass\n")
    assert "duplicate: 2 checks, with the same outcome each time; counted once" in rendered


def test_contradicting_results_are_never_a_success(results: Path, tmp_path: Path, capsys: Captured) -> None:
    lines = [line for line in (results / "results.jsonl").read_text().splitlines() if '"implementation":"hf-eager"' in line]
    for name, outcome in (("good", "pass"), ("bad", "fail")):
        (tmp_path / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in lines).replace('"pass"', f'"{outcome}"'))
    good, bad = (str(tmp_path / name) for name in ("good.jsonl", "bad.jsonl"))
    assert main(["report", good, bad, "--format", "junit"]) == 1
    assert f'message="hf-eager on tiny, cpu, float32: pass in {good}, fail in {bad}; fail counts"' in capsys.readouterr().out


def test_a_report_does_not_overwrite_its_input_files(results: Path, capsys: Captured) -> None:
    file = results / "results.jsonl"
    before = file.read_bytes()
    assert main(["report", str(file), "-o", str(file), "--format", "markdown"]) == 2
    assert file.read_bytes() == before
    assert main(["report", str(file), "-o", "out.doc"]) == 2
    assert "out.doc: expected a suffix of .html, .md, " in capsys.readouterr().err


def test_a_truncated_file_is_reported(results: Path, tmp_path: Path, capsys: Captured) -> None:
    whole = (results / "results.jsonl").read_bytes()
    cut = tmp_path / "cut.jsonl"
    cut.write_bytes(whole[: whole.rindex(b'{"kind":"footer"') + 9])
    assert not read_results(cut).sound
    assert main(["report", str(cut)]) == 1
    assert "cut short" in capsys.readouterr().out


def test_diff_of_results_reports_what_is_worse_better_new_and_gone(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = results / "results.jsonl"
    place = "encoder.layer.0.attention.output.LayerNorm"
    mended = tmp_path / "mended.jsonl"
    lines = [json.loads(line) for line in before.read_text().splitlines()]
    for line in lines:
        if line["kind"] == "activation" and line["activation"] == place:
            line["outcome"] = "pass"
        if line["kind"] == "check":
            line["verdicts"] = {}  # as an earlier version wrote it, which counted no activations
    mended.write_text("".join(json.dumps(line) + "\n" for line in lines if line.get("activation") != "pooler.dense"))
    assert main(["diff", str(before), str(before)]) == 0
    assert "no verdict changed" in capsys.readouterr().out
    assert main(["diff", str(before), str(mended)]) == 1
    rendered = capsys.readouterr().out
    assert rendered.startswith("worse: 2 activations gone; 1 activation better, 1 mistake vanished\n")
    assert main(["diff", str(mended), str(before)]) == 1
    assert capsys.readouterr().out.startswith("worse: 1 activation worse, 1 mistake appeared; 2 activations new\n")


def test_results_on_another_version_of_a_golden_are_not_compared(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = results / "results.jsonl"
    other = tmp_path / "other.jsonl"
    other.write_text(before.read_text().replace('"version":1', '"version":2'))
    assert main(["diff", str(before), str(other)]) == 1  # Nothing was compared.
    assert "golden tiny is another" in capsys.readouterr().out
    assert main(["report", str(before), str(other)]) == 2
