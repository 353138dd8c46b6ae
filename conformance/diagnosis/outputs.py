"""The outputs of a black box: tables of numbers as they were given, and the activations that they belong to.

A number printed as 0.1234 is known to ± half a unit of its last digit, a uniform error of variance 10^-2d / 12, d = 4. Digits are
counted for each number: if trailing zeros were cut off (0.123 for 0.1230), the unit is too large, which loses some evidence and
raises no false alarm. A number that is stored in a narrower format than it was computed in is known to ± half a unit in the last
place of that format; if it was printed as well, the variances of the two roundings are added.
"""

import math
import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

import numpy as np

from conformance.diagnosis.black_box import Outputs, PrintedNumbers
from conformance.diagnosis.pooling import EMBEDDING
from conformance.diagnosis.tables import OutputTable, depth, described, is_ellipsis
from conformance.errors import UsageError
from conformance.model.activation import Activation
from conformance.model.activations import OUTPUTS_OF_TRANSFORMERS, last_hidden, table
from conformance.model.architecture import Architecture
from conformance.model.batch import Batch
from conformance.numerics.formats import FORMATS, Array, Format

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
_EXPONENT = 300  # largest exponent, within float64's range
_NUMBER = re.compile(r"[-+]?(?:\d+\.?(?P<decimals>\d*)|\.(?P<only>\d+))(?:[eE](?P<exponent>[-+]?\d+))?")
_LOGITS = ("classifier", "qa_outputs", "cls.predictions.decoder", "cls.seq_relationship")


def resolved(
    given: Mapping[str, OutputTable],
    architecture: Architecture,
    batch: Batch,
    computed: Format = FORMATS["float32"],
    dimensions: int | None = None,
) -> Outputs:
    """Return each output under its activation's name, with its numbers placed in an array of the activation's shape.

    `computed` is the format in which the numbers were computed; those stored in a narrower format have that format's rounding.
    Embeddings have `dimensions` features if that is given, else all of the network's.

    Raises:
        UsageError: an output does not exist, has two names, or does not fit its shape; or no number is known.
    """
    rows = table(architecture)
    found: dict[str, PrintedNumbers] = {}
    for name, part in given.items():
        is_named = name and not (len(given) == 1 and _is_variable(name, rows))
        called = name if is_named else _guessed(part, batch)
        target = _target(called, rows, architecture)
        if target in found:
            raise UsageError(f"{name} is given twice, under two names")
        if target == EMBEDDING:
            width, whole = dimensions or architecture.hidden_size, architecture.hidden_size
            if not 0 < width <= whole:
                raise UsageError(f"embeddings of {width} dimensions are declared, expected 1 to {whole}, as the network has")
            row = Activation(EMBEDDING, "", (), ("batch", "feature"), width, "")
        else:
            row = rows[target]
        found[target] = _spread(part, row, batch, architecture.num_attention_heads, called, computed)
    if all(np.isnan(numbers.values).all() for numbers in found.values()):
        raise UsageError("no number of the outputs is known: there is nothing to judge")
    return found


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


def _spread(part: OutputTable, row: Activation, batch: Batch, heads: int, name: str, computed: Format) -> PrintedNumbers:
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
        known = filled(values, expected, name, stored=part.stored, computed=computed)
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
    whole = PrintedNumbers(np.full(shape, np.nan), np.zeros(shape), known.stored)
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


def unit(text: str) -> float:
    """Return the unit of the last printed digit, 10^(exponent − decimals).

    Raises:
        ValueError: the text is not a number, or its exponent is out of range.
    """
    found = _NUMBER.fullmatch(text.strip())
    if found is None:
        raise ValueError(text)
    decimals = len(found["decimals"] or found["only"] or "")
    exponent = int(found["exponent"] or 0) - decimals
    if not -_EXPONENT <= exponent <= _EXPONENT:
        raise ValueError(text)
    return float(10.0**exponent)


