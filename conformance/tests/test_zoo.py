"""Misbehaving candidates in one run: each has its own outcome, and correct candidates before and after them conform."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conformance import Checkpoint, Golden, check, load_golden
from conformance.checks.catalogue import CHECKS
from conformance.checks.run_check import run_check
from conformance.cli import main
from conformance.goldens.custom_golden import golden_of
from conformance.isolation.candidate_work import CandidateWork
from conformance.isolation.remote import RemoteCandidate
from conformance.isolation.worker_process import WorkerProcess
from conformance.model.checkpoint import read_only
from conformance.results.file import read_results
from conformance.results.records import Results
from conformance.tests.zoo import APART, ASKED, CALLS, IMPORTS, LAWLESS, MARKS, good
from conformance.tests.zoo_files import APART as FILES_APART
from conformance.tests.zoo_files import NAMED, write_files

CONTROLS = ("hf-sdpa", "hf-eager")
ZOO = "conformance.tests.zoo"
_CALLS = {f"{ZOO}:call_{i}": (name, outcome, reason) for i, (name, (_, outcome, reason)) in enumerate(CALLS.items())}
_HALF = len(_CALLS) // 2
# By run: the names of the candidates, each with its misbehaviour, its outcome and words of the reason.
RUNS = {
    "first calls": dict(list(_CALLS.items())[:_HALF]),
    "further calls": dict(list(_CALLS.items())[_HALF:]),
    "files": NAMED,
    "asked": {f"{ZOO}:asked_{i}": (name, outcome, reason) for i, (name, (_, outcome, reason)) in enumerate(ASKED.items())}
    | {f"at_import_{i}:candidate": (f"import: {name}", *expected) for i, (name, (_, *expected)) in enumerate(IMPORTS.items())},
}
LIMIT = "4"  # Seconds.
MEMORY = "8GiB"


@dataclass(frozen=True)
class Ran:
    """A run: standard output, standard error, results, and the processes left behind by candidates."""

    out: str
    error: str
    results: Results
    left: list[int]


EVERY = 6  # Misbehaving candidates that are followed by a correct one.


def _run(names: Sequence[str], folder: Path) -> Ran:
    """Run these candidates with correct ones before, between and after them, in a folder with the modules that misbehave at
    import."""
    for i, (source, _, _) in enumerate(IMPORTS.values()):
        (folder / f"at_import_{i}.py").write_text(f"{source}\n")
    if NAMED.keys() & set(names):
        write_files(folder)
    command = ["run", "--golden", "tiny", "--timeout", LIMIT, "--memory", MEMORY, "--format", "json"]
    each = [x for i in range(0, len(names), EVERY) for x in (*names[i : i + EVERY], f"{ZOO}:good_{i}")]
    command += [x for name in (*CONTROLS[:1], *each, *CONTROLS[1:]) for x in ("-i", name)]
    marks = folder / "marks"
    environment = {**os.environ, MARKS: str(marks)}
    done = subprocess.run(
        [sys.executable, "-m", "conformance", *command], cwd=folder, capture_output=True, text=True, check=False, env=environment
    )
    left = [int(number) for number in marks.read_text().split()] if marks.exists() else []
    return Ran(done.stdout, done.stderr, read_results(folder / "conformance-results" / "results.jsonl"), left)


def _said(results: Results) -> dict[str, tuple[str, str]]:
    """Return the outcome and all reasons of each candidate."""
    return {
        case.check.implementation: (case.check.outcome, " ".join([case.check.reason, *(a.reason for a in case.activations)]))
        for case in results.cases
    }


# One test for each run, since each takes half a minute.
@pytest.mark.parametrize("run", RUNS)
def test_misbehaving_candidates_have_their_own_outcomes_and_correct_ones_beside_them_conform(run: str, tmp_path: Path) -> None:
    ran = _run([*RUNS[run]], tmp_path)
    said = _said(ran.results)
    expected = {name: (outcome, reason) for name, (_, outcome, reason) in RUNS[run].items()}
    wrong = {
        RUNS[run][name][0]: said.get(name)
        for name, (outcome, reason) in expected.items()
        if name not in said or said[name][0] != outcome or reason not in said[name][1]
    }
    assert wrong == {}
    controls = [*CONTROLS, *(f"{ZOO}:good_{i}" for i in range(0, len(RUNS[run]), EVERY))]
    assert {name: said[name][0] for name in controls} == dict.fromkeys(controls, "pass")
    assert len(json.loads(ran.out)["cases"]) == len(said) == len(RUNS[run]) + len(controls)  # This is the whole of standard output.
    assert ran.results.sound
    assert ran.results.footer
    assert ran.results.footer.exit_code == (2 if run == "asked" else 1)  # 2: a name that does not exist is a usage error.
    assert [number for number in ran.left if Path(f"/proc/{number}").exists()] == []
    assert len(ran.error) < 2**22
    assert "\x1b" not in ran.error
    if run == "first calls":
        assert len(ran.left) >= 2
        assert "is not shown" in ran.error


def test_sixty_misbehaviours_are_tried() -> None:
    assert sum(map(len, RUNS.values())) >= 60


def test_in_one_process_they_have_the_same_outcomes_and_correct_candidates_after_them_conform() -> None:
    here = [name for name in CALLS if name not in APART]
    for i, name in enumerate(here):
        call, outcome, reason = CALLS[name]
        result = check(lambda checkpoint, device, dtype, call=call: call, "tiny")
        assert (name, result.outcome) == (name, outcome)
        assert reason in " ".join([result.reason, *(v.reason for v in result.verdicts)]), name
        assert i % EVERY or check(good, "tiny").outcome == "pass", name
    assert len(here) > 25
    assert check(good, "tiny").outcome == "pass"


def test_files_have_the_same_outcomes_in_one_process_and_a_correct_candidate_after_them_conforms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    here = {n: expected for n, expected in NAMED.items() if not expected[0].partition(": ")[2].startswith(FILES_APART)}
    for name, (what, outcome, reason) in here.items():
        found = check(name, "tiny")
        assert (what, found.outcome) == (what, outcome)
        assert reason in " ".join([found.reason, *(v.reason for v in found.verdicts)]), what
    assert len(here) > 12
    assert check(good, "tiny").outcome == "pass"


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
def test_a_change_of_the_checkpoint_by_a_candidate_reaches_no_other_candidate_in_the_same_process() -> None:
    assert check(ASKED["alters the checkpoint"][0], "tiny").outcome == "pass"
    assert check(good, "tiny").outcome == "pass"


class _Reaching:
    """A correct candidate that alters the weights by which it is judged, where it runs in the same process."""

    def __init__(self, golden: Golden | None = None) -> None:
        self.golden = golden

    def prepare(self, checkpoint: Checkpoint, device: str, dtype: str) -> Any:
        import torch

        weights = (self.golden or load_golden("tiny")).checkpoint.weights
        torch.from_numpy(weights["bert.pooler.dense.bias"]).mul_(3.0)
        return good(checkpoint, device, dtype)


reaching = _Reaching()
ALTERS = "it alters the weights that it is judged by, in the memory of this process"


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
@pytest.mark.parametrize("check_name", ["values", "repeated"])
def test_a_candidate_that_alters_the_reference_fails_and_a_correct_one_after_it_conforms(check_name: str) -> None:
    found = run_check(CHECKS[check_name], reaching, "tiny", "cpu", "float32")
    assert (found.outcome, found.reason) == ("fail", ALTERS)
    assert check(good, "tiny").outcome == "pass"


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
def test_a_users_golden_altered_by_a_candidate_is_used_for_no_judgement() -> None:
    tiny = load_golden("tiny")
    weights = read_only({name: np.array(w) for name, w in tiny.checkpoint.weights.items()})
    own = golden_of("own", Checkpoint(tiny.checkpoint.architecture, weights), tiny.batches)
    assert check(_Reaching(own), own).reason == ALTERS
    after = check("hf-eager", own)
    assert (after.outcome, after.exit_code) == ("error", 3)
    assert "were altered by a candidate that ran in this process before" in after.reason


def test_a_candidate_in_a_worker_can_alter_only_its_own_copy_of_the_reference() -> None:
    with WorkerProcess(CandidateWork) as worker:
        assert check(RemoteCandidate(worker, "conformance.tests.test_zoo:reaching"), "tiny").outcome == "pass"
    assert check(good, "tiny").outcome == "pass"


@pytest.mark.parametrize("call", ["exits at once", "is killed"])
def test_a_candidate_that_ends_its_process_gives_no_verdict_in_diff_and_replay(
    call: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    name = f"{ZOO}:call_{list(CALLS).index(call)}"
    assert main(["diff", name, "golden:tiny"]) == 1
    assert "it ended the process that it ran in" in capfd.readouterr().err
    assert main(["run", "-i", name, "--golden", "tiny", "--out", str(tmp_path)]) == 1
    capfd.readouterr()
    assert main(["replay", str(tmp_path / "results.jsonl")]) == 1
    assert "it ended the process that it ran in" in capfd.readouterr().out


def test_a_candidate_cannot_alter_the_judgement_of_drawn_batches_and_the_batch_that_ends_it_is_reported(tmp_path: Path) -> None:
    patching, ending, good_one = f"{ZOO}:patching_and_wrong", f"{ZOO}:ending_at_odd_lengths", "hf-sdpa"
    names = [x for name in (patching, ending, good_one) for x in ("-i", name)]
    command = ["run", *names, "--golden", "tiny", "--check", "generated-batches", "--examples", "8", "--out", str(tmp_path)]
    assert main(command) == 1
    found = {case.check.implementation: case.check for case in read_results(tmp_path / "results.jsonl").cases}
    assert found[patching].outcome == "fail"
    assert found[ending].outcome == "crash"
    assert "exit code 5" in found[ending].reason
    example = found[ending].counterexample
    assert example
    assert len(example.batch["input_ids"][0]) % 2  # The batch on which it ended, and no other.
    assert found[good_one].outcome == "pass"


def test_a_candidate_that_patches_comparisons_and_laws_in_its_process_fails_every_law_that_it_breaks(tmp_path: Path) -> None:
    checks = [word for law in LAWLESS for word in ("--check", law)]
    command = ["run", "-i", f"{ZOO}:patching_and_lawless", "-i", "hf-sdpa", "--golden", "tiny", *checks]
    assert main([*command, "--examples", "2", "--out", str(tmp_path)]) == 1
    found = [case.check for case in read_results(tmp_path / "results.jsonl").cases]
    assert {c.check: c.outcome for c in found if c.implementation != "hf-sdpa"} == dict.fromkeys(LAWLESS, "fail")
    assert {c.check: c.outcome for c in found if c.implementation == "hf-sdpa"} == dict.fromkeys(LAWLESS, "pass")
