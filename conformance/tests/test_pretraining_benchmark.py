"""The benchmarks of the pre-training pipeline: a difference is found, and a generated corpus has the declared contents."""

import sys
from pathlib import Path

import pytest

from conformance.benchmarks.pretraining import kills
from conformance.benchmarks.pretraining.corpora import generate
from conformance.benchmarks.pretraining.kills import Kill, different
from conformance.benchmarks.pretraining.measure import table
from conformance.implementations.demystified.dialogues import Dialogues

pytestmark = pytest.mark.thorough  # benchmarks, which no user runs

FILES = ("curve.jsonl", "corpus/ids", "checkpoint-000000001/model.safetensors")


def run(folder: Path) -> Path:
    for name in FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"same")
    return folder


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_differs_or_is_missing_is_named(tmp_path: Path, name: str) -> None:
    whole, other = run(tmp_path / "whole"), run(tmp_path / "other")
    assert different(other, whole) == ()
    (other / name).write_bytes(b"sane")
    assert different(other, whole) == (name,)
    (other / name).unlink()
    assert different(other, whole) == (name,)


def test_a_run_that_ends_before_it_is_killed_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="ended with 0 before it was killed"):
        kills.killed([sys.executable, "-c", ""], lambda: False)


def test_kills_that_hit_training_are_not_counted_as_those_of_preparation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Path] = []

    def killed(command: list[str], now: object) -> None:
        started.append(Path(command[-1].removeprefix("--out=")))
        if len(started) == 2:  # this run is faster than the one that was timed
            (started[-1] / kills.PREPARED).mkdir(parents=True)
            (started[-1] / kills.CURVE).write_text("{}\n")

    monkeypatch.setattr(kills, "killed", killed)
    monkeypatch.setattr(kills, "generate", lambda *_: None)
    monkeypatch.setattr(kills, "_whole", lambda _: None)
    monkeypatch.setattr(kills, "_seconds_of_preparation", lambda *_: 1.0)
    monkeypatch.setattr(kills, "different", lambda *_: ())
    assert kills.in_preparation(tmp_path, 3, 0) == [Kill(0, 0, ())] * 3
    assert len(set(started)) == 4


def test_the_page_has_the_command_with_its_seed() -> None:
    lines = list(table([Kill(30, 25, ())], [Kill(0, 0, ())], [], 7))
    assert "Made by `python -m conformance.benchmarks.pretraining --seed 7 --write`." in lines
    assert "| training | 1 | 5 | 0 |" in lines


def test_a_generated_corpus_has_the_requested_number_of_lines_each_in_one_conversation(tmp_path: Path) -> None:
    generate(tmp_path, 1000)
    dialogues = Dialogues(tmp_path, tmp_path / "index")
    found = list(dialogues)
    assert 999 <= sum(map(len, found)) <= 1000  # A single remaining line would be no conversation.
    assert not dialogues.skipped.counts
