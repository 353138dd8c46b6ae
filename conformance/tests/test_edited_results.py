"""A results file is edited, by hand or by a program: what no longer follows from the records below it is a contradiction."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conformance.cli import main
from conformance.results.file import read_results
from conformance.tests.planted_mistakes import Planted, unscaled

Records = list[dict[str, Any]]

unscaled_candidate = Planted(unscaled(1))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Records:
    """The records of a run of two candidates, of which the second fails."""
    out = tmp_path_factory.mktemp("whole")
    names = ["-i", "making-bert", "-i", f"{__name__}:unscaled_candidate"]
    assert main(["run", *names, "--golden", "tiny", "--depth", "screen", "--in-process", "--out", str(out)]) == 1
    return [json.loads(line) for line in (out / "results.jsonl").read_bytes().splitlines()]


def _of(records: Records, kind: str, outcome: str | None = None) -> Records:
    return [r for r in records if r["kind"] == kind and outcome in (None, r.get("outcome"))]


def _pass(check: dict[str, Any]) -> None:
    check.update(outcome="pass", exit_code=0, reason="")


def _footer_of_passes(records: Records) -> None:
    records[-1].update(outcomes={"pass": 2}, exit_code=0)


def verdict_of_the_check(records: Records) -> None:
    _pass(_of(records, "check", "fail")[0])
    _footer_of_passes(records)


def verdicts_of_all_activations(records: Records) -> None:
    verdict_of_the_check(records)
    for record in _of(records, "activation", "fail"):
        record["outcome"] = "pass"
    _of(records, "check")[-1]["verdicts"] = {}


def failing_activations_removed(records: Records) -> None:
    verdict_of_the_check(records)
    records[:] = [r for r in records if r not in _of(records, "activation", "fail")]


def verdicts_and_errors(records: Records) -> None:
    verdicts_of_all_activations(records)
    for record in _of(records, "activation", "pass"):
        record["local"] = None


def excess_alone_is_left(records: Records) -> None:
    verdicts_of_all_activations(records)
    for record in _of(records, "activation"):
        record["limits"] = {"rms": 1e300, "max": 1e300}


def check_removed(records: Records) -> None:
    records.remove(_of(records, "check", "fail")[0])
    records[-1].update(outcomes={"pass": 1}, declared=1, ran=1, exit_code=0)
    records[0]["cases"] = 1
    records.insert(-1, records.pop(records.index(_of(records, "check")[0])))


def exit_code_of_the_check(records: Records) -> None:
    _of(records, "check", "fail")[0]["exit_code"] = 0


def exit_code_of_the_footer(records: Records) -> None:
    records[-1]["exit_code"] = 0


def counts_of_the_footer(records: Records) -> None:
    records[-1]["outcomes"] = {"pass": 2}


def skipped(records: Records) -> None:
    _of(records, "check", "fail")[0].update(outcome="skip", exit_code=0, executed=False)
    records[-1].update(outcomes={"pass": 1, "skip": 1}, ran=1, exit_code=0)


def never_run(records: Records) -> None:
    _of(records, "check", "pass")[0]["executed"] = False
    records[-1]["ran"] = 1


def with_a_large_error(records: Records) -> None:
    _of(records, "check", "pass")[0]["worst"] = 12.0


def with_further_activations_judged(records: Records) -> None:
    check = _of(records, "check", "pass")[0]
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
