"""Damaged files given to every reader result in a value or in one of the project's own errors.

`python -m conformance.benchmarks.readers` tries 20,000 files for each reader and measures time and memory."""

import io
import os
import random
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from conformance.benchmarks.readers.__main__ import limited
from conformance.benchmarks.readers.formats import FORMATS
from conformance.benchmarks.readers.good_files import Reader, readers
from conformance.benchmarks.readers.mutations import mutated
from conformance.candidates.archives.torchscript import opened
from conformance.errors import CandidateError, ConformanceError, UsageError
from conformance.model import files
from conformance.model.files import DOTS, JSON, PRINTED, SETTINGS, TEXT, read_bytes, read_npz, reading

NAMES = (
    "checkpoint: config.json", "checkpoint: model.safetensors",
    "sentences: modules.json", "sentences: 1_Pooling/config.json", "sentences: 2_Dense/config.json",
    "sentences: 3_Normalize/config.json", "sentences: 2_Dense/model.safetensors",
    "tokenizer: tokenizer.json", "tokenizer: vocab.txt",
    "outputs: JSON", "outputs: text", "outputs: npy", "outputs: npz", "outputs: safetensors",
    *(f"form: {form.source}" for form in FORMATS), "golden: manifest",
    "golden: arrays", "trace", "a candidate's reply", "known failures", "results", "batch: JSON", "batch: safetensors",
)  # fmt: skip


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Reader]:
    found = readers(tmp_path_factory.mktemp("good"))
    assert tuple(found) == NAMES
    return found


@pytest.mark.parametrize("name", NAMES)
def test_a_damaged_file_is_read_or_refused_with_an_error_of_the_project(
    name: str, known: Mapping[str, Reader], tmp_path_factory: pytest.TempPathFactory
) -> None:
    reader, folder = known[name], tmp_path_factory.mktemp("damaged")
    reader.write(folder)
    reader.read(folder)

    @settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
    @given(st.integers(0, 2**32))
    def damaged(seed: int) -> None:
        reader.write(folder, mutated(reader.files[reader.damaged], random.Random(seed)))
        with limited(), suppress(ConformanceError):
            reader.read(folder)

    damaged()


def test_an_exception_inside_a_reader_is_raised_as_the_requested_kind() -> None:
    for error in (ValueError("x" * 1000), RecursionError("deep"), MemoryError(), KeyError("k"), OSError(2, "No such file")):
        with pytest.raises(UsageError, match="f cannot be read as a thing: ") as found, reading("f", "a thing", UsageError):
            raise error
        assert len(str(found.value)) < 400
    with pytest.raises(KeyboardInterrupt), reading("f", "a thing", UsageError):
        raise KeyboardInterrupt


def test_the_size_declared_by_a_file_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (40_000, 40_000)})
    with zipfile.ZipFile(tmp_path / "large.npz", "w") as archive:
        archive.writestr("a.npy", header.getvalue() + b"\0" * 80)
    with pytest.raises(ValueError, match="says that it has 12800000000 bytes, and has 80"):
        read_npz(tmp_path / "large.npz")
    np.savez_compressed(tmp_path / "zeros.npz", a=np.zeros(100_000))
    assert read_npz(tmp_path / "zeros.npz")["a"].shape == (100_000,)
    monkeypatch.setattr(files, "OUTPUTS", 800_000)
    with pytest.raises(ValueError, match="unpacked it has 800128 bytes, and at most 800000 are read"):
        read_npz(tmp_path / "zeros.npz")
    (tmp_path / "file").write_bytes(b"12345")
    assert read_bytes(tmp_path / "file", 5) == b"12345"
    with pytest.raises(ValueError, match="has 5 bytes, and at most 4 are read"):
        read_bytes(tmp_path / "file", 4)


# The contents of the file, and words of the message.
BEYOND: Mapping[str, tuple[str, bytes, str]] = {
    "numbers in JSON": ("outputs: JSON", b'{"last_hidden_state": [' + b"0," * (PRINTED + 1) + b"0]}", "more than 524288 values"),
    "numbers in text": ("outputs: text", b"[" + b"0 " * (PRINTED + 1) + b"]", "more than 524288 values"),
    "numbers in lines": ("outputs: text", b"0 0\n" * PRINTED, "more than 524288 values"),
    "tables in text": ("outputs: text", b"[0] " * (2**16 + 1), "more than 65536 tables"),
    "bytes of text": ("outputs: text", b"#" * (TEXT + 1), "16777217 bytes"),
    "bytes of JSON": ("batch: JSON", b" " * (JSON + 1), "4194305 bytes"),
    "bytes of TOML": ("known failures", b"#" * (SETTINGS + 1), "262145 bytes"),
    "dots in TOML": ("known failures", b"a" + b".a" * (DOTS + 1) + b"=0", "more than 100 dots"),
    "lists in results": ("results", b"[]" * (2**22 + 1), "4194304 lists"),
}


@pytest.mark.parametrize("what", BEYOND)
def test_a_file_beyond_a_readers_limits_is_refused(what: str, known: Mapping[str, Reader], tmp_path: Path) -> None:
    name, content, text = BEYOND[what]
    (tmp_path / known[name].damaged).write_bytes(content)
    with pytest.raises(UsageError, match=text):
        known[name].read(tmp_path)


def test_a_file_of_arrays_beyond_its_limit_is_refused_with_the_setting_that_raises_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_file({"a": np.zeros(1000)}, tmp_path / "a.safetensors")
    size = (tmp_path / "a.safetensors").stat().st_size
    with pytest.raises(ValueError, match=rf"at most 4000 are read; to read it set {files.LARGEST}={size} or more"):
        files.open_safetensors(tmp_path / "a.safetensors", limit=4000)
    monkeypatch.setenv(files.LARGEST, str(size))
    assert files.open_safetensors(tmp_path / "a.safetensors", limit=4000).get_tensor("a").shape == (1000,)
    monkeypatch.setenv(files.LARGEST, "16 GB")
    with pytest.raises(UsageError, match="expected a number of bytes"):
        files.open_safetensors(tmp_path / "a.safetensors", limit=4000)


def test_long_headers_pickled_objects_and_pipes_are_refused_before_they_are_read(tmp_path: Path) -> None:
    with (tmp_path / "a.safetensors").open("wb") as file:
        file.write((JSON + 1).to_bytes(8, "little"))
        file.truncate(2 * JSON)
    with pytest.raises(ValueError, match="its header has 4194305 bytes"):
        files.open_safetensors(tmp_path / "a.safetensors")
    np.savez(tmp_path / "objects.npz", a=np.array([{"a": 1}], dtype=object))
    with pytest.raises(ValueError, match="has objects of Python's"):
        read_npz(tmp_path / "objects.npz")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="not a regular file"):
        read_bytes(tmp_path / "pipe")


@pytest.mark.parametrize("whole", [False, True], ids=["state dict", "module"])
def test_a_file_of_torch_save_in_place_of_an_archive_is_said_to_have_no_program(whole: bool, tmp_path: Path) -> None:
    module = torch.nn.Linear(2, 2)
    torch.save(module if whole else module.state_dict(), tmp_path / "bert.pt")
    with pytest.raises(CandidateError, match=r"it has no program, like a state dict .* save one with torch\.jit\.save"):
        opened(tmp_path / "bert.pt", "cpu", ())
