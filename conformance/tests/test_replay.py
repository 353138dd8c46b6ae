"""Replay of a failure: with the same required activations and published values, one failure after another."""

from pathlib import Path

import pytest

from conformance.checks.catalogue import PUBLISHED
from conformance.checks.published import published_of
from conformance.checks.replay import replayed
from conformance.cli import main
from conformance.report.run.case import command
from conformance.results.case import Case
from conformance.results.file import read_results
from conformance.tests.planted_mistakes import MadeOf
from conformance.tests.test_own_checkpoints import LAST, TINY, _published, _write

HIDING = "conformance.tests.test_replay:hiding_the_last"
hiding_the_last = MadeOf(lambda found: {name: value for name, value in found.items() if name != LAST})
REQUIRED = ("--require-activations", "*.layer.1.output.LayerNorm")


def test_required_activations_are_required_again_and_by_the_pages_command(tmp_path: Path) -> None:
    run = ["run", "-i", "hf-sdpa", "--golden", "tiny", "--require-activations", "*.scores", "--in-process"]
    assert main([*run, "--depth", "screen", "--out", str(tmp_path)]) == 1
    (left,) = (tmp_path / "failures").glob("*.safetensors")
    for file in (tmp_path / "results.jsonl", left):
        (again,) = replayed(file)
        assert (again.outcome, again.require) == ("fail", ("*.scores",))
        assert "required activations are not exposed: encoder.layer.0.attention.self.scores" in again.reason
    results = read_results(tmp_path / "results.jsonl")
    again = command(results.cases[0].check, results.headers)
    assert again.startswith("bert-conformance run -i hf-sdpa --golden tiny --require-activations '*.scores'")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _write(tmp_path_factory.mktemp("checkpoint") / "tiny-bert")


def test_published_values_are_missed_again_and_a_failure_that_cannot_be_replayed_does_not_stop_the_others(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(published_of, "__defaults__", ((_published(TINY.checkpoint),),))
        # It fails twice: by a required activation, and by the published values of the checkpoint.
        run = ["run", "-i", HIDING, "--checkpoint", str(checkpoint), *REQUIRED, "--in-process"]
        assert main([*run, "--out", str(tmp_path)]) == 1
        file, (left,) = tmp_path / "results.jsonl", (tmp_path / "failures").glob(f"*-{PUBLISHED}_*.safetensors")
        for again in (*replayed(file)[1:], *replayed(left)):
            assert (again.case.check, again.outcome, "of which values are published" in again.reason) == (PUBLISHED, "fail", True)
        results = read_results(file)
        again = command(results.cases[1].check, results.headers)  # They are judged with every check.
        assert again == f"bert-conformance run -i {HIDING} --checkpoint {checkpoint}"
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
    assert main(["run", "-i", "moved.py:bad", "--golden", "tiny", "--depth", "screen", "--in-process", "--out", "out"]) == 1
    (left,) = (home / "out" / "failures").glob("*.safetensors")
    monkeypatch.chdir(other)
    for file in (left, home / "out" / "results.jsonl"):
        (again,) = replayed(file)
        assert again.outcome == "fail"
        assert again.case.implementation == f"{home / 'moved.py'}:bad"
