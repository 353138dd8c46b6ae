"""Interrupted runs are resumed to the records of a complete run; two runs do not write into one folder."""

import fcntl
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from safetensors.torch import load_file, save_file

from conformance.cli import main
from conformance.errors import INTERRUPTED
from conformance.results.file import read_results
from conformance.tests.commands import Command
from conformance.tests.terminal import as_in_a_terminal
from conformance.tests.test_own_checkpoints import _write

RUN = ["run", "hf-eager", "making-bert", "--golden", "tiny", "--in-process", "--depth", "screen"]
# The golden's file is smaller than the limit of a full disk, since a checkpoint is read through a copy.
CASES = ("hf-eager", "demystified-as-written", "hf-sdpa", "--golden", "tanh")


def interruptible(out: Path, *more: str) -> list[str]:
    """Return the command of a run that takes a few seconds and writes to a folder; one of its candidates is skipped."""
    return [sys.executable, "-m", "conformance", "run", *CASES, "-o", str(out), "--format", "json", *more]


def records(out: Path) -> list[Any]:
    """Return the records of a folder's results that are equal for equal runs."""
    results = read_results(out / "results.jsonl")
    assert results.sound, results.notes
    never_the_same = {"seconds": 0.0, "candidate_seconds": 0.0, "judge_seconds": 0.0}
    cases = [{**msgspec.to_builtins(case.check), **never_the_same} for case in results.cases]
    return [*cases, *(msgspec.to_builtins(a) for a in results.activations), msgspec.to_builtins(results.footer)]


def on_a_full_disk(out: Path, size: int) -> subprocess.CompletedProcess[str]:
    """Run the command with a limit of `size` bytes per file."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return subprocess.run(interruptible(out), capture_output=True, text=True, check=False, preexec_fn=limit)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """The records of a run that nothing interrupted."""
    return _resumed(tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that was asked to resume where there were no results."""
    folder = tmp_path_factory.mktemp("finished")
    assert main([*RUN, "-o", str(folder), "--resume"]) == 0
    assert len(records(folder)) == 2 + 2 * 47 + 1
    return folder


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    """A copy of the folder of that run."""
    return Path(shutil.copytree(finished, tmp_path / "finished"))


def _resumed(folder: Path) -> list[Any]:
    """Resume a run of another process in this one, and return its records."""
    main(interruptible(folder, "--resume")[3:])
    return records(folder)


def _wait_for_a_check(results: Path) -> None:
    end = time.monotonic() + 60.0
    while not (results.exists() and b'"kind":"check"' in results.read_bytes()) and time.monotonic() < end:
        time.sleep(0.05)


