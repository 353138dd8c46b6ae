"""Files of a golden that a candidate, or another program, changes while a check runs: what was read is judged, or nothing."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from conformance import Checkpoint, Result, check
from conformance.cli import main
from conformance.goldens.custom_golden import from_directory
from conformance.goldens.make import keep
from conformance.implementations.making_bert import making_bert
from conformance.model.files import ARRAYS, open_safetensors, private_copy, read_pickle
from conformance.results.file import read_results
from conformance.tests.test_own_checkpoints import _write

SCALED = "encoder.layer.1.attention.self.query.weight"
FOLDER = "CHECKPOINT_OF_THE_TEST"


def _scaled(file: Path) -> dict[str, torch.Tensor]:
    state = {name: tensor.clone() for name, tensor in load_file(file).items()}
    return {name: 1.5 * tensor if name.endswith(SCALED) else tensor for name, tensor in state.items()}


def in_place(folder: Path) -> Path:
    file = folder / "model.safetensors"
    save_file(_scaled(file), folder / "other")
    file.write_bytes((folder / "other").read_bytes())
    return file


def by_rename(folder: Path) -> Path:
    file = folder / "model.safetensors"
    before = file.stat()
    save_file(_scaled(file), folder / "other")
    os.utime(folder / "other", ns=(before.st_atime_ns, before.st_mtime_ns))
    (folder / "other").replace(file)
    return file


def truncated(folder: Path) -> Path:
    os.truncate(folder / "model.safetensors", 0)
    return folder / "model.safetensors"


def another_epsilon(folder: Path) -> Path:
    file = folder / "config.json"
    file.write_text(file.read_text().replace("1e-12", "1e-05"))
    return file


CHANGES = (in_place, by_rename, truncated, another_epsilon)


class Changing:
    """Correct, but for what it does to the checkpoint's folder when it is prepared; then it holds the changed weights."""

    def __init__(self, change: Callable[[Path], Path]) -> None:
        self.change = change
        self.name, self.changed = f"changing-{change.__name__}", Path()

    def prepare(self, checkpoint: Checkpoint, device: str, dtype: str) -> Any:
        weights = {name: np.array(value) for name, value in checkpoint.weights.items()}
        weights[f"bert.{SCALED}"] *= 1.5
        self.changed = self.change(Path(os.environ[FOLDER]))
        return making_bert.prepare(Checkpoint(checkpoint.architecture, weights), device, dtype)


changing_truncated = Changing(truncated)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(FOLDER, str(tmp_path / "bert"))
    return _write(tmp_path / "bert")


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_candidate_that_changes_its_checkpoint_and_any_that_comes_after_it_get_no_verdict(
    change: Callable[[Path], Path], folder: Path
) -> None:
    def judged(candidate: Any, name: str = "values") -> Result:
        return check(candidate, f"checkpoint:{folder}", check=name, depth="screen")

    assert judged(making_bert).outcome == "pass"
    changing = Changing(change)
    first = judged(changing)
    assert first.exit_code == 3
    for result in (first, judged(making_bert), judged(making_bert, "padding-length")):
        assert (result.outcome, result.verdicts) == ("error", ())
        assert str(changing.changed) in result.reason
    shutil.rmtree(folder)
    _write(folder)  # as the message says
    assert judged(making_bert).outcome == "pass"


def test_a_pickle_and_a_link_are_copied_as_well(folder: Path, tmp_path: Path) -> None:
    state = {name: tensor.clone() for name, tensor in load_file(folder / "model.safetensors").items()}
    torch.save(state, tmp_path / "pytorch_model.bin")
    (tmp_path / "linked.safetensors").symlink_to(folder / "model.safetensors")
    pickled, linked = read_pickle(tmp_path / "pytorch_model.bin"), open_safetensors(tmp_path / "linked.safetensors", "pt")
    os.truncate(tmp_path / "pytorch_model.bin", 0)
    os.truncate(folder / "model.safetensors", 0)
    for name, tensor in state.items():
        assert torch.equal(pickled[name], tensor)
        assert torch.equal(linked.get_tensor(name), tensor)


def test_what_is_mapped_cannot_be_truncated_by_a_candidate_of_this_process_either(folder: Path) -> None:
    with private_copy(folder / "model.safetensors", ARRAYS) as copy, copy.open("r+b") as opened_by_a_candidate:
        with pytest.raises(PermissionError):
            opened_by_a_candidate.truncate(0)
        assert copy.read_bytes() == (folder / "model.safetensors").read_bytes()


def test_a_candidate_that_changes_the_checkpoint_of_a_made_golden_gets_no_verdict(folder: Path, tmp_path: Path) -> None:
    made = keep(from_directory(folder), tmp_path / "made")
    result = check(Changing(in_place), made.origin)
    assert (result.outcome, result.exit_code, result.verdicts) == ("error", 3, ())
    assert str(folder / "model.safetensors") in result.reason


def test_a_candidate_that_touches_no_file_of_the_checkpoint_conforms(folder: Path) -> None:
    def caching(checkpoint: Checkpoint, device: str, dtype: str) -> Any:
        """Keep something beside the weights, and read them."""
        (folder / "engine.cache").write_bytes((folder / "model.safetensors").read_bytes())
        (folder / "onnx").mkdir(exist_ok=True)
        return making_bert.prepare(checkpoint, device, dtype)

    assert check(caching, f"checkpoint:{folder}", depth="screen").outcome == "pass"


def test_a_run_names_the_file_that_changed_and_keeps_what_was_judged_before(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["making-bert", f"{__name__}:changing_truncated", "inner-workings"]
    assert main(["run", *arguments, "--checkpoint", str(folder), "--depth", "screen", "-o", str(tmp_path / "results")]) == 3
    assert "model.safetensors" in capsys.readouterr().out
    results = read_results(tmp_path / "results" / "results.jsonl")
    assert [c.outcome for c in results.checks] == ["pass", "error", "error"]
    assert {a.implementation for a in results.activations} == {"making-bert"}


def test_a_golden_that_is_open_keeps_the_weights_that_it_was_opened_with(folder: Path) -> None:
    golden, whole = from_directory(folder), from_directory(folder).checkpoint.digest
    truncated(folder)
    assert golden.checkpoint.digest == whole
