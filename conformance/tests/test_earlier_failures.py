"""The folder `failures/` has the failures of the last run only; `--resume` keeps those of the run that it continues.

A session of pytest also removes the results files of the session before, with its first check."""

import fcntl
import os
from pathlib import Path

import pytest

from conformance.checks.snippet import BEGIN
from conformance.cli import main
from conformance.results.file import read_results

pytest_plugins = ["pytester"]

WRONG = "def wrong(checkpoint, device, dtype): return lambda batch: {'embeddings.LayerNorm': batch.input_ids}\n"
OWN = """
from conformance import parametrize_with_checks
from conformance.implementations.making_bert import making_bert

def wrong(checkpoint, device, dtype): return lambda batch: {"embeddings.LayerNorm": batch.input_ids}

@parametrize_with_checks([CANDIDATE], goldens=["tiny"], checks=["stages"])
def test_mine(check): check()
"""


def _run(out: Path, *names: str, more: tuple[str, ...] = ()) -> int:
    return main(["run", *names, "--golden", "tiny", "--in-process", "-o", str(out), *more])


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Return the folder of a run that failed, to which a user has added files."""
    (tmp_path / "wrong.py").write_text(WRONG)
    folder = tmp_path / "out"
    assert _run(folder, f"{tmp_path / 'wrong.py'}:wrong") == 1
    assert len(list((folder / "failures").iterdir())) == 1
    for name in ("notes.txt", "mine.py"):
        (folder / "failures" / name).write_text("mine")
    return folder


KEPT = {"notes.txt", "mine.py"}


def _left(out: Path) -> set[str]:
    return {file.name for file in (out / "failures").iterdir()}


def test_a_run_of_another_candidate_removes_the_failures_of_the_run_before_and_no_other_file(out: Path) -> None:
    assert _run(out, "making-bert") == 0
    assert _left(out) == KEPT


def test_a_folder_and_a_pipe_among_the_failures_stop_no_run(out: Path) -> None:
    (out / "failures" / "folder.py").mkdir()
    os.mkfifo(out / "failures" / "pipe.py")
    assert _run(out, "making-bert") == 0
    assert _left(out) == {*KEPT, "folder.py", "pipe.py"}


def test_a_resumed_run_keeps_the_failures_of_its_first_part(out: Path) -> None:
    before = _left(out)
    assert _run(out, f"{out.parent / 'wrong.py'}:wrong", more=("--resume",)) == 1
    assert _left(out) == before


YESTERDAY = {"results.jsonl", "results-3.jsonl", "results-4.jsonl", "failures"}
SKIPPED = "import pytest\npytestmark = pytest.mark.skip('not here')"


@pytest.fixture
def earlier(pytester: pytest.Pytester) -> Path:
    """Return the folder of earlier sessions, with and without workers, one of which failed, and a file of results to test."""
    folder = pytester.path / "out"
    (folder / "failures").mkdir(parents=True)
    (folder / "failures" / "values.py").write_text(BEGIN)
    for name in YESTERDAY - {"failures"}:
        (folder / name).write_text("of yesterday")
    pytester.makepyfile(OWN.replace("CANDIDATE", "making_bert"))
    return folder


@pytest.mark.landing(options=("-k", "nothing"))
@pytest.mark.parametrize(
    ("options", "further"),
    [
        (("--collect-only",), ""),
        (("-k", "nothing"), ""),
        (("--setup-only",), ""),
        ((), SKIPPED),
        ((), "import no_such_module"),
    ],
    ids=["collecting", "deselected", "setting up", "skipped by a mark", "not collected"],
)
def test_a_session_that_runs_no_check_leaves_the_results_of_the_session_before(
    options: tuple[str, ...], further: str, earlier: Path, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(OWN.replace("CANDIDATE", "making_bert") + further)
    pytester.runpytest_inprocess("--bert-out", "out", *options)
    assert {file.name for file in earlier.iterdir()} == YESTERDAY
    assert all(file.read_text() == "of yesterday" for file in earlier.glob("*.jsonl"))
    assert list((earlier / "failures").iterdir())


@pytest.mark.landing(workers=[["-n", "2"]])
@pytest.mark.parametrize(
    ("workers", "files"), [([], {"results.jsonl"}), (["-n", "2"], {"results-1.jsonl", "results-2.jsonl"})], ids=["alone", "workers"]
)
def test_a_session_removes_all_results_of_the_session_before_and_no_others(
    workers: list[str], files: set[str], earlier: Path, pytester: pytest.Pytester
) -> None:
    (earlier / "results-main.jsonl").write_text("mine")
    pytester.runpytest_subprocess("--bert-out", "out", *workers).assert_outcomes(passed=1)
    assert {file.name for file in earlier.iterdir()} == {*files, "results-main.jsonl", "failures"}
    assert not list((earlier / "failures").iterdir())
    results = read_results(*(earlier / name for name in files))
    assert results.sound  # The worker that ran no check has a complete file as well.
    assert [check.outcome for check in results.checks] == ["pass"]


def test_a_session_does_not_remove_results_that_another_run_writes(earlier: Path, pytester: pytest.Pytester) -> None:
    with (earlier / "results-4.jsonl").open("r+b") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        ended = pytester.runpytest_inprocess("--bert-out", "out")
    ended.assert_outcomes(failed=1)
    ended.stdout.fnmatch_lines(["*CheckError: --bert-out *another run writes *results-4.jsonl; wait for its end*"])
    assert {file.name for file in earlier.iterdir()} == YESTERDAY
