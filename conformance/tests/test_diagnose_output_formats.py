"""Outputs in users' formats: each example of `diagnose --help`, what libraries print, pipes, and narrower stored formats."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch
from safetensors.torch import save_file

from conformance.benchmarks.readers.formats import FORMATS, OutputFormat
from conformance.diagnosis import Diagnosis, diagnose
from conformance.diagnosis.outputs import resolved
from conformance.diagnosis.outputs_file import STANDARD_INPUT, read
from conformance.diagnosis.tables import tables
from conformance.errors import ConformanceError, UsageError
from conformance.model.architecture import Architecture
from conformance.model.batch import Batch
from conformance.report.diagnosis_report import document
from conformance.report.document import markdown
from conformance.tests.test_diagnose import BATCH, CHECKPOINT, _hidden, _model

WIDTH = 32
SIZES: dict[str, Any] = {"vocab_size": 9, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 1}
SIZES |= {"max_position_embeddings": 16}
HIDDEN = np.random.default_rng(0).standard_normal((1, 8, WIDTH)).astype(np.float32)


def _known(file: Path, width: int = WIDTH, batch: int = 1, length: int = 8) -> tuple[str, np.ndarray]:
    inputs = Batch(np.ones((batch, length), np.int64))
    ((name, numbers),) = resolved(read(file).tables, Architecture(hidden_size=width, **SIZES), inputs).items()
    return name, numbers.values


def _written(folder: Path, content: str, suffix: str = ".txt") -> Path:
    file = folder / f"out{suffix}"
    file.write_text(content)
    return file


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.source)
def test_every_example_of_the_help_is_read_as_its_embedding(
    form: OutputFormat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / f"out{form.suffix}"
    if form.is_code:
        monkeypatch.chdir(tmp_path)
        names: dict[str, Any] = {"numpy": np, "safetensors": safetensors, "x": np.array([[0.125, -0.5, 0.75, 0.25]], np.float32)}
        exec(form.example, names)
    else:
        file.write_text(form.example)
    name, values = _known(file, 4)
    assert name == "embedding"
    is_known = ~np.isnan(values)
    assert is_known.sum() >= 2
    assert is_known.all() == ("..." not in form.example and "null" not in form.example)
    assert values[is_known].tolist() == np.array([[0.125, -0.5, 0.75, 0.25]])[is_known].tolist()


def _torch(x: np.ndarray) -> str:
    torch.set_printoptions(threshold=10, sci_mode=False)
    try:
        return repr(torch.tensor(x, requires_grad=True) * 1)
    finally:
        torch.set_printoptions(profile="default")


def _numpy(x: np.ndarray, function: Any = repr) -> str:
    with np.printoptions(threshold=10):
        return str(function(x))


def _candle(x: np.ndarray) -> str:
    def edges(items: list[str], between: str) -> str:
        return between.join([*items[:3], "...", *items[-3:]])

    rows = edges(["[" + edges([f"{v:7.4f}" for v in row], ", ") + "]" for row in x[0]], "\n  ")
    return f"[[{rows}]]\nTensor[{list(x.shape)}, f32]"


PRINTED = {
    "torch": _torch(HIDDEN),
    "torch, a list of tensors": "[" + ",\n ".join(_torch(row) for row in HIDDEN[0]) + "]",
    "NumPy, repr": _numpy(HIDDEN),
    "NumPy, print": _numpy(HIDDEN, str),
    "a dictionary": f"{{'last_hidden_state': {_numpy(HIDDEN)}}}",
    "an output object": f"BaseModelOutput(last_hidden_state={_torch(HIDDEN)}, hidden_states=None)",
    "candle": _candle(HIDDEN),
    "Rust": json.dumps(HIDDEN[0].tolist()),
}


@pytest.mark.parametrize("what", PRINTED)
def test_a_hidden_state_printed_by_a_library_has_its_numbers_at_their_places(what: str, tmp_path: Path) -> None:
    name, values = _known(_written(tmp_path, PRINTED[what]))
    assert name == "encoder.layer.0.output.LayerNorm"
    is_known = ~np.isnan(values)
    assert is_known.all() if what == "Rust" else 36 <= is_known.sum() < HIDDEN.size
    assert np.abs(values - HIDDEN)[is_known].max() <= 0.5e-4


def test_token_vectors_of_two_lengths_are_those_of_the_first_positions(tmp_path: Path) -> None:
    reply = [{"index": 1, "embedding": HIDDEN[0, 5:].tolist()}, {"index": 0, "embedding": HIDDEN[0, :5].tolist()}]
    name, values = _known(_written(tmp_path, json.dumps(reply), ".json"), batch=2, length=5)
    assert name == "encoder.layer.0.output.LayerNorm"
    assert np.isnan(values[1, 3:]).all()
    assert np.array_equal(values[1, :3], HIDDEN[0, 5:])


REFUSED = {
    "another shape": (_candle(HIDDEN[:, :7]), r"printed with the shape \[1, 7, 32\], expected \[1, 8, 32\]"),
    "another length": (_numpy(HIDDEN[:, :5], str).replace("...", ""), "read as last_hidden_state: 1 × 5 × 6, expected: 1 row × 8"),
    "another width": ("[[0.1, 0.2], [0.1]]", r"read as last_hidden_state: 1 × 2 × \(1 to 2\), expected: 1 row × 8 positions × 32"),
    "a misspelt name": (f"last_hiden_state = {_torch(HIDDEN)}", "did you mean last_hidden_state"),
    "two variables": ("x = [0.5, ...]\ny = [0.5, ...]", "no output 'x' of this checkpoint"),
    "code alone": (">>> model(x)[0]\nloading", "line 1: '>>>' is no number"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_outputs_that_do_not_fit_are_refused_with_what_was_understood(what: str, tmp_path: Path) -> None:
    content, said = REFUSED[what]
    with pytest.raises(ConformanceError, match=said) as caught:
        _known(_written(tmp_path, content))
    assert isinstance(caught.value, UsageError)


# `diagnose -` reads text from standard input.

X = np.array([[0.125, -0.5, 0.75, 0.25]], np.float32)
CONTENTS = {
    ".txt": b"[[ 0.125 -0.5  0.75  0.25]]",
    ".json": json.dumps({"text": ["A lamp."], "embedding": X.tolist()}).encode(),
}


def _from_standard_input(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(content)))


@pytest.mark.parametrize("suffix", CONTENTS)
def test_standard_input_is_read_like_a_file(suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / f"out{suffix}"
    file.write_bytes(CONTENTS[suffix])
    _from_standard_input(monkeypatch, CONTENTS[suffix])
    piped, expected = read(STANDARD_INPUT), read(file)
    assert piped.tables.keys() == expected.tables.keys()
    for name, table in piped.tables.items():
        assert np.array_equal(np.array(table.values, float), np.array(expected.tables[name].values, float))
    assert piped.texts == expected.texts


def test_messages_call_it_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    _from_standard_input(monkeypatch, b" \n")
    with pytest.raises(UsageError, match="standard input cannot be read as outputs: it is empty"):
        read(STANDARD_INPUT)
    _from_standard_input(monkeypatch, b"no numbers")
    with pytest.raises(UsageError, match="standard input"):
        read(STANDARD_INPUT)


# `diagnose` of numbers that are stored in a narrower format than they were computed in.


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
