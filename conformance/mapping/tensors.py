"""A module's tensors by pattern: those of each layer together, those that hold every layer, and those outside the layers."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from conformance.candidates.layouts import Shape, is_layered
from conformance.mapping.forms import ALONE, FORMS, Form
from conformance.model.architecture import Architecture
from conformance.numerics.formats import Array

_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")


@dataclass(frozen=True, eq=False)
class Tensor:
    """Tensors of one pattern.

    Attributes:
        name: in the state dict, with `{layer}` where there is one for each layer.
        values: float64, one a layer, or one.
        across: whether one tensor of the state dict holds every layer.
    """

    name: str
    values: Sequence[Array]
    across: bool = False

    @property
    def layered(self) -> bool:
        """Whether each layer has its own."""
        return self.across or is_layered(self.name)

    @property
    def owner(self) -> str:
        """The path of the module that holds it."""
        return self.name.rpartition(".")[0]


@dataclass(frozen=True, eq=False)
class Source:
    """What a parameter may be: a piece of a tensor in a form.

    Attributes:
        pieces: the values, one a layer, or one.
    """

    tensor: Tensor
    form: Form
    piece: int
    pieces: Sequence[Array]

    @property
    def key(self) -> tuple[str, int]:
        """By which it is known whether it is in use."""
        return self.tensor.name, self.piece

    def of(self, layer: int | None) -> Array:
        """Its value in a layer."""
        return self.pieces[layer or 0]


@dataclass(frozen=True)
class Tensors:
    """All tensors of a module."""

    all: tuple[Tensor, ...]
    architecture: Architecture

    @cached_property
    def _sources(self) -> dict[tuple[Shape, bool], list[Source]]:
        return {}

    def sources(self, shape: Shape, *, layered: bool) -> list[Source]:
        """Everything that may be a parameter of that shape."""
        key = (shape, layered)
        if key not in self._sources:
            self._sources[key] = [s for t in self.all if t.layered == layered for s in _sources(t, shape, self.architecture)]
        return self._sources[key]


def _sources(tensor: Tensor, shape: Shape, a: Architecture) -> Iterator[Source]:
    for form in FORMS if tensor.layered else ALONE:  # query, key and value lie together, nothing outside the layers does
        cut = [form.pieces(value, shape, a) for value in tensor.values]
        if cut[0] is not None:
            for piece in range(form.parts):
                yield Source(tensor, form.across() if tensor.across else form, piece, [c[piece] for c in cut if c is not None])


def layer_patterns(shapes: Mapping[str, Shape], layers: int) -> dict[str, str]:
    """The pattern of each name whose first number counts the layers, each of which has the same tensors; other names as they are.

    Where one list holds several parts of each layer, the number is a multiple of the layer and more: `{2*layer+1}`.
    """
    members: defaultdict[tuple[str, int], dict[str, Shape]] = defaultdict(dict)
    for name, shape in shapes.items():
        if number := _NUMBER.search(name):
            members[name[: number.start()], int(number[0])][name[number.end() :]] = shape
    alike: defaultdict[tuple[str, frozenset[tuple[str, Shape]]], list[int]] = defaultdict(list)
    for before, each in sorted(members):
        alike[before, frozenset(members[before, each].items())].append(each)
    patterns = {name: name for name in shapes}
    for (before, tensors), numbers in alike.items():
        for each, counter in _counters(numbers, layers).items():
            patterns |= {f"{before}{each}{after}": f"{before}{counter}{after}" for after, _ in tensors}
    return patterns


def _counters(numbers: Sequence[int], layers: int) -> dict[int, str]:
    """What stands for each number in a pattern, where equally many of them at equal distances belong to each layer."""
    parts = len(numbers) // layers
    step = numbers[1] - numbers[0] if len(numbers) > 1 else 1
    if len(numbers) != parts * layers or list(numbers) != list(range(numbers[0], numbers[-1] + 1, step)):
        return {}
    return {each: _counted(parts * step, numbers[place % parts]) for place, each in enumerate(numbers)}


def _counted(step: int, first: int) -> str:
    """The layer times `step`, from `first` on.

    Example:
        >>> _counted(1, 0), _counted(2, 1)
        ('{layer}', '{2*layer+1}')
    """
    return "{" + (f"{step}*" if step > 1 else "") + "layer" + (f"+{first}" if first else "") + "}"


def grouped(state: Mapping[str, Array], a: Architecture) -> Tensors:
    """The tensors of a state dict by pattern; one whose first axis is as long as there are layers may hold all layers."""
    patterns = layer_patterns({n: t.shape for n, t in state.items()}, a.num_hidden_layers)
    groups: defaultdict[str, list[Array]] = defaultdict(list)
    for name, value in state.items():
        groups[patterns[name]].append(value)
    made = []
    for name, values in groups.items():
        made.append(Tensor(name, values))
        if not is_layered(name) and values[0].ndim > 1 and len(values[0]) == a.num_hidden_layers:
            made.append(Tensor(name, list(values[0]), across=True))
    return Tensors(tuple(made), a)
