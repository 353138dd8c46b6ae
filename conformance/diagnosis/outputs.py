"""Reading the outputs of a closed system: which numbers there are, of which outputs, for which inputs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from conformance.diagnosis.closed import EMBEDDING, Output, last_hidden
from conformance.diagnosis.printed import Known, PrintedNumber, depth, filled
from conformance.diagnosis.tables import tables
from conformance.errors import UsageError
from conformance.files import OUTPUTS, open_safetensors, read_npz, read_numbers, read_text, reading
from conformance.model.activation import Activation
from conformance.model.activations import table
from conformance.model.architecture import Architecture
from conformance.model.batch import Batch

INPUTS = tuple(f.name for f in fields(Batch))
_AXES = {"batch": "rows", "position": "positions", "feature": "features", "head": "heads", "query": "queries", "key": "keys"}
_ALIASES = {
    "token_embeddings": "last_hidden_state",
    "sentence_embedding": EMBEDDING,
    "embeddings": EMBEDDING,
    "pooler_output": "pooler.activation",
    "prediction_logits": "cls.predictions.decoder",
    "seq_relationship_logits": "cls.seq_relationship",
}
_LOGITS = ("classifier", "qa_outputs", "cls.predictions.decoder", "cls.seq_relationship")


@dataclass(frozen=True)
class OutputTable:
    """One output as it was given.

    Attributes:
        values: an array, which is exact; or nested lists of numbers (text keeps the digits that were printed), None or `"..."`.
        parts: for a part of a table, which `rows`, `positions`, `features` (`heads`, `queries`, `keys`) its axes list.
        digits: decimals of every number, in place of those that are seen.
    """

    values: Any
    parts: Mapping[str, Sequence[int]] = field(default_factory=dict)
    digits: int | None = None


@dataclass(frozen=True)
class Given:
    """What a file holds: inputs (arrays by name, or texts), and outputs by name; an empty name where the file has none."""

    tables: Mapping[str, OutputTable]
    inputs: Mapping[str, Any] = field(default_factory=dict)
    texts: tuple[str, ...] = ()


def read(file: Path) -> Given:
    """From `.json`, `.npz`, `.safetensors`, or else text as PyTorch and NumPy print it.

    Raises:
        UsageError: the file cannot be read, or holds no outputs.
    """
    readers = {".json": _json, ".npz": _arrays, ".safetensors": _arrays}
    with reading(file, "outputs", UsageError):
        found = readers.get(file.suffix, _text)(file)
    if not found.tables:
        raise UsageError(
            f"{file} holds no outputs, only {', '.join(found.inputs) or 'texts'}; expected last_hidden_state, pooler_output, "
            "embedding, logits or the name of an activation"
        )
    return found


def _text(file: Path) -> Given:
    found: dict[str, OutputTable] = {}
    for name, tree in tables(read_text(file), str(file)):
        if name in found:
            raise UsageError(f"{file} has two tables {f'called {name}' if name else 'without a name'}; write NAME = before each")
        found[name] = OutputTable(tree)
    return Given(found)


def _json(file: Path) -> Given:
    found = read_numbers(file, PrintedNumber)
    if not isinstance(found, dict):
        raise UsageError(f"{file} holds a {type(found).__name__}, expected an object: inputs and outputs by name")
    texts = found.pop("text", ())
    texts = (texts,) if isinstance(texts, str) else texts
    if not isinstance(texts, list | tuple) or not all(type(t) is str for t in texts):
        raise UsageError(f"{file}: text is {texts!r:.100}, expected a text or a list of them")
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
    known = {"values", "digits", *_AXES.values()}
    if "values" not in part or set(part) - known:
        raise UsageError(
            f"{name} has {', '.join(part)}; expected values and, where needed, {', '.join(sorted(known - {'values'}))}"
        )
    parts = {axis: _integers(part[axis], f"{name}/{axis}") for axis in _AXES.values() if axis in part}
    digits = None if "digits" not in part else _integers(part["digits"], f"{name}/digits")
    return OutputTable(part["values"], parts, digits)


def _arrays(file: Path) -> Given:
    """Keys are names of inputs and outputs; `NAME/positions` and the like belong to a part of a table."""
    found = read_npz(file) if file.suffix == ".npz" else _tensors(file)
    inputs = {name: found.pop(name) for name in INPUTS if name in found}
    outputs = {}
    for name, array in found.items():
        base, _, axis = name.partition("/")
        if axis and (base not in found or axis not in (*_AXES.values(), "digits")):
            raise UsageError(f"{file} has {name}; expected NAME/ and one of {', '.join(_AXES.values())}, beside NAME")
        if not axis:
            parts = {a: found[f"{name}/{a}"].reshape(-1).tolist() for a in _AXES.values() if f"{name}/{a}" in found}
            digits = int(found[f"{name}/digits"]) if f"{name}/digits" in found else None
            if array.dtype.kind not in "biuf":
                raise UsageError(f"{file}: {name} is of {array.dtype}, expected numbers")
            outputs[name] = OutputTable(array, parts, digits)
    return Given(outputs, inputs)


def _tensors(file: Path) -> dict[str, npt.NDArray[Any]]:
    """Through torch: NumPy has no bfloat16."""
    found = {}
    with open_safetensors(file, "pt", OUTPUTS) as reader:
        for key in reader.keys():  # noqa: SIM118 -- no mapping
            tensor = reader.get_tensor(key)
            found[key] = (tensor.float() if tensor.is_floating_point() and tensor.itemsize < 4 else tensor).numpy()
    return found


def resolved(given: Mapping[str, OutputTable], architecture: Architecture, batch: Batch) -> tuple[Output, ...]:
    """Each output under its activation's name, spread over that one's shape.

    Raises:
        UsageError: no such output; two names for one; a shape that does not fit; nothing known at all.
    """
    rows = table(architecture)
    found: dict[str, Output] = {}
    for name, part in given.items():
        target = _target(name or _guessed(part, batch), rows, architecture)
        if target in found:
            raise UsageError(f"{name} is given twice, under two names")
        row = (
            Activation(EMBEDDING, "", (), ("batch", "feature"), architecture.hidden_size, "")
            if target == EMBEDDING
            else rows[target]
        )
        found[target] = Output(target, _spread(part, row, batch, architecture.num_attention_heads, name or target))
    if not any((~np.isnan(o.known.values)).any() for o in found.values()):
        raise UsageError("no number of the outputs is known: there is nothing to judge")
    return tuple(found.values())


def _guessed(part: OutputTable, batch: Batch) -> str:
    """What a table without a name is: by its axes; of one text, two axes are a hidden state unless there is one row."""
    axes = depth(part.values)
    one_row = axes == 2 and len(part.values) == 1
    return "last_hidden_state" if axes == 3 or (axes == 2 and batch.size == 1 and batch.length > 1 and not one_row) else EMBEDDING


def _target(name: str, rows: Mapping[str, Activation], architecture: Architecture) -> str:
    plain = _ALIASES.get(name, name).removeprefix("bert.")
    if plain == EMBEDDING:
        return plain
    if plain == "last_hidden_state":
        return last_hidden(architecture.num_hidden_layers)
    if plain == "logits":
        heads = [n for n in _LOGITS if n in rows]
        if len(heads) != 1:
            raise UsageError(
                f"logits: the checkpoint has {', '.join(heads) or 'no head'}; {'say which' if heads else 'there are none'}"
            )
        return heads[0]
    if plain not in rows:
        known = [*rows, *_ALIASES, "last_hidden_state", "logits", EMBEDDING]
        close = get_close_matches(plain, known, 1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise UsageError(
            f"there is no output {name!r} of this checkpoint{hint} Known are last_hidden_state, pooler_output, embedding, logits "
            "and the names of activations (bert-conformance trace prints them)"
        )
    return plain


def _spread(part: OutputTable, row: Activation, batch: Batch, heads: int, name: str) -> Known:
    shape = row.shape(batch.size, batch.length, heads)
    values = part.values
    if len(shape) > 1 and shape[0] == 1 and not part.parts and depth(values) == len(shape) - 1:
        values = values[None] if isinstance(values, np.ndarray) else [values]  # one text, printed without its batch axis
    index = [_selected(part, axis, size, name) for axis, size in zip(row.axes, shape, strict=True)]
    unknown = set(part.parts) - {_AXES[axis] for axis in row.axes}
    if unknown:
        raise UsageError(f"{name} has no {', '.join(sorted(unknown))}; its axes are {', '.join(_AXES[a] for a in row.axes)}")
    known = filled(values, tuple(len(i) for i in index), name, part.digits)
    whole = Known(np.full(shape, np.nan), np.zeros(shape))
    if not shape:
        return known
    whole.values[np.ix_(*index)], whole.units[np.ix_(*index)] = known.values, known.units
    return whole


def _selected(part: OutputTable, axis: str, size: int, name: str) -> list[int]:
    chosen = part.parts.get(_AXES[axis])
    if chosen is None:
        return list(range(size))
    if not isinstance(chosen, list | tuple) or not all(isinstance(i, int) and 0 <= i < size for i in chosen):
        raise UsageError(f"{name}: {_AXES[axis]} is {chosen!r}, expected a list of numbers from 0 to {size - 1}")
    if len(set(chosen)) < len(chosen):
        raise UsageError(f"{name}: {_AXES[axis]} lists {next(i for i in chosen if list(chosen).count(i) > 1)} twice")
    return [int(i) for i in chosen]
