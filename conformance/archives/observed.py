"""From the values of a program to activations."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from conformance.activations import Activation, table
from conformance.architecture import Architecture
from conformance.archives.locate import Locations

Value = Any  # a tensor or an array: what has a shape


def in_format(value: Value, dtype: str) -> Value:
    """A value of the interior in the format that was asked for: that the program computes it in another shows in its numbers."""
    if isinstance(value, torch.Tensor):
        return value.to(getattr(torch, dtype)) if value.is_floating_point() else value
    return value.astype(dtype) if value.dtype.kind == "f" else value


def activations(
    locations: Locations, values: Mapping[str, Value], architecture: Architecture, size: int, length: int
) -> Iterator[tuple[str, Value]]:
    """Every activation whose value is there and of the right shape; several that stand side by side, apart."""
    rows = table(architecture)
    for names, candidates in locations.items():
        shape = rows[names[0]].shape(size, length, architecture.num_attention_heads)
        wide = (*shape[:-1], shape[-1] * len(names)) if shape else ()
        for value in (values[c] for c in candidates if c in values):
            found = tuple(value.shape)
            if found == wide or (len(names) == 1 and _is_for_all_rows(rows[names[0]], found, shape)):
                yield from zip(names, _apart(value, len(names)), strict=True)
                break


def _is_for_all_rows(row: Activation, found: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Positions are the same for every row."""
    return row.kind in ("position_lookup", "sinusoids") and found in ((1, *shape[1:]), shape[1:])


def _apart(value: Value, count: int) -> list[Value]:
    if count == 1:
        return [value]
    width = value.shape[-1] // count
    return [value[..., i * width : (i + 1) * width] for i in range(count)]


def outputs_by_shape(
    values: Iterable[Value], known: Iterable[str], architecture: Architecture, size: int, length: int
) -> Iterator[tuple[str, Value]]:
    """Outputs that were not found otherwise and that no other activation has the shape of: hidden states, logits over tokens."""
    rows = table(architecture)
    names = [f"encoder.layer.{architecture.num_hidden_layers - 1}.output.LayerNorm"]
    names += ["cls.predictions.decoder"] if "masked_lm" in architecture.heads else []
    for name in names:
        if name not in known and name in rows:
            shape = rows[name].shape(size, length, architecture.num_attention_heads)
            alike = [v for v in values if tuple(v.shape) == shape]
            yield from ((name, value) for value in alike[:1] if len(alike) == 1)
