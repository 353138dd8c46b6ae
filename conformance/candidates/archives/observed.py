"""Conversion of a program's values to activations."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch

from conformance.candidates.archives.graph import MOVED, SAME
from conformance.candidates.archives.locate import Locations
from conformance.candidates.archives.program import Program
from conformance.candidates.archives.program_parameters import Names
from conformance.model.activation import Activation
from conformance.model.activations import last_hidden, table
from conformance.model.architecture import Architecture

Value = Any  # a tensor or an array


def in_format(value: Value, dtype: str) -> Value:
    """Return an interior value in the requested format; if the program computes it in another format, its errors reveal that."""
    if isinstance(value, torch.Tensor):
        return value.to(getattr(torch, dtype)) if value.is_floating_point() else value
    return value.astype(dtype) if value.dtype.kind == "f" else value


def activations(
    locations: Locations, values: Mapping[str, Value], architecture: Architecture, size: int, length: int
) -> Iterator[tuple[str, Value]]:
    """Yield every activation that has a value of the right shape; activations that are concatenated in one value are split."""
    rows, heads = table(architecture), architecture.num_attention_heads
    for names, candidates in locations.items():
        fitting = [values[c] for c in candidates if c in values and _is_of(names, values[c], rows, size, length, heads)]
        if fitting:
            yield from zip(names, _apart(fitting[0], len(names)), strict=True)


def _apart(value: Value, count: int) -> list[Value]:
    if count == 1:
        return [value]
    width = value.shape[-1] // count
    return [value[..., i * width : (i + 1) * width] for i in range(count)]


def settled(program: Program, locations: Locations, architecture: Architecture) -> Locations:
    """Return the locations with one value for each activation, determined by a run of the program.

    The run uses a batch size and a length that differ from each other, from the number of heads and from the hidden size, so that
    axes cannot be confused. If the program cannot be run at these sizes, `locations` is returned unchanged.
    """
    heads = architecture.num_attention_heads
    size, length = [n for n in (2, 3, 5, 7) if n not in (heads, architecture.hidden_size)][:2]
    ids = torch.ones((size, min(length, architecture.longest)), dtype=torch.int64)
    arrays = {"input_ids": torch.zeros_like(ids), "attention_mask": ids, "token_type_ids": torch.zeros_like(ids)}
    wanted = list(dict.fromkeys(value for candidates in locations.values() for value in candidates))
    try:
        values = program.watch([arrays[field].to(program.device) for field in program.fields], wanted)
    except Exception:  # a program for one size only may raise any exception
        return locations
    rows = table(architecture)
    return {
        names: found for names, candidates in locations.items() if (found := _fitting(names, candidates, values, rows, ids, heads))
    }


def _fitting(
    names: Names,
    candidates: Sequence[str],
    values: Mapping[str, Value],
    rows: Mapping[str, Activation],
    ids: torch.Tensor,
    heads: int,
) -> tuple[str, ...]:
    """Return the first value of the right shape, as a tuple; an empty tuple if there is none."""
    return next(((c,) for c in candidates if c in values and _is_of(names, values[c], rows, ids.shape[0], ids.shape[1], heads)), ())


def _is_of(names: Names, value: Value, rows: Mapping[str, Activation], size: int, length: int, heads: int) -> bool:
    """Return whether a value has the shape of these activations, concatenated along their last axis."""
    row = rows[names[0]]
    shape, found = row.shape(size, length, heads), tuple(value.shape)
    wide = (*shape[:-1], shape[-1] * len(names)) if shape else ()
    same_for_all_rows = row.is_same_for_all_rows and found in ((1, *shape[1:]), shape[1:])
    return found == wide or (len(names) == 1 and same_for_all_rows)


def output_labels(program: Program, locations: Locations, architecture: Architecture) -> dict[str, str]:
    """Return the activation of each output value that can be identified.

    An output is identified by its label, or because it is a located value of the graph up to reshapes, transposes and casts.
    """
    rows = table(architecture)
    known = {value: names[0] for names, candidates in locations.items() if len(names) == 1 for value in candidates}
    labels = {}
    for value in program.outputs:
        label = program.labels.get(value, "")
        on_the_way = program.graph.before(value, (*MOVED, *SAME))
        found = label if label in rows else next((known[v] for v in on_the_way if v in known), "")
        if found:
            labels[value] = found
    return labels


def outputs_by_shape(
    unknown: Sequence[Value], located: Collection[str], architecture: Architecture, size: int, length: int
) -> dict[str, Value]:
    """Return outputs identified by shape alone: the last hidden state, and logits over tokens, if they were not located."""
    rows = table(architecture)
    names = [last_hidden(architecture)]
    names += ["cls.predictions.decoder"] if "masked_lm" in architecture.heads else []
    found: dict[str, Value] = {}
    for name in names:
        if name not in located and name in rows:
            alike = [v for v in unknown if _is_of((name,), v, rows, size, length, architecture.num_attention_heads)]
            found |= {name: alike[0]} if len(alike) == 1 else {}
    return found
