"""The seconds of a check, divided into those spent waiting for the candidate and those of the judge."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conformance import check, read_results
from conformance.checks.check import Plan, Request
from conformance.checks.run_check import run_check
from conformance.cli import main
from conformance.implementations.making_bert import making_bert
from conformance.judge.select_arithmetic import select_arithmetic

WAIT = 0.3  # Seconds that the slow candidate adds to each forward pass.


def _slow_call(model: Any, batch: Any) -> Any:
    time.sleep(WAIT)
    return making_bert.call(model, batch)


slow = replace(making_bert, call=_slow_call)


def test_the_time_of_a_slow_candidate_is_counted_as_its_own_and_that_of_a_slow_judge_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert check(slow).candidate_seconds >= WAIT

    def slowly(judged: Any) -> Any:
        time.sleep(WAIT)
        return select_arithmetic(judged)

    usual = check(making_bert)
    monkeypatch.setattr("conformance.checks.judgement.select_arithmetic", slowly)
    result = check(making_bert)
    assert result.seconds - result.candidate_seconds >= WAIT
    assert result.candidate_seconds < usual.candidate_seconds + WAIT


@pytest.mark.parametrize("asked", ["padding-length", "stages"])
def test_every_kind_of_check_counts_the_candidates_seconds(asked: str) -> None:
    result = run_check(Request.of(slow, "tiny", "cpu", "float32", asked, plan=Plan(1)))
    assert result.outcome == "pass", result.reason
    assert WAIT <= result.candidate_seconds <= result.seconds


def test_seconds_are_counted_across_processes_and_written_to_the_results(tmp_path: Path) -> None:
    name = "conformance.tests.test_candidate_time:slow"
    checks = ["--check", "values", "--check", "inputs-untouched", "--depth", "screen"]
    assert main(["run", name, "--golden", "tiny", *checks, "--examples", "1", "-o", str(tmp_path)]) == 0
    for record in read_results(tmp_path / "results.jsonl").checks:
        assert record.candidate_seconds is not None
        assert WAIT <= record.candidate_seconds <= record.seconds
        assert record.judge_seconds == pytest.approx(record.seconds - record.candidate_seconds)
