"""Misbehaving candidates: each has its own outcome, and correct candidates before, between and after them conform."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from conformance import Checkpoint, Golden, check, load_golden
from conformance.checks.check import Request
from conformance.checks.run_check import run_check
from conformance.cli import main
from conformance.errors import ConformanceError
from conformance.goldens.custom_golden import golden_of
from conformance.goldens.golden import forget_checkpoints
from conformance.isolation.candidate_work import CandidateWork
from conformance.isolation.remote import RemoteCandidate
from conformance.isolation.worker_process import WorkerProcess
from conformance.model.checkpoint import read_only
from conformance.results.file import read_results
from conformance.tests.zoo import APART, ASKED, CALLS, IMPORTS, LAWLESS, MARKS, good
from conformance.tests.zoo_files import APART as FILES_APART
from conformance.tests.zoo_files import NAMED, write_files

ZOO = "conformance.tests.zoo"
CONTROLS = ("hf-sdpa", "hf-eager")
EVERY = 6  # Misbehaving candidates that are followed by a correct one.

# By the name of a candidate: its misbehaviour, its outcome and words of the reason.
EXPECTED = {
    **{f"{ZOO}:call_{i}": (what, outcome, reason) for i, (what, (_, outcome, reason)) in enumerate(CALLS.items())},
    **{f"{ZOO}:asked_{i}": (what, outcome, reason) for i, (what, (_, outcome, reason)) in enumerate(ASKED.items())},
    **NAMED,
    **{f"at_import_{i}:candidate": (f"import: {what}", *given[1:]) for i, (what, given) in enumerate(IMPORTS.items())},
}
# Those that end their process, hang, fill it, or leave it changed: each has a worker.
IN_WORKERS = {
    name: expected
    for name, expected in EXPECTED.items()
    if expected[0] in APART or expected[0].startswith("import") or expected[0].rpartition(": ")[2].startswith(FILES_APART)
}
IN_ONE_PROCESS = {name: expected for name, expected in EXPECTED.items() if name not in IN_WORKERS}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the current folder one with the candidates that are files."""
    for i, (source, _, _) in enumerate(IMPORTS.values()):
        (tmp_path / f"at_import_{i}.py").write_text(f"{source}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv(MARKS, str(tmp_path / "marks"))
    return tmp_path


def test_candidates_that_end_hang_or_fill_their_process_have_their_own_outcomes_and_correct_ones_beside_them_conform(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_files(folder)
    names, controls = [*IN_WORKERS], list(CONTROLS)
    ordered = [CONTROLS[0]]
    for i in range(0, len(names), EVERY):
        controls.append(f"{ZOO}:good_{i}")
        ordered += [*names[i : i + EVERY], controls[-1]]
    options = ["--golden", "tiny", "--depth", "screen", "--timeout", "4", "--memory", "8GiB", "--format", "json"]
    code = main(["run", *ordered, CONTROLS[1], *options])
    printed, results = capfd.readouterr(), read_results(folder / "conformance-results" / "results.jsonl")
    said = {case.check.implementation: case for case in results.cases}
    for name, (what, outcome, reason) in IN_WORKERS.items():
        case = said[name]
        assert (what, case.check.outcome) == (what, outcome)
        assert reason in " ".join([case.check.reason, *(a.reason for a in case.activations)]), what
    assert {name: said[name].check.outcome for name in controls} == dict.fromkeys(controls, "pass")
    assert len(json.loads(printed.out)["cases"]) == len(said) == len(names) + len(controls)  # the whole of standard output
    assert results.sound
    assert results.footer
    assert results.footer.exit_code == code != 0
    left = (folder / "marks").read_text().split()
    assert len(left) >= 3
    assert [number for number in left if Path(f"/proc/{number}").exists()] == []
    assert len(printed.err) < 2**22
    assert "\x1b" not in printed.err
    assert "is not shown" in printed.err


def _came_of(name: str, worker: WorkerProcess | None) -> tuple[str, str]:
    """Return the outcome of a candidate in this process or in a worker, and all reasons."""
    try:
        result = check(name if worker is None else RemoteCandidate(worker, name), "tiny", depth="screen")
    except ConformanceError as error:  # A run reports a candidate that a worker cannot load as an error.
        return "error", str(error)
    return result.outcome, " ".join([result.reason, *(v.reason for v in result.verdicts)])


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
@pytest.mark.parametrize("is_remote", [False, True], ids=["here", "in one worker"])
def test_in_one_process_the_others_have_their_own_outcomes_and_correct_candidates_after_them_conform(
    is_remote: bool, folder: Path
) -> None:
    write_files(folder)
    with WorkerProcess(CandidateWork) as worker:
        for i, (name, (what, outcome, reason)) in enumerate(IN_ONE_PROCESS.items()):
            came, said = _came_of(name, worker if is_remote else None)
            assert (what, came) == (what, outcome)
            assert reason in said, what
            assert i % EVERY or check(good, "tiny", depth="screen").outcome == "pass", what
    assert check(good, "tiny", depth="screen").outcome == "pass"


class _Reaching:
    """A correct candidate that alters the weights by which it is judged, where it runs in the same process."""

    def __init__(self, golden: Golden | None = None) -> None:
        self.golden = golden

    def prepare(self, checkpoint: Checkpoint, device: str, dtype: str) -> Any:
        weights = (self.golden or load_golden("tiny")).checkpoint.weights
        torch.from_numpy(weights["bert.pooler.dense.bias"]).mul_(3.0)
        return good(checkpoint, device, dtype)


reaching = _Reaching()
ALTERS = "it alters the weights that it is judged by, in the memory of this process"


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
@pytest.mark.parametrize("check_name", ["values", "repeated"])
def test_a_candidate_that_alters_the_reference_fails_and_a_correct_one_after_it_conforms(check_name: str) -> None:
    forget_checkpoints()  # so that no golden that another test has opened is altered
    result = run_check(Request.of(reaching, "tiny", "cpu", "float32", check_name))
    assert (result.outcome, result.reason) == ("fail", ALTERS)
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


def test_a_candidate_that_ends_its_process_gives_no_verdict_in_diff_and_replay(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    name = f"{ZOO}:call_{list(CALLS).index('is killed')}"
    assert main(["diff", name, "golden:tiny"]) == 1
    assert "it ended the process that it ran in" in capfd.readouterr().err
    assert main(["run", name, "--golden", "tiny", "-o", str(folder)]) == 1
    capfd.readouterr()
    assert main(["replay", str(folder / "results.jsonl")]) == 1
    assert "it ended the process that it ran in" in capfd.readouterr().out


def test_a_candidate_cannot_alter_the_judgement_of_drawn_batches_and_the_batch_that_ends_it_is_reported(folder: Path) -> None:
    patching, ending, correct = f"{ZOO}:patching_and_wrong", f"{ZOO}:ending_at_odd_lengths", "hf-sdpa"
    names = [patching, ending, correct]
    assert main(["run", *names, "--golden", "tiny", "--check", "generated-batches", "--examples", "8", "-o", str(folder)]) == 1
    checks = {case.check.implementation: case.check for case in read_results(folder / "results.jsonl").cases}
    assert [checks[name].outcome for name in (patching, ending, correct)] == ["fail", "crash", "pass"]
    assert "exit code 5" in checks[ending].reason
    example = checks[ending].counterexample
    assert example
    assert len(example.batch["input_ids"][0]) % 2  # The batch on which it ended, and no other.


def test_a_candidate_that_patches_comparisons_and_laws_in_its_process_fails_every_law_that_it_breaks(folder: Path) -> None:
    checks = [f"--check={law}" for law in LAWLESS]
    command = ["run", f"{ZOO}:patching_and_lawless", "hf-sdpa", "--golden", "tiny", *checks, "--examples", "2"]
    assert main([*command, "-o", str(folder)]) == 1
    outcomes = {
        (case.check.implementation, case.check.check): case.check.outcome for case in read_results(folder / "results.jsonl").cases
    }
    assert outcomes == {
        (name, law): outcome for name, outcome in ((f"{ZOO}:patching_and_lawless", "fail"), ("hf-sdpa", "pass")) for law in LAWLESS
    }