def test_a_run_that_was_killed_is_resumed_to_the_same_records(whole: list[Any], tmp_path: Path) -> None:
    with subprocess.Popen(interruptible(tmp_path), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
        _wait_for_a_check(tmp_path / "results.jsonl")
        run.kill()
    assert _resumed(tmp_path) == whole


def test_a_full_disk_loses_no_completed_check(whole: list[Any], tmp_path: Path) -> None:
    ended = on_a_full_disk(tmp_path, 60_000)
    assert ended.returncode == 3
    assert "results.jsonl cannot be written: File too large" in ended.stderr
    assert "--resume runs the rest" in ended.stderr
    assert '"outcome":"pass"' in ended.stdout  # The completed checks are printed.
    assert _resumed(tmp_path) == whole


def test_resume_runs_only_missing_checks_and_says_so(folder: Path, command: Command) -> None:
    file, before = folder / "results.jsonl", records(folder)
    lines = file.read_bytes().splitlines(keepends=True)
    first = next(i for i, line in enumerate(lines) if b'"kind":"check"' in line) + 1
    file.write_bytes(b"".join(lines[:first]) + lines[first][:40])
    assert f"resumed: 1 checks are already in {file}, 1 remain" in command(*RUN, "-o", folder, "--resume").err
    assert records(folder) == before
    assert file.read_bytes().startswith(b"".join(lines[:first]))
    assert "2 checks are already in" in command(*RUN, "-o", folder, "--resume").err
    assert records(folder) == before


CANDIDATE = """
from beside import factor
from conformance import Checkpoint
from conformance.implementations.making_bert import making_bert

class Scaled:
    def prepare(self, checkpoint, device, dtype):
        weights = {n: factor * w if n.endswith("layer.1.attention.self.query.weight") else w for n, w in checkpoint.weights.items()}
        return making_bert.prepare(Checkpoint(checkpoint.architecture, weights), device, dtype)

scaled = Scaled()
"""


def _edited(folder: Path, file: str, old: str, new: str) -> None:
    (folder / file).write_text((folder / file).read_text().replace(old, new))


def _other_weights(folder: Path) -> None:
    file = folder / "bert" / "model.safetensors"
    state = {name: tensor.clone() for name, tensor in load_file(file).items()}
    state["bert.encoder.layer.0.output.dense.bias"] += 1.0
    save_file(state, file)


# What the error says; an edit of the files of a run, and options. Edited bytecode is of another size, or it would be kept.
OTHER: dict[str, tuple[Callable[[Path], object], tuple[str, ...]]] = {
    "the code of": (
        lambda folder: _edited(folder, "candidate/scaled.py", "scaled =", "Scaled.batch_invariant = True\nscaled ="),
        (),
    ),
    "the code of .*": (lambda folder: _edited(folder, "candidate/beside.py", "1.0", "1.50"), ()),
    "the golden bert was": (_other_weights, ()),
    "the architecture of bert was": (
        lambda folder: _edited(folder, "bert/config.json", '"layer_norm_eps": 1e-12', '"layer_norm_eps": 1e-05'),
        (),
    ),
    "the known failures was none": (
        lambda folder: (folder / "known.toml").write_text('[[known-failure]]\ncheck = "values"\nreason = "it is"\n'),
        ("--known-failures", "{folder}/known.toml"),
    ),
    r"the required activations was none, is \*query": (lambda _: None, ("--require-activations", "*query")),
    "run was": (lambda _: None, ("--dtype", "bfloat16")),
    "depth was screen, is full": (lambda _: None, ("--depth", "full")),
    "examples was 20, is 21": (lambda _: None, ("--examples", "21")),
    "seed was 0, is 1": (lambda _: None, ("--seed", "1")),
    "the time limit was none, is 60": (lambda _: None, ("--timeout", "60")),
    "the isolation was on, is off": (lambda _: None, ("--in-process",)),
}


def test_what_decides_a_verdict_is_not_changed_by_resuming(tmp_path: Path, command: Command) -> None:
    home = tmp_path / "home"
    (home / "candidate").mkdir(parents=True)
    (home / "candidate" / "scaled.py").write_text(CANDIDATE)
    (home / "candidate" / "beside.py").write_text("factor = 1.0\n")
    candidate = (f"{home / 'candidate' / 'scaled.py'}:scaled", "--checkpoint", _write(home / "bert"), "--depth", "screen")
    run = ("run", *candidate, "-o", home / "results")
    assert (command(*run).code, command(*run, "--resume").code) == (0, 0)
    before = (home / "results" / "results.jsonl").read_bytes()
    kept = shutil.copytree(home, tmp_path / "kept")
    for expected, (edit, options) in OTHER.items():
        edit(home)
        ended = command(*run, *(option.format(folder=home) for option in options), "--resume")
        assert (ended.code, "judge anew without --resume" in ended.words) == (2, True)
        assert re.search(f"is of another run, and cannot be resumed: .*{expected}", ended.words), ended.err
        assert (home / "results" / "results.jsonl").read_bytes() == before
        for file in ("candidate/scaled.py", "candidate/beside.py", "bert/config.json", "bert/model.safetensors"):
            shutil.copy2(kept / file, home / file)
    _edited(home, "candidate/beside.py", "1.0", "1.50")
    assert command(*run).code == 1


def test_two_runs_do_not_write_into_one_folder(folder: Path, command: Command) -> None:
    before = (folder / "results.jsonl").read_bytes()
    with (folder / "results.jsonl").open("r+b") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        ended = command(*RUN, "-o", folder)
    assert (ended.code, "another run writes" in ended.err) == (2, True)
    assert ((folder / "results.jsonl").read_bytes(), (folder / "report.html").exists()) == (before, True)


def test_an_interrupt_prints_the_results_so_far_and_how_to_resume_without_a_traceback(tmp_path: Path) -> None:
    arguments = [sys.executable, "-m", "conformance", "run", "hf-eager", "conformance.tests.zoo:call_hangs"]
    arguments += ["--golden", "tiny", "-o", str(tmp_path)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}
    with subprocess.Popen(arguments, preexec_fn=as_in_a_terminal, **pipes) as run:
        results = tmp_path / "results.jsonl"
        _wait_for_a_check(results)
        os.killpg(run.pid, signal.SIGINT)  # As a terminal sends it.
        out, error = run.communicate(timeout=60.0)
    assert run.returncode == INTERRUPTED
    assert "hf-eager on tiny, cpu, float32: conforms" in out
    assert out.startswith("ran 1 of 1: 1 pass; results are missing\n")
    assert f"the end of {results}: it was cut short after 1 of 2 checks" in " ".join(out.split())
    assert f"1 of 2 checks are in {results}; the same command with --resume runs the rest" in error
    assert "Traceback" not in error


def test_results_are_not_written_through_a_link_or_into_a_pipe(tmp_path: Path, command: Command) -> None:
    (tmp_path / "precious").write_text("kept")
    (tmp_path / "results.jsonl").symlink_to(tmp_path / "precious")
    ended = command(*RUN, "-o", tmp_path)
    assert (ended.code, "it is a link" in ended.err, (tmp_path / "precious").read_text()) == (2, True, "kept")
    (tmp_path / "results.jsonl").unlink()
    os.mkfifo(tmp_path / "results.jsonl")
    ended = command(*RUN, "-o", tmp_path)
    assert (ended.code, "is not a regular file" in ended.err) == (2, True)
