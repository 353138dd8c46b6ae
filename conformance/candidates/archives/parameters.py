"""Which of the checkpoint's parameters a program's tensors are: by name where they have Hugging Face's, else by value."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from conformance.candidates.archives.graph import Constant
from conformance.model.activations import parameter_shapes, table
from conformance.model.architecture import Architecture
from conformance.model.checkpoint import Checkpoint
from conformance.model.stored import COPIES, canonical_name
from conformance.numerics.formats import Array, Format

HEAD = 16  # numbers that are compared before all are

Names = tuple[str, ...]
"""One parameter, or several side by side along their first axis (the query's, the key's and the value's)."""


def recognised(constants: Mapping[str, Constant], checkpoint: Checkpoint, storage: Format) -> dict[str, Names]:
    """The tensors that are parameters of the checkpoint, as they are or transposed, by their own value names.

    A tensor without such a name whose values are those of several parameters (all ones, say) is none of them.
    """
    shapes = parameter_shapes(checkpoint.architecture)
    found: dict[str, Names] = {value: (name,) for value, c in constants.items() if (name := _by_name(c, shapes))}
    nameless = {value: c for value, c in constants.items() if value not in found}
    if nameless:
        known = _Known(checkpoint, storage)
        found |= {value: names for value, c in nameless.items() if (names := known.find(c))}
    return found


def _by_name(constant: Constant, shapes: Mapping[str, tuple[int, ...]]) -> str | None:
    """The longest end of its name that is a parameter's, where the shape is as well."""
    parts = constant.name.split(".")
    for start in range(len(parts)):
        name = canonical_name(".".join(parts[start:]))
        name = name if name in shapes else COPIES.get(name, name)
        if name in shapes:
            return name if constant.shape in (shapes[name], shapes[name][::-1]) else None
    return None


def reason_against(constants: Iterable[Constant], a: Architecture, dtype: str) -> str | None:
    """Why a program that holds these tensors cannot be of that network, or in that format."""
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
    """The checkpoint's parameters, and those of a layer side by side, by their shapes and first values."""

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
        """What it is, where that is one thing."""
        value = constant.load()
        alike = self._found.get(_key(value), []) if value.size and value.ndim else []
        found = {names for names, turned in alike if np.array_equal(value.T if turned else value, self._rounded(names))}
        return found.pop() if len(found) == 1 else None


def _key(value: Array) -> tuple[tuple[int, ...], bytes]:
    return value.shape, np.ascontiguousarray(value[(0,) * (value.ndim - 1)][:HEAD]).tobytes()


def _together(checkpoint: Checkpoint) -> Iterator[Names]:
    """Each parameter, and the query's, key's and value's of a layer."""
    yield from ((name,) for name in parameter_shapes(checkpoint.architecture))
    for row in table(checkpoint.architecture).values():
        if row.name.endswith("attention.self.query"):
            for name in row.parameters.values():
                yield tuple(name.replace(".query.", f".{part}.") for part in ("query", "key", "value"))
