"""The commands `diff`, `report` and `replay` on the results file of a run, and `diff` of candidates and saved traces."""

import json
from pathlib import Path

import pytest

from conformance import load_golden
from conformance.candidates import recorded_trace
from conformance.checks.trace import Trace, record, true_trace
from conformance.errors import UsageError
from conformance.implementations.hugging_face import HuggingFace
from conformance.implementations.making_bert import making_bert
from conformance.report.difference import Difference, compare, judged
from conformance.tests.commands import Command
from conformance.tests.planted_mistakes import Planted, epsilon, tanh_gelu
from conformance.tests.sample_records import write_lines

TINY = load_golden("tiny")
BAD = "conformance.tests.test_diff_report_trace_replay:bad"
bad = Planted(epsilon(0))


def _compared(*traces: Trace) -> list[Difference]:
    a, b = traces
    return list(compare((a, b), (judged(a, TINY.checkpoint), judged(b, TINY.checkpoint))))


def _diff(*candidates: object) -> list[Difference]:
    return _compared(*(record(c, TINY, "cpu", "float32") for c in candidates))


def test_two_correct_implementations_differ_only_by_rounding_also_where_one_hides_activations() -> None:
    found = _diff(making_bert, HuggingFace("sdpa"))
    assert not any(d.begins for d in found)
    only = {d.activation: d.only for d in found if d.only}
    assert (only["pooler.dense"], only["encoder.layer.0.attention.self.probs"]) == ("B", "A")
    assert not any(d.begins for d in _compared(record(making_bert, TINY, "cpu", "bfloat16"), true_trace(TINY)))


def test_a_difference_begins_at_the_mistakes_of_one_candidate_only() -> None:
    found = {d.activation: d for d in _diff(Planted(tanh_gelu(0), epsilon(1)), HuggingFace("eager"))}
    begins = [name for name, difference in found.items() if difference.begins]
    assert begins == ["encoder.layer.0.intermediate.intermediate_act_fn", "encoder.layer.1.attention.output.LayerNorm"]
    assert found["encoder.layer.0.output.LayerNorm"].largest > 1e-6
    both = _diff(Planted(tanh_gelu(0), epsilon(1)), Planted(tanh_gelu(0)))
    assert [d.activation for d in both if d.begins] == begins[1:]


def test_a_saved_trace_is_read_by_diff(tmp_path: Path, command: Command) -> None:
    file = tmp_path / "t.safetensors"
    assert command("trace", "making-bert", "-o", file).code == 0
    assert command("diff", file, "golden:tiny").code == command("diff", file, "hf-eager", "--format", "json").code == 0
    with pytest.raises(UsageError, match="cannot be read as a trace"):
        recorded_trace.read(Path(__file__))


def test_a_failure_is_recorded_and_run_again_by_replay(results: Path, command: Command) -> None:
    assert len(list((results.parent / "failures").glob("*failing*.py"))) == 1
    ended = command("replay", results)
    assert (ended.code, "epsilon is 1e-05, the checkpoint says 1e-12" in ended.words) == (1, True)


def test_report_merges_files_and_counts_a_file_that_is_given_twice_once(results: Path, tmp_path: Path, command: Command) -> None:
    elsewhere = tmp_path / "elsewhere.jsonl"
    write_lines(results.read_text().replace('"device":"cpu"', '"device":"xpu"').splitlines(), elsewhere)
    both = command("report", results, elsewhere)
    assert (both.code, both.out.splitlines()[0]) == (1, "ran 6 of 6: 2 crash, 2 fail, 2 pass")
    twice = command("report", results, results)
    assert (twice.code, twice.out.splitlines()[0]) == (1, "ran 3 of 3: 1 crash, 1 fail, 1 pass")
    assert "duplicate: 3 checks, with the same outcome each time; counted once" in twice.out


def test_contradicting_results_are_never_a_success(results: Path, tmp_path: Path, command: Command) -> None:
    lines = [line for line in results.read_text().splitlines() if '"implementation":"hf-eager"' in line]
    files = {outcome: tmp_path / f"{outcome}.jsonl" for outcome in ("pass", "fail")}
    for outcome, file in files.items():
        write_lines((line.replace('"pass"', f'"{outcome}"') for line in lines), file)
    ended = command("report", *files.values(), "--format", "junit")
    message = f"hf-eager on tiny, cpu, float32: pass in {files['pass']}, fail in {files['fail']}; fail counts"
    assert (ended.code, f'message="{message}"' in ended.out) == (1, True)


def test_a_report_does_not_overwrite_its_input_files(results: Path, tmp_path: Path, command: Command) -> None:
    file = tmp_path / "results.jsonl"
    file.write_bytes(results.read_bytes())
    assert command("report", file, "-o", file, "--format", "markdown").code == 2
    assert file.read_bytes() == results.read_bytes()


def test_results_without_their_last_lines_are_never_a_success(results: Path, tmp_path: Path, command: Command) -> None:
    lines, file = [json.loads(line) for line in results.read_text().splitlines()], tmp_path / "cut.jsonl"
    right = [line for line in lines if line["kind"] == "header" or line.get("implementation") == "hf-eager"]
    end = {"kind": "footer", "declared": 1, "ran": 1, "outcomes": {"pass": 1}, "exit_code": 0}
    for left, code in (([*right, end], 0), (right, 1), (right[:-1], 1), (right[:1], 1)):
        write_lines(map(json.dumps, left), file)
        ended = command("report", file)
        assert (ended.code, "it was cut short" in ended.words) == (code, bool(code)), len(left)
        assert ("it was cut short" in command("report", file, "--format", "junit").words) == bool(code)
    file.write_bytes(results.read_bytes()[:-5])  # within the last line
    assert "it was cut short" in command("report", file).words


def test_diff_of_results_reports_what_is_worse_better_new_and_gone(results: Path, tmp_path: Path, command: Command) -> None:
    mended, place = tmp_path / "mended.jsonl", "encoder.layer.0.attention.output.LayerNorm"
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    for line in lines:
        if line["kind"] == "activation" and line["activation"] == place:
            line["outcome"] = "pass"
    write_lines((json.dumps(line) for line in lines if line.get("activation") != "pooler.dense"), mended)
    for before, after, code, words in (
        (results, results, 0, "no verdict changed"),
        (results, mended, 1, "worse: 2 activations gone, 1 activation better, 1 mistake gone\n"),
        (mended, results, 1, "worse: 1 activation worse, 1 mistake new, 2 activations new\n"),
    ):
        ended = command("diff", before, after)
        assert (ended.code, ended.out.startswith(words)) == (code, True), ended.out


def test_results_on_another_version_of_a_golden_are_not_compared(results: Path, tmp_path: Path, command: Command) -> None:
    other = tmp_path / "other.jsonl"
    write_lines(results.read_text().replace('"version":1', '"version":2').splitlines(), other)
    ended = command("diff", results, other)
    assert (ended.code, "golden tiny is another" in ended.out) == (1, True)
    assert command("report", results, other).code == 2
