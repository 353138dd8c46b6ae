"""Reader for the outputs of a black box: the numbers in a file, the outputs they belong to, and the inputs.

Embeddings in servers' replies: OpenAI's format, which llama.cpp and TEI support too, and those of Ollama, TEI and llama.cpp.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy.typing as npt

from conformance.diagnosis.outputs import AXES
from conformance.diagnosis.tables import OutputTable, PrintedNumber, depth, tables
from conformance.errors import UsageError
from conformance.model.batch import Batch
from conformance.model.files import (
    OUTPUTS,
    open_safetensors,
    parsed_numbers,
    read_npy,
    read_npz,
    read_text,
    reading,
)

_ABOUT = frozenset(
    ("id", "object", "created", "model", "usage", "total_duration", "load_duration", "prompt_eval_count", "eval_count")
)
"""Keys of a reply that hold metadata."""


def outputs_of(reply: Any) -> dict[str, Any]:
    """Return the entries of a reply without its metadata; a list, or the `data` of OpenAI's format, under an empty name.

    Args:
        reply: a list of numbers, of vectors or of `{"index": 0, "embedding": …}`; or an object with such a list as `data`; or any
            other object, whose entries are returned.
    """
    if isinstance(reply, dict) and _is_indexed(reply.get("data")):
        reply = reply["data"]
    if _is_indexed(reply):
        return {"": _vectors([entry["embedding"] for entry in sorted(reply, key=lambda entry: int(entry.get("index", 0)))])}
    if isinstance(reply, list):
        return {"": _vectors(reply)}
    embeddings = {name: _vectors(reply[name]) for name in ("embedding", "embeddings") if isinstance(reply.get(name), list)}
    return {name: entry for name, entry in {**reply, **embeddings}.items() if name not in _ABOUT}


def _is_indexed(entries: Any) -> bool:
    return isinstance(entries, list) and bool(entries) and all(isinstance(e, dict) and "embedding" in e for e in entries)


def _vectors(tree: Any) -> Any:
    """Return vectors; token vectors of texts of different lengths are padded with `...`."""
    if depth(tree) != 3 or not all(isinstance(rows, list) for rows in tree):
        return tree
    longest = max(len(rows) for rows in tree)
    if longest == 1:  # llama.cpp with pooling: each embedding is a list of one vector
        return [rows[0] if rows else rows for rows in tree]
    return [rows if len(rows) == longest or "..." in rows else [*rows, "..."] for rows in tree]


INPUTS = tuple(f.name for f in fields(Batch))


@dataclass(frozen=True)
class Given:
    """The content of a file.

    Attributes:
        tables: the outputs by name; the name is empty if the file has none.
        inputs: input arrays by name.
        texts: input texts.
    """

    tables: Mapping[str, OutputTable]
    inputs: Mapping[str, Any] = field(default_factory=dict)
    texts: tuple[str, ...] = ()


STANDARD_INPUT = Path("-")


def name_of(path: Path) -> str:
    """Return the name by which messages call the source of outputs."""
    return "standard input" if path == STANDARD_INPUT else str(path)


def read(path: Path) -> Given:
    """Read a `.npy`, `.npz` or `.safetensors` file, or a text file with JSON or printed tables; `-` is text from standard input.

    Raises:
        UsageError: the file cannot be read, or contains no outputs.
    """
    readers = {".json": _json, ".npz": _arrays, ".safetensors": _arrays, ".npy": _array}
    with reading(name_of(path), "outputs", UsageError):
        given = _given_text(_standard_input(), name_of(path)) if path == STANDARD_INPUT else readers.get(path.suffix, _text)(path)
    if not given.tables:
        raise UsageError(
            f"{name_of(path)} holds no outputs, only {', '.join(given.inputs) or 'texts'}; expected last_hidden_state, "
            "pooler_output, embedding, logits or the name of an activation"
        )
    return given


def _standard_input() -> str:
    content = sys.stdin.buffer.read(OUTPUTS + 1)
    if len(content) > OUTPUTS:
        raise ValueError(f"it has more than {OUTPUTS} bytes; write them to a file")
    if not content.strip():
        raise ValueError("it is empty")
    return content.decode()


def _text(file: Path) -> Given:
    return _given_text(read_text(file), str(file))


def _given_text(text: str, source: str) -> Given:
    if text.lstrip().startswith(("{", "[")):
        try:
            return _given(parsed_numbers(text, PrintedNumber), source)
        except (ValueError, RecursionError):
            pass  # lists printed by Rust or NumPy, which are not JSON
    found: dict[str, OutputTable] = {}
    for name, table in tables(text, source):
        if name in found:
            raise UsageError(f"{source} has two tables {f'called {name}' if name else 'without a name'}; write NAME = before each")
        found[name] = table
    return Given(found)


def _json(file: Path) -> Given:
    return _given(parsed_numbers(read_text(file), PrintedNumber), str(file))


def _given(tree: Any, source: str) -> Given:
    """Return the content of a server's reply, or of an object with inputs and outputs by name."""
    if not isinstance(tree, dict | list):
        raise UsageError(f"{source} holds {tree!r:.40}, expected an object or a list: outputs by name, or a server's reply")
    found = outputs_of(tree)
    texts = found.pop("text", ())
    texts = (texts,) if isinstance(texts, str) else texts
    if not isinstance(texts, list | tuple) or not all(type(t) is str for t in texts):
        raise UsageError(f"{source}: text is {texts!r:.100}, expected a text or a list of them")
    inputs = {name: _integers(found.pop(name), name) for name in INPUTS if name in found}
    return Given({name: _table(name, part) for name, part in found.items()}, inputs, tuple(texts))


