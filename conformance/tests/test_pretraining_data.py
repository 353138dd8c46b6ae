"""Checks of pre-training data: each finds its broken pipelines, lets unusual correct ones through, and is asked in a worker too."""

from typing import Any

import pytest

from conformance.checks.catalogue import CHECKS
from conformance.checks.run_check import run
from conformance.results.result import Result
from conformance.tests.pipelines import BROKEN, CORRECT

DATA = [name for name in CHECKS if name.startswith("data-")]


def judged(check: str, candidate: Any) -> Result:
    return run(CHECKS[check], candidate, "tiny", "cpu", "float32")


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_pipeline_is_found_by_the_check_that_is_meant_for_it(name: str) -> None:
    candidate, check, words = BROKEN[name]
    result = judged(check, candidate)
    assert result.outcome == "fail", result.reason
    assert words in result.reason


def test_every_check_has_a_broken_pipeline() -> None:
    assert {check for _, check, _ in BROKEN.values()} == set(DATA)


@pytest.mark.parametrize("name", CORRECT)
def test_an_unusual_correct_pipeline_passes_every_check(name: str) -> None:
    outcomes = {check: (result.outcome, result.reason) for check in DATA if (result := judged(check, CORRECT[name]))}
    skipped = {"data-pairs": ("skip", "its rows are no pairs: its batches have no next_sentence_label")}
    assert outcomes == dict.fromkeys(DATA, ("pass", "")) | (skipped if CORRECT[name].single else {})
