"""A failed law keeps every run that came before the failure, since a candidate may depend on its earlier calls."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from conformance import load_golden
from conformance.checks.laws import batches, inputs
from conformance.checks.snippet import snippet
from conformance.model.batch import Batch
from conformance.results.case import Case
from conformance.results.example import Example, LawBroken, Run
from conformance.results.result import Counterexample

BATCH = Batch(np.arange(8).reshape(4, 2), np.zeros((4, 2), np.int64), np.ones((4, 2), np.int64))


def test_the_earlier_parts_of_a_batch_are_among_the_runs_of_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def require(subject: Any, whole: Run, part: Run, pairs: Any) -> float:
        if part.batch.input_ids[0, 0] == 4:
            raise LawBroken("differs", (whole, part))
        return 0.0

    monkeypatch.setattr(batches, "run_of", lambda subject, batch: Run(batch, {}))
    example = Example(BATCH, {"order": [0, 1, 2, 3], "rows": 1})
    with pytest.raises(LawBroken) as raised:
        batches._compared(cast(Any, None), example, require)
    assert [run.batch.input_ids[:, 0].tolist() for run in raised.value.runs] == [[0, 2, 4, 6], [0], [2], [4]]


def _refused(runs: Sequence[Run]) -> str:
    named = {f"run-{i}": run for i, run in enumerate(runs, 1)}
    found = Counterexample(Example(BATCH, {}), named, LawBroken("", raises=True), network="tiny")
    return snippet(Case("hf-eager", "tiny"), "hf-eager", found, "it is accepted")


def test_only_the_last_run_of_a_script_is_to_be_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Accepting:
        def run(self, batch: Batch) -> None:
            return None

    monkeypatch.setattr(inputs, "_answers", lambda subject, batch: True)
    beyond = load_golden("tiny").checkpoint.architecture.vocab_size
    wrong = replace(BATCH, input_ids=BATCH.input_ids + beyond)
    with pytest.raises(LawBroken) as raised:
        inputs._refuses(cast(Any, Accepting()), BATCH, wrong, "an id")
    script = _refused(raised.value.runs)
    assert script.index("run(input_ids=[[0, 1]") < script.index("try:") < script.index("run(input_ids=[[96, 97]")
