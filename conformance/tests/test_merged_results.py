"""Several results files merged into one, and edited ones: what is missing, contradicts or no longer follows is reported."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from conformance.cli import main
from conformance.errors import UsageError
from conformance.results.case import Case
from conformance.results.file import Writer, read_results
from conformance.results.merge import merged
from conformance.results.records import GoldenRecord, Results
from conformance.results.shards import RunRecords
from conformance.tests.commands import FAILING, Command
from conformance.tests.sample_records import activation, checked, header, run

CASE = Case("bert", "tiny")


def _notes(results: Results) -> list[str]:
    return [str(note) for note in results.notes]


def _of(outcome: Any, source: str = "", **fields: Any) -> RunRecords:
    return run(checked(CASE, outcome), source=source, **fields)


def test_one_run_is_unchanged_and_every_header_of_several_is_kept() -> None:
    alone = _of("pass")
    results = merged([alone])
    assert (results.headers, results.cases, results.footer, results.notes) == ((alone.header,), alone.cases, alone.footer, ())
    both = merged([_of("pass", torch="2.12.0"), run(checked(Case("bert", "tiny", "cuda"), "fail"), torch="2.13.0")])
    assert ([h.torch for h in both.headers], both.header) == (["2.12.0", "2.13.0"], both.headers[0])
    assert [c.outcome for c in both.checks] == ["pass", "fail"]  # A case on another device is another case.
    assert results.sound
    assert both.sound


def test_the_same_outcome_twice_is_counted_once_with_a_note() -> None:
    results = merged([_of("pass"), _of("pass")])
    assert (len(results.checks), results.footer, results.sound) == (1, None, True)
    assert _notes(results) == ["duplicate: 1 check, with the same outcome each time; counted once"]


@pytest.mark.parametrize("outcomes", [("pass", "fail"), ("fail", "pass"), ("xfail", "fail"), ("fail", "fail", "pass")])
def test_of_two_outcomes_the_worse_counts_and_the_result_is_not_a_success(outcomes: tuple[str, ...]) -> None:
    results = merged([_of(outcome, f"{n}.jsonl") for n, outcome in enumerate(outcomes)])
    (check,) = results.checks
    assert check.outcome == "fail"
    (note,) = results.notes
    assert note.kind == "contradiction"
    assert note.text.endswith("; fail counts")
    assert all(f"{outcome} in " in note.text for outcome in outcomes)
    assert not results.sound


def test_of_two_failures_the_one_with_more_failing_activations_counts() -> None:
    few, many = (checked(CASE, "fail", tuple(activation(CASE, f"a.{i}", 9.0) for i in range(n))) for n in (1, 2))
    assert merged([run(few), run(many)]).cases == (many,)


@pytest.mark.parametrize("judged", ["pass", "fail"])
def test_a_skip_neither_contradicts_nor_replaces_an_outcome(judged: str) -> None:
    for outcomes in (("skip", judged), (judged, "skip")):
        results = merged([_of(outcome) for outcome in outcomes])
        assert results.checks[0].outcome == judged
        assert _notes(results) == ["duplicate: 1 check, skipped in one run and not in another; what ran counts"]


@pytest.mark.parametrize("field", ["suite", "torch", "transformers", "seed", "examples"])
def test_shards_of_one_run_with_different_versions_contradict_each_other(field: str) -> None:
    here, there = (run(source=f"{n}.jsonl", shard=f"{n}/2", **{field: n}) for n in (1, 2))
    assert _notes(merged([here, there])) == [f"contradiction: shards of one run differ in {field}: 1 in 1.jsonl, 2 in 2.jsonl"]
    alike = run(source="2.jsonl", shard="2/2", **{field: 1})
    assert merged([here, alike]).sound


def test_absent_shards_are_missing_and_those_of_other_runs_do_not_replace_them() -> None:
    results = merged([run(shard="3/4", source="c.jsonl"), run(shard="1/4", source="a.jsonl")])
    assert _notes(results) == ["missing: shard 2/4, 4/4; of this run there is 1/4 (a.jsonl), 3/4 (c.jsonl)"]
    of_two_runs = [run(shard="1/2", run="first"), run(shard="2/2", run="second")]
    assert [note.kind for note in merged(of_two_runs).notes] == ["missing", "missing"]
    repeated = [run(shard=shard, torch=torch) for torch in ("2.12.0", "2.13.0") for shard in ("1/2", "2/2")]
    assert merged(repeated).sound
    assert _notes(merged(repeated[:3])) == ["missing: shard 2/2; of this run there is 1/2"]


def test_a_run_without_an_end_or_with_wrong_counts_is_not_complete() -> None:
    cut, whole = run(checked(CASE), source="a.jsonl", finished=False), _of("pass", "a.jsonl")
    assert _notes(merged([cut])) == ["missing: the end of a.jsonl: it was cut short, and has no footer"]
    robbed = RunRecords(whole.header, (), whole.footer, whole.source)
    assert _notes(merged([robbed])) == ["missing: a.jsonl has 0 checks, and its footer counts 1"]
    short = RunRecords(msgspec.structs.replace(whole.header or header(), cases=3), whole.cases, whole.footer, whole.source)
    assert _notes(merged([short])) == ["missing: 2 of the 3 checks of a.jsonl"]


def test_the_footer_is_recomputed_and_its_exit_code_is_ignored(tmp_path: Path, command: Command) -> None:
    failed = _of("fail", "a.jsonl")
    assert failed.footer
    for code in (0, 256, -1):
        lying = RunRecords(failed.header, failed.cases, msgspec.structs.replace(failed.footer, exit_code=code), failed.source)
        assert _notes(merged([lying])) == [f"contradiction: a.jsonl: the footer says exit_code {code}, the checks 1"]
        assert command("report", _written(lying, tmp_path / f"{code}.jsonl")).code == 1
    lying = RunRecords(failed.header, failed.cases, _of("pass").footer, failed.source)
    assert "contradiction: a.jsonl: the footer says outcomes 1 pass, the checks 1 fail" in _notes(merged([lying]))


def test_different_versions_of_a_golden_are_refused_with_the_files_that_have_them() -> None:
    other = {"tiny": GoldenRecord(2, "0" * 64, "1" * 64, "generated")}
    with pytest.raises(UsageError, match=r"of the golden tiny: 1 and 2 \(a\.jsonl; b\.jsonl\)"):
        merged([_of("pass", "a.jsonl"), _of("pass", "b.jsonl", goldens=other)])
    digests = {"tiny": GoldenRecord(1, "2" * 64, "1" * 64, "generated")}
    with pytest.raises(UsageError, match="1, with other digests"):
        merged([_of("pass"), _of("pass", goldens=digests)])


def _written(made: RunRecords, path: Path) -> str:
    with Writer(path) as writer:
        writer.write(made.header or header())
        for case in made.cases:
            writer.write(case.check)
        if made.footer:
            writer.write(made.footer)
    return str(path)


def test_report_exits_as_the_runs_did_and_at_least_with_1_where_they_contradict_each_other(
    tmp_path: Path, command: Command
) -> None:
    good, known = (_written(_of(o), tmp_path / f"{o}.jsonl") for o in ("pass", "xfail"))
    for files in ((good,), (good, good)):
        ended = command("report", *files)
        assert (ended.code, "contradiction" in ended.out) == (0, False)
    ended = command("report", good, known)  # Each of them is a success.
    assert (ended.code, ended.out.splitlines()[0]) == (1, "ran 1 of 1: 1 xfail; 1 contradiction")
    assert f"bert on tiny, cpu, float32: pass in {good}, xfail in {known}; xfail counts" in ended.words


@pytest.mark.parametrize("shard", ["some", "0/2", "1/0", "1", "1/2/3"])
def test_an_invalid_shard_is_refused(shard: str, tmp_path: Path, command: Command) -> None:
    ended = command("report", _written(run(shard=shard), tmp_path / "odd.jsonl"))
    assert (ended.code, "has no shard K/N" in ended.err) == (2, True)


def test_results_of_a_worker_that_replaces_a_dead_one_are_merged_and_the_dead_one_is_cut_short() -> None:
    dead, other = run(shard="1/2", source="1.jsonl", finished=False), run(shard="2/2", source="2.jsonl")
    replacement = run(checked(CASE), shard="3/2", source="3.jsonl")
    results = merged([dead, other, replacement])
    assert [check.outcome for check in results.checks] == ["pass"]
    assert _notes(results) == ["missing: the end of 1.jsonl: it was cut short, and has no footer"]
    (note,) = merged([other, replacement]).notes
    assert note.text == "shard 1/2; of this run there is 2/2 (2.jsonl), 3/2 (3.jsonl)"


def test_a_folder_in_place_of_results_is_answered_with_its_files(tmp_path: Path, command: Command) -> None:
    first, second = tmp_path / "results-2.jsonl", tmp_path / "results.jsonl"
    empty = command("report", tmp_path)
    first.touch()
    second.touch()
    for ended, answer in (
        (empty, f"{tmp_path} is a folder; give a results file"),
        (command("report", tmp_path), f"give its results files {first} {second}"),
        (command("diff", tmp_path, tmp_path), f"which cannot be run; give its results file {second}"),
    ):
        assert (ended.code, answer in ended.err) == (2, True), ended.err


Records = list[dict[str, Any]]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Records:
    """The records of a run of two candidates, of which the second fails."""
    out = tmp_path_factory.mktemp("whole")
    names = ["-i", "making-bert", "-i", FAILING]
    assert main(["run", *names, "--golden", "tiny", "--depth", "screen", "--in-process", "--out", str(out)]) == 1
    return [json.loads(line) for line in (out / "results.jsonl").read_bytes().splitlines()]


def _those(records: Records, kind: str, outcome: str | None = None) -> Records:
    return [r for r in records if r["kind"] == kind and outcome in (None, r.get("outcome"))]


def _pass(check: dict[str, Any]) -> None:
    check.update(outcome="pass", exit_code=0, reason="")


def _footer_of_passes(records: Records) -> None:
    records[-1].update(outcomes={"pass": 2}, exit_code=0)


def verdict_of_the_check(records: Records) -> None:
    _pass(_those(records, "check", "fail")[0])
    _footer_of_passes(records)


def verdicts_of_all_activations(records: Records) -> None:
    verdict_of_the_check(records)
    for record in _those(records, "activation", "fail"):
        record["outcome"] = "pass"
    _those(records, "check")[-1]["verdicts"] = {}


def failing_activations_removed(records: Records) -> None:
    verdict_of_the_check(records)
    records[:] = [r for r in records if r not in _those(records, "activation", "fail")]


def verdicts_and_errors(records: Records) -> None:
    verdicts_of_all_activations(records)
    for record in _those(records, "activation", "pass"):
        record["local"] = None


def excess_alone_is_left(records: Records) -> None:
    verdicts_of_all_activations(records)
    for record in _those(records, "activation"):
        record["limits"] = {"rms": 1e300, "max": 1e300}


def check_removed(records: Records) -> None:
    records.remove(_those(records, "check", "fail")[0])
    records[-1].update(outcomes={"pass": 1}, declared=1, ran=1, exit_code=0)
    records[0]["cases"] = 1
    records.insert(-1, records.pop(records.index(_those(records, "check")[0])))


def exit_code_of_the_check(records: Records) -> None:
    _those(records, "check", "fail")[0]["exit_code"] = 0


def exit_code_of_the_footer(records: Records) -> None:
    records[-1]["exit_code"] = 0


def counts_of_the_footer(records: Records) -> None:
    records[-1]["outcomes"] = {"pass": 2}


def skipped(records: Records) -> None:
    _those(records, "check", "fail")[0].update(outcome="skip", exit_code=0, executed=False)
    records[-1].update(outcomes={"pass": 1, "skip": 1}, ran=1, exit_code=0)


def never_run(records: Records) -> None:
    _those(records, "check", "pass")[0]["executed"] = False
    records[-1]["ran"] = 1


def with_a_large_error(records: Records) -> None:
    _those(records, "check", "pass")[0]["worst"] = 12.0


EDITS: tuple[Callable[[Records], None], ...] = (
    *(verdict_of_the_check, verdicts_of_all_activations, failing_activations_removed, verdicts_and_errors, excess_alone_is_left),
    *(check_removed, exit_code_of_the_check, exit_code_of_the_footer, counts_of_the_footer, skipped, never_run, with_a_large_error),
)


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.__name__)
def test_an_edited_file_is_a_contradiction_and_no_success(
    edit: Callable[[Records], None], whole: Records, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records: Records = json.loads(json.dumps(whole))
    edit(records)
    file = tmp_path / "results.jsonl"
    file.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    assert main(["report", str(file)]) == 1
    assert "contradiction:" in capsys.readouterr().out


def test_an_unchanged_file_has_no_note_and_neither_has_one_of_an_earlier_version(whole: Records, tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    for left_out in ((), ("verdicts", "sizes")):
        records = [{name: value for name, value in record.items() if name not in left_out} for record in whole]
        file.write_text("".join(f"{json.dumps(record)}\n" for record in records))
        assert read_results(file).notes == ()
