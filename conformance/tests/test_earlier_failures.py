"""The folder `failures/` has the failures of the last run only; `--resume` keeps those of the run that it continues."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from conformance.cli import main

pytest_plugins = ["pytester"]

WRONG = "def wrong(checkpoint, device, dtype): return lambda batch: {'embeddings.LayerNorm': batch.input_ids}\n"
OWN = """
from conformance import parametrize_with_checks
from implementations.making_bert import making_bert

def wrong(checkpoint, device, dtype): return lambda batch: {"embeddings.LayerNorm": batch.input_ids}

@parametrize_with_checks([CANDIDATE], goldens=["tiny"], checks=["moments"])
def test_mine(check): check()
"""


def _run(out: Path, *names: str, more: tuple[str, ...] = ()) -> int:
    candidates = [word for name in names for word in ("-i", name)]
    return main(["run", *candidates, "--golden", "tiny", "--in-process", "--out", str(out), *more])


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Return the folder of a run that failed, to which a user has added files."""
    (tmp_path / "wrong.py").write_text(WRONG)
    folder = tmp_path / "out"
    assert _run(folder, f"{tmp_path / 'wrong.py'}:wrong") == 1
    assert len(list((folder / "failures").iterdir())) == 3
    save_file({"x": np.zeros(1)}, folder / "failures" / "mine.safetensors")
    for name in ("notes.txt", "cut.safetensors", "mine.py"):
        (folder / "failures" / name).write_text("mine")
    return folder


KEPT = {"mine.safetensors", "notes.txt", "cut.safetensors", "mine.py"}


def _left(out: Path) -> set[str]:
    return {file.name for file in (out / "failures").iterdir()}


def test_a_run_of_another_candidate_removes_the_failures_of_the_run_before_and_no_other_file(out: Path) -> None:
    assert _run(out, "making-bert") == 0
    assert _left(out) == KEPT


def test_a_resumed_run_keeps_the_failures_of_its_first_part(out: Path) -> None:
    before = _left(out)
    assert _run(out, f"{out.parent / 'wrong.py'}:wrong", more=("--resume",)) == 1
    assert _left(out) == before


@pytest.mark.parametrize("workers", [[], ["-n", "1"]], ids=["in this process", "by a worker"])
def test_a_session_of_pytest_removes_the_failures_of_the_session_before(pytester: pytest.Pytester, workers: list[str]) -> None:
    counts = []
    for candidate in ("wrong", "making_bert"):
        pytester.makepyfile(OWN.replace("CANDIDATE", candidate))
        pytester.runpytest_subprocess("--bert-out", "out", *workers)
        failures = pytester.path / "out" / "failures"
        counts.append(len(list(failures.iterdir())) if failures.is_dir() else 0)
    assert counts[0] > 0
    assert counts[1] == 0
