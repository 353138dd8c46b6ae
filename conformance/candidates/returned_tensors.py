"""The tensors in the value that a module returns: in any container or object, each with the Python source that selects it."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn

_LEAVES = (str, bytes, type, ModuleType, nn.Module)


def is_dense(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has one stored value for each element: it is not sparse, nested or on the device `meta`."""
    return tensor.layout is torch.strided and not tensor.is_nested and not tensor.is_meta


def selected(value: Any, selector: str = "", seen: dict[int, Any] | None = None) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the dense floating-point tensors in a value at any depth, each with the Python source that selects it.

    Parts are those of mappings, sequences and sets, and the attributes of other objects. An iterator is not consumed, so that it
    has no parts.

    Args:
        value: what a module returns.
        selector: source that selects the value itself.
        seen: the containers and objects that were entered, by id, since one may contain itself.

    Example:
        >>> [selector for selector, _ in selected({"states": [torch.zeros(1), 3], "pooled": torch.zeros(2)})]
        ['["states"][0]', '["pooled"]']
    """
    seen = {} if seen is None else seen
    if isinstance(value, np.ndarray) and value.dtype.kind == "f":
        value = torch.from_numpy(value)
    if isinstance(value, torch.Tensor):
        if is_dense(value) and value.is_floating_point():
            yield selector, value
    elif id(value) not in seen:
        seen[id(value)] = value
        for part, inner in _parts(value):
            yield from selected(inner, selector + part, seen)


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parts of a container or an object, each with the Python source that selects it."""
    if isinstance(value, _LEAVES):
        return
    if isinstance(value, Mapping):
        yield from ((f"[{_written(key)}]", part) for key, part in value.items() if type(key) in (int, str))
    elif isinstance(value, Sequence):
        yield from ((f"[{i}]", part) for i, part in enumerate(value))
    elif isinstance(value, Collection):
        yield from (("", part) for part in value)
    else:
        yield from ((f".{name}", part) for name, part in _attributes(value).items())


def _attributes(value: Any) -> Mapping[str, Any]:
    """Return the attributes of an object, those in slots included."""
    slots = (name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ()) if isinstance(name, str))
    return {name: getattr(value, name) for name in slots if hasattr(value, name)} | getattr(value, "__dict__", {})


def _written(key: int | str) -> str:
    """Return a key as Python source, in double quotes where it has none of its own."""
    is_plain = isinstance(key, str) and key.isprintable() and not set(key) & set('"\\')
    return f'"{key}"' if is_plain else repr(key)
