"""A diagnosis in progress: its progress reports, its time limit, and the exactness of values reused from another network."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conformance.cli import main
from conformance.diagnosis import Diagnosis, diagnose
from conformance.diagnosis.black_box import BlackBox, BlackBoxSegment
from conformance.diagnosis.explanations import BlackBoxCase
from conformance.diagnosis.outputs import resolved
from conformance.diagnosis.problem import PrintedProblem
from conformance.diagnosis.tables import OutputTable
from conformance.judge.search.budget import ELSE, FAULTS, RIGHT, STAGES, SearchBudget
from conformance.judge.search.fault_sets import VERIFIED
from conformance.judge.search.placements import EVERYWHERE, SINGLE, placements, with_faults
from conformance.numerics.formats import format_named
from conformance.progress import watched
from conformance.report.diagnosis_report import document
from conformance.report.document import markdown
from conformance.report.terminal import plain
from conformance.tests.test_diagnose import BATCH, CHECKPOINT, INPUTS, _hidden, _model, _text
from conformance.tests.test_own_checkpoints import _write


@cache
def _two_faults() -> dict[str, Any]:
    return {"last_hidden_state": _text(_hidden(_model(hidden_act="relu"), attention_mask=None))}


def _cut_at(stage: str, outputs: dict[str, Any]) -> Diagnosis:
    """Return a diagnosis whose time runs out once the first hypothesis of a stage has begun."""
    reported: list[str] = []

    def clock() -> float:
        return 100.0 if any(what.startswith(f"{stage}: ") for what in reported) else 0.0

    pooling = "mean" if "embedding" in outputs else None
    with watched(lambda what, _: reported.append(what)):
        return diagnose(CHECKPOINT, BATCH, outputs, pooling=pooling, time_limit=60.0, clock=clock)


def _flat(diagnosis: Diagnosis) -> str:
    """Return the report as one line."""
    return " ".join(plain(document(diagnosis), 160).split())


@pytest.mark.parametrize("stage", [s for s in STAGES if s not in (RIGHT, FAULTS[2], f"verifying {FAULTS[2]}")])
def test_a_search_that_is_cut_short_reports_where_and_what_was_not_tried(stage: str) -> None:
    hidden = _hidden(_model(hidden_act="relu"), attention_mask=None)
    diagnosis = _cut_at(stage, {"embedding": _text(hidden[:, 0])})
    later = [faults for faults in FAULTS if STAGES.index(faults) > STAGES.index(stage)]
    assert not diagnosis.conforms
    assert f"cut short by its time limit of 60 s at the stage of {stage}, with " in diagnosis.cut_short
    assert diagnosis.cut_short.endswith(f" tries left; sets of {' or '.join(later)} were not tried either")
    assert diagnosis.cut_short in _flat(diagnosis)
    assert diagnosis.cut_short in markdown(document(diagnosis))
    assert diagnosis.explanations or stage in (ELSE, FAULTS[0])


def test_the_correct_network_is_judged_whatever_the_time_limit() -> None:
    right = diagnose(CHECKPOINT, BATCH, {"last_hidden_state": _text(_hidden(_model()))}, time_limit=1e-9)
    assert right.conforms
    assert f"at the stage of {RIGHT}, " in right.cut_short
    wrong = diagnose(CHECKPOINT, BATCH, _two_faults(), time_limit=1e-9)
    assert (wrong.conforms, wrong.explanations) == (False, ())
    assert "no explanation was found within the time limit" in _flat(wrong)


def test_the_command_accepts_a_limit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, file = _write(tmp_path), tmp_path / "outputs.json"
    file.write_text(json.dumps({**{k: v.tolist() for k, v in INPUTS.items()}, **_two_faults()}))
    call = ["diagnose", "--checkpoint", str(folder), "--outputs", str(file), "--time-limit"]
    for limit in ("soon", "0", "-1", "nan"):
        with pytest.raises(SystemExit, match="2"):
            main([*call, limit])
        assert f"'{limit}' is not a positive number of seconds" in capsys.readouterr().err
    assert main([*call, "1e-9", "--format", "json"]) == 1
    captured = capsys.readouterr()
    assert "cut short by its time limit of 1e-09 s" in json.loads(captured.out)["cut_short"]
    assert captured.err == ""


def test_values_taken_from_a_network_with_some_of_the_faults_are_exact() -> None:
    known = resolved({"last_hidden_state": OutputTable(np.zeros((BATCH.size, BATCH.length, 32)))}, CHECKPOINT.architecture, BATCH)
    right = BlackBoxSegment(BlackBox(CHECKPOINT.architecture, CHECKPOINT.weights, BATCH, known), format_named("float32"))
    every = placements(right)
    everywhere = {s.fault.name: s for s in reversed(every) if s.reach == EVERYWHERE}
    base = [everywhere["epsilon"], everywhere["gelu-variant"]]
    like = with_faults(right, base, right.storage)
    assert like.is_effective
    shared = 0
    for placement in [s for s in every if not s.fault.after_failure and s.reach in (EVERYWHERE, SINGLE)]:
        alone, taken = (with_faults(right, [*base, placement], right.storage, known) for known in (None, like))
        assert alone.effective == {name: keys for name, keys in taken.effective.items() if keys or name in alone.effective}
        assert np.array_equal(alone.segment.value, taken.segment.value, equal_nan=True)
        assert alone.changed == taken.changed
        shared += any(taken.segment.steps[n] is like.segment.steps[n] for n in like.changed)
    assert shared


def test_a_hypothesis_refuted_on_part_of_the_batch_is_refuted_on_all_of_it() -> None:
    known = resolved({name: OutputTable(part) for name, part in _two_faults().items()}, CHECKPOINT.architecture, BATCH)
    network = BlackBox(CHECKPOINT.architecture, CHECKPOINT.weights, BATCH, known)
    case = BlackBoxCase(CHECKPOINT, network, "float32", SearchBudget(None, lambda: 0.0))
    problem = PrintedProblem(case.arithmetics[0], case.budget)
    part = problem.part(())
    assert part.weights.size < problem.weights.size
    tried = [fit for placement in case.right.placements if (fit := part.evaluate([placement]))]
    nearest = sorted(tried, key=lambda fit: fit.distance)[:VERIFIED]
    refuted = [fit for fit in nearest if part.fit_unless_refuted(fit, problem, own=True) is None]
    assert refuted
    assert not any(problem.judge(problem.fit_on_whole(fit), own=True).explains for fit in refuted)