def _integers(tree: Any, name: str) -> Any:
    if isinstance(tree, list):
        return [_integers(part, name) for part in tree]
    try:
        return int(tree)
    except (TypeError, ValueError):
        raise UsageError(f"{name} has {tree!r:.100}, expected integers") from None


def _table(name: str, part: Any) -> OutputTable:
    if not isinstance(part, dict):
        return OutputTable(part)
    known = {"values", *AXES.values()}
    if "values" not in part or set(part) - known:
        raise UsageError(
            f"{name} has {', '.join(part)}; expected values and, where needed, {', '.join(sorted(known - {'values'}))}"
        )
    parts = {axis: _integers(part[axis], f"{name}/{axis}") for axis in AXES.values() if axis in part}
    return OutputTable(part["values"], parts)


def _arrays(file: Path) -> Given:
    """Return the arrays of a file; keys are names of inputs and outputs, and `NAME/positions` etc. select a part of a table."""
    found, formats = (read_npz(file), {}) if file.suffix == ".npz" else _tensors(file)
    inputs = {name: found.pop(name) for name in INPUTS if name in found}
    outputs = {}
    for name, array in found.items():
        base, _, axis = name.partition("/")
        if axis and (base not in found or axis not in AXES.values()):
            raise UsageError(f"{file} has {name}; expected NAME/ and one of {', '.join(AXES.values())}, beside NAME")
        if not axis:
            parts = {a: found[f"{name}/{a}"].reshape(-1).tolist() for a in AXES.values() if f"{name}/{a}" in found}
            outputs[name] = OutputTable(_numbers(array, f"{file}: {name}"), parts, stored=formats.get(name, ""))
    return Given(outputs, inputs)


def _tensors(file: Path) -> tuple[dict[str, npt.NDArray[Any]], dict[str, str]]:
    """Return the tensors and the names of their formats. They are read through torch, because NumPy has no bfloat16."""
    found, formats = {}, {}
    with open_safetensors(file, "pt") as reader:
        for key in reader.keys():  # noqa: SIM118 -- no mapping
            tensor = reader.get_tensor(key)
            formats[key] = str(tensor.dtype).removeprefix("torch.")
            found[key] = (tensor.float() if tensor.is_floating_point() and tensor.itemsize < 4 else tensor).numpy()
    return found, formats


def _array(file: Path) -> Given:
    return Given({"": OutputTable(_numbers(read_npy(file), str(file)))})


def _numbers(array: npt.NDArray[Any], name: str) -> npt.NDArray[Any]:
    if array.dtype.kind not in "biuf":
        raise UsageError(f"{name} is of {array.dtype}, expected numbers")
    return array
