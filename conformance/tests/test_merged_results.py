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
from conformance.results.records import CaseRecords, GoldenRecord, Results
from conformance.results.shards import RunRecords
from conformance.tests.commands import FAILING, Command
from conformance.tests.sample_records import activation, checked, header, run

CASE = Case("bert", "tiny")


def _notes(results: Results) -> list[str]:
    return [str(note) for note in results.notes]


def _of(outcome: Any, source: str = "", **fields: Any) -> RunRecords:
    return run(checked(CASE, outcome), source=source, **fields)


def _shards(*shards: str, **fields: Any) -> list[RunRecords]:
    """Return the given shards of one run."""
    return [run(source=f"{shard[0]}.jsonl", shard=shard, **fields) for shard in shards]


def _replaced(whole: RunRecords, *cases: CaseRecords, **of_header: Any) -> list[RunRecords]:
    """Return a run with other checks or another header than its footer counts."""
    return [RunRecords(msgspec.structs.replace(whole.header or header(), **of_header), cases, whole.footer, whole.source)]


FEW, MANY = (checked(CASE, "fail", tuple(activation(CASE, f"a.{i}", 9.0) for i in range(n))) for n in (1, 2))
WHOLE, CUT = _of("pass", "a.jsonl"), "it was cut short, and has no footer"
ELSEWHERE = run(checked(Case("bert", "tiny", "cuda"), "fail"), torch="2.13.0")
DEAD = run(shard="1/2", source="1.jsonl", finished=False)
LIVING = [run(shard="2/2", source="2.jsonl"), run(checked(CASE), shard="3/2", source="3.jsonl")]
AGAIN = "duplicate: 1 check, with the same outcome each time; counted once"
SKIPPED = "duplicate: 1 check, skipped in one run and not in another; what ran counts"

# Runs, the outcomes after merging, the notes, and whether the results are sound.
MERGED: dict[str, tuple[list[RunRecords], list[str], list[str], bool]] = {
    "one run": ([WHOLE], ["pass"], [], True),
    "two devices": ([_of("pass", torch="2.12.0"), ELSEWHERE], ["pass", "fail"], [], True),
    "the same outcome twice": ([_of("pass"), _of("pass")], ["pass"], [AGAIN], True),
    "a skip and a pass": ([_of("skip"), _of("pass")], ["pass"], [SKIPPED], True),
    "a failure and a skip": ([_of("fail"), _of("skip")], ["fail"], [SKIPPED], True),
    "two shards of four": (
        _shards("3/4", "1/4"), [], ["missing: shard 2/4, 4/4; of this run there is 1/4 (1.jsonl), 3/4 (3.jsonl)"], False,
    ),
    "a sharded run, repeated": ([*_shards("1/2", "2/2"), *_shards("1/2", "2/2", torch="2.12.0")], [], [], True),
    "half of it repeated": (
        [*_shards("1/2", "2/2"), *_shards("1/2", torch="2.12.0")], [],
        ["missing: shard 2/2; of this run there is 1/2 (1.jsonl)"], False,
    ),
    "no end": ([run(checked(CASE), source="a.jsonl", finished=False)], ["pass"], [f"missing: the end of a.jsonl: {CUT}"], False),
    "fewer checks than the footer counts": (
        _replaced(WHOLE), [], ["missing: a.jsonl has 0 checks, and its footer counts 1"], False,
    ),
    "fewer checks than the header counts": (
        _replaced(WHOLE, *WHOLE.cases, cases=3), ["pass"], ["missing: 2 of the 3 checks of a.jsonl"], False,
    ),
    "a worker that replaces a dead one": ([DEAD, *LIVING], ["pass"], [f"missing: the end of 1.jsonl: {CUT}"], False),
    "a replacement alone": (
        LIVING, ["pass"], ["missing: shard 1/2; of this run there is 2/2 (2.jsonl), 3/2 (3.jsonl)"], False,
    ),
    "two failures": ([run(FEW), run(MANY)], ["fail"], [AGAIN], True),
}  # fmt: skip


@pytest.mark.parametrize("name", MERGED)
def test_merged_runs_have_their_outcomes_and_notes(name: str) -> None:
    runs, outcomes, notes, sound = MERGED[name]
    results = merged(runs)
    assert ([check.outcome for check in results.checks], _notes(results), results.sound) == (outcomes, notes, sound)
    assert results.headers == tuple(each.header for each in runs)
    assert results.footer == (runs[0].footer if len(runs) == 1 else None)


def test_of_two_failures_the_one_with_more_failing_activations_counts() -> None:
    assert merged([run(FEW), run(MANY)]).cases == merged([run(MANY), run(FEW)]).cases == (MANY,)


@pytest.mark.parametrize("outcomes", [("pass", "fail"), ("fail", "pass"), ("xfail", "fail"), ("fail", "fail", "pass")])
def test_of_two_outcomes_the_worse_counts_and_the_result_is_not_a_success(outcomes: tuple[str, ...]) -> None:
    results = merged([_of(outcome, f"{n}.jsonl") for n, outcome in enumerate(outcomes)])
    (note,) = results.notes
    assert ([check.outcome for check in results.checks], note.kind, results.sound) == (["fail"], "contradiction", False)
    assert note.text.endswith("; fail counts")
    assert all(f"{outcome} in " in note.text for outcome in outcomes)


@pytest.mark.parametrize("field", ["suite", "torch", "transformers", "seed", "examples"])
def test_shards_of_one_run_with_different_versions_contradict_each_other_and_those_of_two_runs_are_missing(field: str) -> None:
    here, there = (run(source=f"{n}.jsonl", shard=f"{n}/2", **{field: n}) for n in (1, 2))
    assert _notes(merged([here, there])) == [f"contradiction: shards of one run differ in {field}: 1 in 1.jsonl, 2 in 2.jsonl"]
    assert merged([here, run(source="2.jsonl", shard="2/2", **{field: 1})]).sound
    of_two_runs = [run(shard="1/2", run="first"), run(shard="2/2", run="second")]
    assert [note.kind for note in merged(of_two_runs).notes] == ["missing", "missing"]


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


def with_further_activations_judged(records: Records) -> None:
    check = _those(records, "check", "pass")[0]
    check["judged"] = check["activations"]


EDITS: tuple[Callable[[Records], None], ...] = (
    *(verdict_of_the_check, verdicts_of_all_activations, failing_activations_removed, verdicts_and_errors, excess_alone_is_left),
    *(check_removed, exit_code_of_the_check, exit_code_of_the_footer, counts_of_the_footer, skipped, never_run, with_a_large_error),
    with_further_activations_judged,
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
    results = read_results(file)
    contradicted = [c.outcome for c in results.checks if any(f", {c.case}: " in note.text for note in results.notes)]
    assert not {"pass", "skip"} & {*contradicted}


def test_an_unchanged_file_has_no_note_and_neither_has_one_of_an_earlier_version(whole: Records, tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    for left_out in ((), ("verdicts", "sizes")):
        records = [{name: value for name, value in record.items() if name not in left_out} for record in whole]
        file.write_text("".join(f"{json.dumps(record)}\n" for record in records))
        assert read_results(file).notes == ()
