"""The outputs of a black box: tables of numbers as they were given, and the activations that they belong to."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any

import numpy as np

from conformance.diagnosis.black_box import EMBEDDING, Output
from conformance.diagnosis.printed import KnownNumbers, depth, described, filled
from conformance.errors import UsageError
from conformance.model.activation import Activation
from conformance.model.activations import OUTPUTS_OF_TRANSFORMERS, last_hidden, table
from conformance.model.architecture import Architecture
from conformance.model.batch import Batch
from conformance.numerics.formats import FORMATS, Format

AXES = {
    "batch": "rows",
    "position": "positions",
    "feature": "features",
    "head": "heads",
    "query": "queries",
    "key": "keys",
    "state": "states",
    "state key": "states",
}
_ALIASES = {
    "token_embeddings": "last_hidden_state",
    "sentence_embedding": EMBEDDING,
    "embeddings": EMBEDDING,
    **OUTPUTS_OF_TRANSFORMERS,
}
_LOGITS = ("classifier", "qa_outputs", "cls.predictions.decoder", "cls.seq_relationship")


@dataclass(frozen=True)
class OutputTable:
    """An output as it was given.

    Attributes:
        values: an array, which is exact in its format; or nested lists of numbers (text keeps the printed digits), None or `"..."`.
        parts: for a part of a table, the `rows`, `positions`, `features` (`heads`, `queries`, `keys`, `states`) that its axes list.
        digits: decimals of every number, which override the printed digits.
        shape: the shape printed with the table, or None.
        stored: name of the format in which the numbers were stored, if they are printed or the array's dtype is wider; else empty.
    """

    values: Any
    parts: Mapping[str, Sequence[int]] = field(default_factory=dict)
    digits: int | None = None
    shape: tuple[int, ...] | None = None
    stored: str = ""


def resolved(
    given: Mapping[str, OutputTable],
    architecture: Architecture,
    batch: Batch,
    computed: Format = FORMATS["float32"],
    dimensions: int | None = None,
) -> tuple[Output, ...]:
    """Return each output under its activation's name, with its numbers placed in an array of the activation's shape.

    `computed` is the format in which the numbers were computed; those stored in a narrower format have that format's rounding.
    Embeddings of `dimensions` features, or with nulls in place of all others, are shortened.

    Raises:
        UsageError: an output does not exist, has two names, or does not fit its shape; or no number is known.
    """
    rows = table(architecture)
    found: dict[str, Output] = {}
    for name, part in given.items():
        is_named = name and not (len(given) == 1 and _is_variable(name, rows))
        called = name if is_named else _guessed(part, batch)
        target = _target(called, rows, architecture)
        if target in found:
            raise UsageError(f"{name} is given twice, under two names")
        if target == EMBEDDING:
            part, width = _shortened(part, architecture.hidden_size, dimensions)
            row = Activation(EMBEDDING, "", (), ("batch", "feature"), width, "")
        else:
            row = rows[target]
        found[target] = Output(target, _spread(part, row, batch, architecture.num_attention_heads, called, computed))
    if not any((~np.isnan(o.known.values)).any() for o in found.values()):
        raise UsageError("no number of the outputs is known: there is nothing to judge")
    return tuple(found.values())


def _shortened(part: OutputTable, whole: int, dimensions: int | None) -> tuple[OutputTable, int]:
    """Return a table of embeddings without the nulls behind its first features, and the number of features.

    Args:
        part: the table.
        whole: number of features of the network.
        dimensions: number of features that are declared; None: those before the nulls, if each row has as many.

    Raises:
        UsageError: the number is not between 1 and `whole`.
    """
    rows = part.values if depth(part.values) > 1 else [part.values]  # one text may be given without its batch axis
    each = {_before_nulls(row) for row in rows if isinstance(row, list | tuple) and len(row) == whole} - {0}
    # Where a shape is printed, nulls stand for numbers that were not.
    before = each.pop() if len(each) == 1 and "features" not in part.parts and part.shape is None else whole
    width = dimensions or before
    if not 0 < width <= whole:
        raise UsageError(f"embeddings of {width} dimensions are declared, expected 1 to {whole}, the features of the network")
    if before != width or width == whole:
        return part, width
    cut = [row[:width] if isinstance(row, list | tuple) else row for row in rows]
    return replace(part, values=cut if depth(part.values) > 1 else cut[0]), width


def _before_nulls(row: Sequence[Any]) -> int:
    """Return the number of elements before the nulls at the end of a row."""
    return next((number for number in range(len(row), 0, -1) if row[number - 1] is not None), 0)


def features_of(part: OutputTable) -> int | None:
    """Return the number of features of the first row of a table; None if it has none."""
    row = part.values
    while isinstance(row, list | tuple | np.ndarray) and len(row) and isinstance(row[0], list | tuple | np.ndarray):
        row = row[0]
    return len(row) if isinstance(row, list | tuple | np.ndarray) else None


def _guessed(part: OutputTable, batch: Batch) -> str:
    """Return the output that an unnamed table is, by its axes; two axes for one text are a hidden state unless there is one row."""
    axes = depth(part.values)
    one_row = axes == 2 and len(part.values) == 1
    return "last_hidden_state" if axes == 3 or (axes == 2 and batch.size == 1 and batch.length > 1 and not one_row) else EMBEDDING


def _is_variable(name: str, rows: Mapping[str, Activation]) -> bool:
    """Return whether a name is that of a variable, as in `x = tensor(...)`, and not close to the name of an output."""
    return name.isidentifier() and not get_close_matches(name, _known(rows), 1)


def _known(rows: Mapping[str, Activation]) -> list[str]:
    return [*rows, *_ALIASES, "last_hidden_state", "logits", EMBEDDING]


def _target(name: str, rows: Mapping[str, Activation], architecture: Architecture) -> str:
    plain = _ALIASES.get(name, name).removeprefix("bert.")
    if plain == EMBEDDING:  # with dense layers the embedding is an activation; else its pooling may be unknown
        return "sentence_embedding" if architecture.dense else plain
    if plain == "last_hidden_state":
        return last_hidden(architecture)
    if plain == "logits":
        heads = [n for n in _LOGITS if n in rows]
        if len(heads) != 1:
            raise UsageError(
                f"logits: the checkpoint has {', '.join(heads) or 'no head'}; {'say which' if heads else 'there are none'}"
            )
        return heads[0]
    if plain not in rows:
        close = get_close_matches(plain, _known(rows), 1)
        hint = f"; did you mean {close[0]}?" if close else "."
        raise UsageError(
            f"there is no output {name!r} of this checkpoint{hint} Known are last_hidden_state, pooler_output, embedding, logits "
            "and the names of activations (bert-conformance trace prints them)"
        )
    return plain


def _spread(part: OutputTable, row: Activation, batch: Batch, heads: int, name: str, computed: Format) -> KnownNumbers:
    shape = row.shape(batch.size, batch.length, heads, batch.states_length)
    values = part.values
    if len(shape) > 1 and shape[0] == 1 and not part.parts and depth(values) == len(shape) - 1:
        values = values[None] if isinstance(values, np.ndarray) else [values]  # one text, printed without its batch axis
    index = [_selected(part, axis, size, name) for axis, size in zip(row.axes, shape, strict=True)]
    unknown = set(part.parts) - {AXES[axis] for axis in row.axes}
    if unknown:
        raise UsageError(f"{name} has no {', '.join(sorted(unknown))}; its axes are {', '.join(AXES[a] for a in row.axes)}")
    expected = tuple(len(i) for i in index)
    try:
        _require_shape(part.shape, expected, name)
        known = filled(values, expected, name, part.digits, stored=part.stored, computed=computed)
    except UsageError as error:
        axes = (
            " × ".join(
                f"{size} {AXES[axis].removesuffix('s' if size == 1 else '')}" for size, axis in zip(expected, row.axes, strict=True)
            )
            or "one number"
        )
        given = features_of(part) if row.name == EMBEDDING else None
        hint = f"; if the system shortens embeddings, say --dimensions {given}" if given and given < shape[-1] else ""
        raise UsageError(f"{error}; read as {name}: {described(values)}, expected: {axes}{hint}") from error
    whole = KnownNumbers(np.full(shape, np.nan), np.zeros(shape), known.stored)
    if not shape:
        return known
    whole.values[np.ix_(*index)], whole.units[np.ix_(*index)] = known.values, known.units
    return whole


def _require_shape(printed: tuple[int, ...] | None, expected: tuple[int, ...], name: str) -> None:
    """Raise `UsageError` if a shape was printed that differs from the expected one other than in axes of length 1."""
    if printed is not None and [n for n in printed if n != 1] != [n for n in expected if n != 1]:
        raise UsageError(f"{name} was printed with the shape {list(printed)}, expected {list(expected)}; are the inputs these?")


def _selected(part: OutputTable, axis: str, size: int, name: str) -> list[int]:
    chosen = part.parts.get(AXES[axis])
    if chosen is None:
        return list(range(size))
    if not isinstance(chosen, list | tuple) or not all(isinstance(i, int) and 0 <= i < size for i in chosen):
        raise UsageError(f"{name}: {AXES[axis]} is {chosen!r}, expected a list of numbers from 0 to {size - 1}")
    if len(set(chosen)) < len(chosen):
        raise UsageError(f"{name}: {AXES[axis]} lists {next(i for i in chosen if list(chosen).count(i) > 1)} twice")
    return [int(i) for i in chosen]
