"""`diagnose` and `similarity` of arrays that are stored in a narrower format than they were computed in."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from conformance import golden_of
from conformance.cli.similarity import _stored
from conformance.diagnosis import Diagnosis, diagnose, read
from conformance.numerics.formats import FORMATS
from conformance.report.diagnosis_document import document
from conformance.report.markdown import markdown
from conformance.tests.dense_modules import WIDTH, network
from conformance.tests.test_diagnose import BATCH, CHECKPOINT, _hidden, _model


def _npy(folder: Path, hidden: torch.Tensor) -> Path:
    np.save(folder / "out.npy", hidden.numpy())
    return folder / "out.npy"


def _npz(folder: Path, hidden: torch.Tensor) -> Path:
    np.savez(folder / "out.npz", last_hidden_state=hidden.numpy())
    return folder / "out.npz"


def _safetensors(folder: Path, hidden: torch.Tensor) -> Path:
    save_file({"last_hidden_state": hidden}, folder / "out.safetensors")
    return folder / "out.safetensors"


def _of_file(file: Path, **options: Any) -> Diagnosis:
    return diagnose(CHECKPOINT, BATCH, read(file).tables, **options)


@pytest.mark.parametrize(
    ("write", "dtype"), [(_npy, "float16"), (_npz, "float16"), (_safetensors, "float16"), (_safetensors, "bfloat16")]
)
def test_correct_outputs_that_are_stored_in_a_narrower_format_conform(
    write: Callable[[Path, torch.Tensor], Path], dtype: str, tmp_path: Path
) -> None:
    found = _of_file(write(tmp_path, _hidden(_model()).to(getattr(torch, dtype))))
    assert found.conforms
    assert found.stored == (dtype,)
    assert 0.5 < found.rms < 1.5  # most of the error is the rounding of the stored format
    assert f"stored in {dtype}; " in markdown(document(found))


def test_a_fault_is_named_from_numbers_in_float16() -> None:
    found = diagnose(CHECKPOINT, BATCH, {"last_hidden_state": _hidden(_model(hidden_act="relu")).half().numpy()})
    assert not found.conforms
    assert [f.name for f in found.explanations[0].faults] == ["activation-relu"]
    assert found.stored == ("float16",)


@pytest.mark.parametrize(("stored", "computed"), [("float32", "float32"), ("float16", "float16"), ("float16", "bfloat16")])
def test_numbers_in_a_format_that_is_not_narrower_are_exact(stored: str, computed: str, tmp_path: Path) -> None:
    found = _of_file(_npy(tmp_path, _hidden(_model(computed)).to(getattr(torch, stored))), dtype=computed)
    assert found.conforms
    assert (found.stored, found.digits) == ((), None)


def test_the_rounding_of_stored_embeddings_is_part_of_a_similarity(tmp_path: Path) -> None:
    golden = golden_of("given", network().checkpoint, {"given": BATCH})
    embeddings = np.random.default_rng(0).standard_normal((BATCH.size, WIDTH)).astype(np.float16)
    np.save(tmp_path / "out.npy", embeddings)
    _, variance = _stored(tmp_path / "out.npy", golden, FORMATS["float32"])
    np.testing.assert_array_equal(variance, FORMATS["float16"].ulp(embeddings.astype(np.float64)) ** 2 / 12.0)
    assert not _stored(tmp_path / "out.npy", golden, FORMATS["float16"])[1].any()
