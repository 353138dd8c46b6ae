"""Identification of a program's tensors with the checkpoint's parameters: by Hugging Face's names, else by value."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from conformance.candidates.archives.graph import Constant
from conformance.model.activations import parameter_shapes, table
from conformance.model.architecture import Architecture
from conformance.model.checkpoint import Checkpoint
from conformance.model.stored import COPIES, canonical_name
from conformance.numerics.formats import Array, Format

HEAD = 16  # number of leading elements compared before the whole tensor

Names = tuple[str, ...]
"""One parameter, or several concatenated along their first axis (those of query, key and value)."""


def recognised(constants: Mapping[str, Constant], checkpoint: Checkpoint, storage: Format) -> dict[str, Names]:
    """Return the checkpoint's parameters that each of the program's tensors holds, unchanged or transposed, by value name.

    A tensor without a recognized name whose values equal those of several parameters (all ones, for instance) is not identified.

    Args:
        constants: the program's tensors by value name.
        checkpoint: the checkpoint.
        storage: the format to which the checkpoint's parameters are rounded before the comparison.
    """
    shapes = parameter_shapes(checkpoint.architecture)
    found: dict[str, Names] = {value: (name,) for value, c in constants.items() if (name := _by_name(c, shapes))}
    nameless = {value: c for value, c in constants.items() if value not in found}
    if nameless:
        known = _Known(checkpoint, storage)
        found |= {value: names for value, c in nameless.items() if (names := known.find(c))}
    return found


def _by_name(constant: Constant, shapes: Mapping[str, tuple[int, ...]]) -> str | None:
    """Return the parameter whose name is the longest suffix of a tensor's name, if its shape also matches; else None."""
    parts = constant.name.split(".")
    for start in range(len(parts)):
        name = canonical_name(".".join(parts[start:]))
        name = name if name in shapes else COPIES.get(name, name)
        if name in shapes:
            return name if constant.shape in (shapes[name], shapes[name][::-1]) else None
    return None


def reason_against(constants: Iterable[Constant], a: Architecture, dtype: str) -> str | None:
    """Return the reason why a program with these tensors cannot be this network in this dtype, or None."""
    matrices = [c for c in constants if len(c.shape) == 2]
    held, shapes = {c.shape for c in matrices}, parameter_shapes(a)
    tables = [next(iter(row.parameters.values())) for row in table(a).values() if row.kind.endswith("lookup")]
    for name in tables:
        if shapes[name] not in held and shapes[name][::-1] not in held:
            return f"it is of another checkpoint: it holds no tensor of the shape of {name}, {shapes[name]}"
    words = shapes[tables[0]]
    formats = {c.format for c in matrices if c.shape in (words, words[::-1])}
    return None if dtype in formats else f"it holds its parameters in {', '.join(sorted(formats))}"


class _Known:
    """An index of the checkpoint's parameters, alone and with query, key and value concatenated, by shape and first values."""

    def __init__(self, checkpoint: Checkpoint, storage: Format) -> None:
        self._checkpoint, self._storage = checkpoint, storage
        self._found: defaultdict[tuple[tuple[int, ...], bytes], list[tuple[Names, bool]]] = defaultdict(list)
        for names in _together(checkpoint):
            whole = self._rounded(names)
            self._found[_key(whole)].append((names, False))
            if whole.ndim == 2:
                self._found[_key(whole.T)].append((names, True))

    def _rounded(self, names: Names) -> Array:
        return self._storage.round(np.concatenate([self._checkpoint.weights[n] for n in names]))

    def find(self, constant: Constant) -> Names | None:
        """Return the parameters that a tensor holds, if they are unique; else None."""
        value = constant.load()
        alike = self._found.get(_key(value), []) if value.size and value.ndim else []
        found = {names for names, turned in alike if np.array_equal(value.T if turned else value, self._rounded(names))}
        return found.pop() if len(found) == 1 else None


def _key(value: Array) -> tuple[tuple[int, ...], bytes]:
    return value.shape, np.ascontiguousarray(value[(0,) * (value.ndim - 1)][:HEAD]).tobytes()


def _together(checkpoint: Checkpoint) -> Iterator[Names]:
    """Yield each parameter alone, and the parameters of query, key and value of each layer together."""
    yield from ((name,) for name in parameter_shapes(checkpoint.architecture))
    for row in table(checkpoint.architecture).values():
        if row.name.endswith("attention.self.query"):
            for name in row.parameters.values():
                yield tuple(name.replace(".query.", f".{part}.") for part in ("query", "key", "value"))