def filled(
    tree: Any,
    shape: tuple[int, ...],
    name: str,
    *,
    stored: str = "",
    computed: Format = FORMATS["float32"],
) -> PrintedNumbers:
    """Return the numbers of a tree of lists, numbers as text, nulls and ellipses, placed in an array of shape `shape`.

    Args:
        tree: nested lists; null stands for one unknown element or part, an ellipsis for any number of them; or an array.
        shape: shape of the whole output.
        name: name of the output, for errors.
        stored: name of the format in which the numbers were stored, whose rounding is included if it is narrower than `computed`;
            if empty, that of an array's dtype.
        computed: the format in which the numbers were computed.

    Raises:
        UsageError: a list has the wrong length, or an entry is not a number; the message states its index.
    """
    if isinstance(tree, np.ndarray):
        values, units, stored = _of_array(tree, shape, name), np.zeros(shape), stored or tree.dtype.name
    else:
        values, units = np.full(shape, math.nan), np.zeros(shape)
        for index, text in _leaves(tree, shape, name, ()):
            values[index], units[index] = _read(text, name, index)
    narrow = FORMATS.get(stored)
    if narrow is None or narrow.unit_roundoff <= computed.unit_roundoff:
        return PrintedNumbers(values, units)
    return PrintedNumbers(values, np.hypot(units, narrow.ulp(np.nan_to_num(values))), narrow.name)


def _of_array(array: np.ndarray, shape: tuple[int, ...], name: str) -> Array:
    """Return an array in float64; raise `UsageError` if its shape is another one or a number is not finite."""
    if array.shape != shape:
        raise UsageError(f"{name} is of shape {array.shape}, expected {shape}")
    bad = np.argwhere(~np.isfinite(array))
    if len(bad):
        raise UsageError(
            f"{name}{[int(i) for i in bad[0]]} is {array[tuple(bad[0])]}: not a finite number, and no mistake explains it"
        )
    return np.asarray(array, np.float64)


def _read(text: Any, name: str, index: tuple[int, ...]) -> tuple[float, float]:
    if isinstance(text, bool) or not isinstance(text, str | int | float):
        raise UsageError(f"{_place(name, index)} is {text!r}, expected a number, null or '...'")
    rendered = str(text)
    try:
        return float(rendered), unit(rendered)
    except ValueError:
        why = (
            "it is not finite, and no mistake explains that"
            if rendered.lower().strip("+-") in ("nan", "inf", "infinity")
            else "no number"
        )
        raise UsageError(f"{_place(name, index)} is {rendered!r}: {why}; expected a number, null or '...'") from None


def _place(name: str, index: tuple[int, ...]) -> str:
    return f"{name}{list(index)}" if index else name


def _leaves(tree: Any, shape: tuple[int, ...], name: str, index: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], Any]]:
    """Yield every number with its index."""
    if tree is None or is_ellipsis(tree):
        return
    if not shape:
        if isinstance(tree, list | tuple):
            raise UsageError(f"{_place(name, index)} is a list, expected a number: it has more axes than the output")
        yield index, tree
        return
    if not isinstance(tree, list | tuple):
        raise UsageError(f"{_place(name, index)} is {tree!r}, expected a list of {shape[0]}: it has fewer axes than the output")
    size = shape[0]
    gaps = [i for i, part in enumerate(tree) if is_ellipsis(part)]
    if len(gaps) > 1:
        raise UsageError(f"{_place(name, index)} has {len(gaps)} ellipses, expected at most one")
    count = len(tree) - len(gaps)
    if count > size or (count < size and not gaps):
        raise UsageError(
            f"{_place(name, index)} has {count} entries, expected {size}"
            + ("" if gaps or count > size else " (write '...' or null for those that are not known)")
        )
    for i, part in enumerate(tree):
        if i not in gaps:
            place = i if not gaps or i < gaps[0] else size - len(tree) + i
            yield from _leaves(part, shape[1:], name, (*index, place))
