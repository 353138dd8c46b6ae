"""`diagnose` and `similarity` of numbers that are stored in a narrower format than they were computed in."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from conformance.diagnosis import Diagnosis, diagnose, read
from conformance.diagnosis.outputs import filled
from conformance.diagnosis.tables import tables
from conformance.numerics.formats import FORMATS
from conformance.report.diagnosis_report import document
from conformance.report.document import markdown
from conformance.tests.test_diagnose import BATCH, CHECKPOINT, _hidden, _model


def _txt(file: Path, hidden: torch.Tensor) -> None:
    torch.set_printoptions(threshold=hidden.numel())
    try:
        file.write_text(f"last_hidden_state={hidden!r}")
    finally:
        torch.set_printoptions(profile="default")


WRITERS: dict[str, Callable[[Path, torch.Tensor], object]] = {
    "npy": lambda file, hidden: np.save(file, hidden.numpy()),
    "safetensors": lambda file, hidden: save_file({"last_hidden_state": hidden}, file),
    "txt": _txt,
}


def _of_file(ending: str, hidden: torch.Tensor, folder: Path, **options: Any) -> Diagnosis:
    file = folder / f"out.{ending}"
    WRITERS[ending](file, hidden)
    return diagnose(CHECKPOINT, BATCH, read(file).tables, **options)


@pytest.mark.parametrize(
    ("ending", "dtype"), [("npy", "float16"), ("txt", "float16"), ("safetensors", "bfloat16"), ("txt", "bfloat16")]
)
def test_correct_outputs_that_are_stored_in_a_narrower_format_conform(ending: str, dtype: str, tmp_path: Path) -> None:
    diagnosis = _of_file(ending, _hidden(_model()).to(getattr(torch, dtype)), tmp_path)
    assert diagnosis.conforms
    assert diagnosis.stored == (dtype,)
    assert 0.5 < diagnosis.rms < 1.5  # most of the error is the rounding of the stored format
    assert f"stored in {dtype}; " in markdown(document(diagnosis))


def test_a_fault_is_named_from_numbers_in_float16(tmp_path: Path) -> None:
    diagnosis = _of_file("npy", _hidden(_model(hidden_act="relu")).half(), tmp_path)
    assert (diagnosis.conforms, diagnosis.stored) == (False, ("float16",))
    assert [f.name for f in diagnosis.explanations[0].faults] == ["activation-relu"]


@pytest.mark.parametrize(("stored", "computed"), [("float32", "float32"), ("float16", "float16"), ("float16", "bfloat16")])
def test_numbers_in_a_format_that_is_not_narrower_are_exact(stored: str, computed: str, tmp_path: Path) -> None:
    diagnosis = _of_file("npy", _hidden(_model(computed)).to(getattr(torch, stored)), tmp_path, dtype=computed)
    assert (diagnosis.conforms, diagnosis.stored, diagnosis.digits) == (True, (), None)


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        (f"{torch.tensor([0.1]).half()}", ["float16"]),
        (f"{torch.tensor([[0.1]], requires_grad=True).bfloat16()}", ["bfloat16"]),
        ("x = tensor([0.1],\n       device='cuda:0', dtype=torch.float16)", ["float16"]),
        (f"{[torch.tensor([0.1]).half(), torch.tensor([0.1])]}", ["float16"]),
        (f"{[torch.tensor([0.1]).half(), torch.tensor([0.1]).bfloat16()]}", ["bfloat16"]),
        (f"{np.array([0.1], np.float16)!r}", ["float16"]),
        (f"{[np.float16(0.1)]}", ["float16"]),
        (f"{torch.tensor([0.1])}\n", [""]),
        (f"{torch.tensor([0.1]).double()}", [""]),
        (f"a={torch.tensor([0.1])}, b={torch.tensor([0.1]).half()}", ["", "float16"]),
    ],
)
def test_the_half_format_that_is_printed_with_a_table_is_the_stored_one(text: str, stored: list[str]) -> None:
    assert [table.stored for _, table in tables(text, "f")] == stored


def test_the_variances_of_storing_and_of_printing_are_added() -> None:
    known = filled(["0.5", "...", "2.00"], (3,), "x", stored="float16")
    places = FORMATS["float16"].ulp(np.array([0.5, 2.0]))
    np.testing.assert_array_equal(known.units[[0, 2]], np.hypot([0.1, 0.01], places))
    assert (known.stored, filled(["0.5"], (1,), "x", stored="float16", computed=FORMATS["float16"]).units[0]) == ("float16", 0.1)
