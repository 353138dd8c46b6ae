"""Interrupted runs are resumed to the records of a complete run; two runs do not write into one folder."""

import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from conformance.cli import main
from conformance.errors import INTERRUPTED
from conformance.tests.interruptions import command, interrupted, on_a_full_disk, records, undisturbed
from conformance.tests.terminal import as_in_a_terminal
from conformance.tests.test_own_checkpoints import _write

RUN = ["run", "-i", "hf-eager", "-i", "making-bert", "--golden", "tiny", "--in-process"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Any], float]:
    return undisturbed(tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run that was asked to resume where there were no results."""
    folder = tmp_path_factory.mktemp("finished")
    assert main([*RUN, "--out", str(folder), "--resume"]) == 0
    return folder


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    """Return a copy of the folder of that run."""
    return Path(shutil.copytree(finished, tmp_path / "finished"))


def _resumed(folder: Path) -> list[Any]:
    """Resume a run of another process in this one, and return its records."""
    main(command(folder, "--resume")[3:])
    return records(folder)


@pytest.mark.parametrize(("how", "at"), [(signal.SIGKILL, 0.7), (signal.SIGINT, 0.85)])
def test_a_run_that_was_killed_is_resumed_to_the_same_records(
    how: signal.Signals, at: float, whole: tuple[list[Any], float], tmp_path: Path
) -> None:
    expected, seconds = whole
    interrupted(tmp_path, at * seconds, how)
    assert _resumed(tmp_path) == expected


def test_a_full_disk_loses_no_completed_check(whole: tuple[list[Any], float], tmp_path: Path) -> None:
    expected, _ = whole
    ended = on_a_full_disk(tmp_path, 60_000)
    assert ended.returncode == 3
    assert "results.jsonl cannot be written: File too large" in ended.stderr
    assert "--resume runs the rest" in ended.stderr
    assert '"outcome":"pass"' in ended.stdout  # The completed checks are printed.
    assert _resumed(tmp_path) == expected


def test_resume_runs_only_missing_checks_and_says_so(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = folder / "results.jsonl"
    before = records(folder)
    lines = file.read_bytes().splitlines(keepends=True)
    first = next(i for i, line in enumerate(lines) if b'"kind":"check"' in line) + 1
    file.write_bytes(b"".join(lines[:first]) + lines[first][:40])
    capsys.readouterr()
    assert main([*RUN, "--out", str(folder), "--resume"]) == 0
    assert f"resumed: 1 checks are already in {file}, 1 remain" in capsys.readouterr().err
    assert records(folder) == before
    assert file.read_bytes().startswith(b"".join(lines[:first]))
    assert main([*RUN, "--out", str(folder), "--resume"]) == 0
    assert "2 checks are already in" in capsys.readouterr().err
    assert records(folder) == before


def test_resume_without_results_is_a_complete_run(finished: Path) -> None:
    assert len(records(finished)) == 2 + 2 * 47 + 1


def test_a_different_run_is_refused_and_the_results_remain(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (folder / "results.jsonl").read_bytes()
    assert main([*RUN, "--out", str(folder), "--resume", "--dtype", "bfloat16"]) == 2
    assert "is of another run, and cannot be resumed: run was" in capsys.readouterr().err
    assert main([*RUN, "--out", str(folder), "--resume", "--depth", "screen"]) == 2
    assert "depth was full, is screen" in capsys.readouterr().err
    assert (folder / "results.jsonl").read_bytes() == before


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


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    """The arguments of a run of a candidate in a file, with a module beside it, on a checkpoint; each test has its own files."""
    folder = tmp_path / "candidate"
    folder.mkdir()
    (folder / "scaled.py").write_text(CANDIDATE)
    (folder / "beside.py").write_text("factor = 1.0\n")
    return ["-i", f"{folder / 'scaled.py'}:scaled", "--checkpoint", str(_write(tmp_path / "bert")), "--depth", "screen"]


def code(folder: Path) -> list[str]:
    with (folder / "candidate" / "scaled.py").open("a") as file:
        file.write("\nScaled.batch_invariant = True\n")
    return []


def code_beside(folder: Path) -> list[str]:
    (folder / "candidate" / "beside.py").write_text(
        "factor = 1.50\n"
    )  # of another size, since bytecode is kept by the second and the size
    return []


def weights(folder: Path) -> list[str]:
    file = folder / "bert" / "model.safetensors"
    state = {name: tensor.clone() for name, tensor in load_file(file).items()}
    state["bert.encoder.layer.0.output.dense.bias"] += 1.0
    save_file(state, file)
    return []


def configuration(folder: Path) -> list[str]:
    file = folder / "bert" / "config.json"
    file.write_text(file.read_text().replace('"layer_norm_eps": 1e-12', '"layer_norm_eps": 1e-05'))
    return []


def known_failures(folder: Path) -> list[str]:
    (folder / "known.toml").write_text('[[known-failure]]\ncheck = "values"\nreason = "it is"\n')
    return ["--known-failures", str(folder / "known.toml")]


OTHER: dict[str, Callable[[Path], list[str]]] = {
    "the code of": code,
    "the code of .*": code_beside,
    "the golden bert was": weights,
    "the architecture of bert was": configuration,
    "the known failures was none": known_failures,
    r"the required activations was none, is \*query": lambda _: ["--require-activations", "*query"],
    "depth was screen, is full": lambda _: ["--depth", "full"],
    "examples was 20, is 21": lambda _: ["--examples", "21"],
    "seed was 0, is 1": lambda _: ["--seed", "1"],
    "the time limit was none, is 60": lambda _: ["--timeout", "60"],
    "the isolation was on, is off": lambda _: ["--in-process"],
}


def test_a_run_that_is_whole_is_resumed_by_the_same_command_alone(arguments: list[str], tmp_path: Path) -> None:
    command = ["run", *arguments, "--out", str(tmp_path / "results")]
    assert main(command) == 0
    assert main([*command, "--resume"]) == 0
    code_beside(tmp_path)
    assert main([*command, "--resume"]) == 2
    assert main(command) == 1


def test_what_decides_a_verdict_is_not_changed_by_resuming(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["run", *arguments, "--out", str(tmp_path / "results")]
    assert main(command) == 0
    before = (tmp_path / "results" / "results.jsonl").read_bytes()
    for expected, change in OTHER.items():
        kept = shutil.copytree(tmp_path, tmp_path.parent / f"{tmp_path.name}-kept", dirs_exist_ok=True)
        assert main([*command, *change(tmp_path), "--resume"]) == 2
        error = " ".join(capsys.readouterr().err.split())
        assert re.search(f"is of another run, and cannot be resumed: .*{expected}", error), error
        assert "judge anew without --resume" in error
        assert (tmp_path / "results" / "results.jsonl").read_bytes() == before
        for file in ("candidate/scaled.py", "candidate/beside.py", "bert/config.json", "bert/model.safetensors"):
            shutil.copy2(kept / file, tmp_path / file)


def test_two_runs_do_not_write_into_one_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (folder / "results.jsonl").read_bytes()
    with (folder / "results.jsonl").open("r+b") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert main([*RUN, "--out", str(folder)]) == 2
    assert "another run writes" in capsys.readouterr().err
    assert (folder / "results.jsonl").read_bytes() == before
    assert (folder / "report.html").exists()


def test_results_are_not_written_through_a_link_or_into_a_pipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "precious").write_text("kept")
    (tmp_path / "results.jsonl").symlink_to(tmp_path / "precious")
    assert main([*RUN, "--out", str(tmp_path)]) == 2
    assert "it is a link" in capsys.readouterr().err
    assert (tmp_path / "precious").read_text() == "kept"
    (tmp_path / "results.jsonl").unlink()
    os.mkfifo(tmp_path / "results.jsonl")
    assert main([*RUN, "--out", str(tmp_path)]) == 2
    assert "is not a regular file" in capsys.readouterr().err


def test_an_interrupt_prints_the_results_so_far_and_how_to_resume_without_a_traceback(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "conformance", "run", "-i", "hf-eager", "-i", "conformance.tests.zoo:call_hangs"]
    command += ["--golden", "tiny", "--out", str(tmp_path)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}
    with subprocess.Popen(command, preexec_fn=as_in_a_terminal, **pipes) as run:
        results, end = tmp_path / "results.jsonl", time.monotonic() + 60.0
        while not (results.exists() and b'"kind":"check"' in results.read_bytes()) and time.monotonic() < end:
            time.sleep(0.05)
        os.killpg(run.pid, signal.SIGINT)  # As a terminal sends it.
        out, error = run.communicate(timeout=60.0)
    assert run.returncode == INTERRUPTED
    assert "hf-eager on tiny, cpu, float32: conforms" in out
    assert out.startswith("ran 1 of 1: 1 pass; results are missing\n")
    assert f"the end of {results}: it was cut short after 1 of 2 checks" in " ".join(out.split())
    assert f"1 of 2 checks are in {results}; the same command with --resume runs the rest" in error
    assert "Traceback" not in error
