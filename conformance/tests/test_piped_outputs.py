"""`diagnose --outputs -` reads text from standard input."""

import io
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from conformance.diagnosis.outputs_file import STANDARD_INPUT, read
from conformance.errors import UsageError

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
