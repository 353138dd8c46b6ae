"""Replay of a failure: with the same required activations and published values, one failure after another."""

import json
from pathlib import Path

import msgspec
import pytest

from conformance.checks.catalogue import PUBLISHED
from conformance.checks.published import published_of
from conformance.checks.replay import replayed
from conformance.cli import main
from conformance.report.run.case import command
from conformance.results.case import Case
from conformance.results.file import read_results
from conformance.results.records import CheckRecord
from conformance.tests.planted_mistakes import MadeOf
from conformance.tests.test_own_checkpoints import LAST, TINY, _published, _write

HIDING = "conformance.tests.test_replay:hiding_the_last"
hiding_the_last = MadeOf(lambda found: {name: value for name, value in found.items() if name != LAST})
REQUIRED = ("--require-activations", "*.layer.1.output.LayerNorm")


@pytest.fixture(scope="module")
def hiding(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that fails only because of a required activation."""
    out = tmp_path_factory.mktemp("hiding")
    run = ["run", "-i", "hf-sdpa", "--golden", "tiny", "--require-activations", "*.scores", "--out", str(out)]
    assert main(run) == 1
    return out / "results.jsonl"


def test_required_activations_are_required_again(hiding: Path) -> None:
    (left,) = (hiding.parent / "failures").glob("*.safetensors")
    for file in (hiding, left):
        (again,) = replayed(file)
        assert again.outcome == "fail"
        assert "required activations are not exposed: encoder.layer.0.attention.self.scores" in again.reason
        assert again.require == ("*.scores",)


def test_the_pages_command_requires_the_activation(hiding: Path) -> None:
    results = read_results(hiding)
    again = command(results.cases[0].check, results.headers)
    assert again == "bert-conformance run -i hf-sdpa --golden tiny --require-activations '*.scores'"


def test_a_file_from_before_the_field_was_added_is_read(hiding: Path) -> None:
    (check,) = read_results(hiding).checks
    assert check.require == ["*.scores"]
    older = json.loads(msgspec.json.encode(check))
    assert older.pop("require") == ["*.scores"]
    assert msgspec.json.decode(json.dumps(older), type=CheckRecord).require == []


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _write(tmp_path_factory.mktemp("checkpoint") / "tiny-bert")


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Publish values of the checkpoint for the duration of the test."""
    monkeypatch.setattr(published_of, "__defaults__", ((_published(TINY.checkpoint),),))


def _missed(checkpoint: Path, out: Path) -> Path:
    """Return a run on the checkpoint that fails twice: by a required activation, and by the published values of the checkpoint."""
    assert main(["run", "-i", HIDING, "--checkpoint", str(checkpoint), *REQUIRED, "--in-process", "--out", str(out)]) == 1
    return out / "results.jsonl"


@pytest.mark.usefixtures("known")
def test_published_values_that_were_missed_are_missed_again(checkpoint: Path, tmp_path: Path) -> None:
    file = _missed(checkpoint, tmp_path)
    (left,) = (tmp_path / "failures").glob(f"*-{PUBLISHED}_*.safetensors")
    for again in (*replayed(file)[1:], *replayed(left)):
        assert (again.case.check, again.outcome) == (PUBLISHED, "fail")
        assert "of which values are published" in again.reason
    results = read_results(file)
    again = command(results.cases[1].check, results.headers)  # They are judged with every check.
    assert again == f"bert-conformance run -i {HIDING} --checkpoint {checkpoint}"


def test_a_failure_that_cannot_be_replayed_is_reported_and_the_others_are_replayed(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(published_of, "__defaults__", ((_published(TINY.checkpoint),),))
        file = _missed(checkpoint, tmp_path)
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join([lines[0], lines[-2], *lines[1:-2], lines[-1]]))  # The failure that cannot be replayed comes first.
    cannot, can = replayed(file)
    assert (cannot.case, cannot.outcome, cannot.exit_code) == (Case(HIDING, "tiny-bert", check=PUBLISHED), "error", 2)
    assert "no values are published of checkpoint:" in cannot.reason
    assert (can.case.check, can.outcome) == ("values", "fail")
    assert main(["replay", str(file)]) == 2
    assert "does not conform" in capsys.readouterr().out


def test_a_failure_of_a_candidate_in_a_file_is_replayed_from_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, other = tmp_path / "home", tmp_path / "other"
    for folder in (home, other):
        folder.mkdir()
    (home / "moved.py").write_text(
        "from conformance.tests.planted_mistakes import MadeOf\n\n"
        f"bad = MadeOf(lambda found: {{n: v * (2 if n == {LAST!r} else 1) for n, v in found.items()}})\n"
    )
    monkeypatch.chdir(home)
    assert main(["run", "-i", "moved.py:bad", "--golden", "tiny", "--depth", "screen", "--out", "out"]) == 1
    (left,) = (home / "out" / "failures").glob("*.safetensors")
    monkeypatch.chdir(other)
    for file in (left, home / "out" / "results.jsonl"):
        (again,) = replayed(file)
        assert again.outcome == "fail"
        assert again.case.implementation == f"{home / 'moved.py'}:bad"
