"""A module's tensors, grouped by pattern, and the parameters that each may hold, one, two or three of one shape.

There is one tensor for each layer, or for each head in it, one for all layers, or one outside the layers.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from math import prod

import numpy as np

from conformance.candidates.layouts import HEAD, LAYOUTS, Layout, Shape, is_layered, plain
from conformance.model.activations import parameter_shapes
from conformance.model.architecture import Architecture
from conformance.numerics.formats import Array


@dataclass(frozen=True)
class Form:
    """A layout of `parts` parameters whose names are not yet known.

    Attributes:
        text: Python source of the layout, with `{}` for the names.
        parts: number of parameters.
    """

    text: str
    parts: int = 1

    @cached_property
    def _layout(self) -> Layout:
        return plain(eval(self.text.format(", ".join(map(repr, "qkv"[: self.parts]))), dict(LAYOUTS)))

    def across(self) -> "Form":
        """Return the form of a tensor that stacks this form over all layers."""
        return Form(f"stacked({self.text})", self.parts)

    def pieces(self, value: Array, shape: Shape, a: Architecture) -> list[Array] | None:
        """Return the parameters, of shape `shape`, unpacked from the tensor of one layer; None if its shape does not match."""
        if len(shape) < 2 and _OF_MATRICES.search(self.text):
            return None
        return self._layout.unpack(value, [shape] * self.parts, a) if self._packed(shape, a) == value.shape else None

    @cache  # noqa: B019  # forms are constants
    def _packed(self, shape: Shape, a: Architecture) -> Shape | None:
        """Return the shape of a tensor that holds parameters of shape `shape`; None if an axis cannot be split into heads."""
        try:
            return self._layout.pack([np.empty(shape, np.int8)] * self.parts, a).shape
        except ValueError:
            return None


_OF_MATRICES = re.compile(r"transposed|permuted|per_head\({}, axis=1\)")  # for vectors, these forms equal simpler ones
ALONE = (
    Form("{}"),
    Form("transposed({})"),
    Form("per_head({})"),
    Form("per_head({}, axis=1)"),
    Form("per_head(transposed({}))"),
    Form("per_head(transposed({}), axis=1)"),
    Form("permuted(per_head({}), axes=[0, 2, 1])"),
    Form("permuted(per_head({}, axis=1), axes=[1, 0, 2])"),
)
_OF_SEVERAL = (
    "fused({})",
    "transposed(fused({}))",
    "interleaved({})",
    "transposed(interleaved({}))",
    "per_head(interleaved({}))",
    "permuted(per_head(interleaved({})), axes=[0, 2, 1])",
    "stacked({})",
    "per_head(stacked({}), axis=1)",
    "permuted(stacked({}), axes=[0, 2, 1])",
    "permuted(per_head(stacked({}), axis=1), axes=[0, 1, 3, 2])",
)
FORMS = (*ALONE, *(Form(text, parts) for parts in (2, 3) for text in _OF_SEVERAL))


NUMBER = re.compile(r"(?<!\d)\d+(?![^.])")  # at the end of a part of a dotted name, as in `blocks.0` and `blocks.layer_0`


@dataclass(frozen=True, eq=False)
class Tensor:
    """The tensors of one pattern.

    Attributes:
        name: name in the state dict, with `{layer}` if there is one tensor for each layer.
        values: float64 values, one array per layer, or a single one.
        across: whether one tensor of the state dict holds every layer.
    """

    name: str
    values: Sequence[Array]
    across: bool = False

    @property
    def layered(self) -> bool:
        """Whether there is one array for each layer."""
        return self.across or is_layered(self.name)

    @property
    def owner(self) -> str:
        """The path of the module that holds the tensor."""
        return self.name.rpartition(".")[0]


@dataclass(frozen=True, eq=False)
class ParameterSource:
    """A possible source of a parameter: a piece of a tensor in a form.

    Attributes:
        tensor: the tensor.
        form: the layout of the tensor.
        piece: index of the piece.
        pieces: values of the piece, one array per layer, or a single one.
    """

    tensor: Tensor
    form: Form
    piece: int
    pieces: Sequence[Array]

    @property
    def key(self) -> tuple[str, int]:
        """The key that identifies the piece."""
        return self.tensor.name, self.piece

    def of(self, layer: int | None) -> Array:
        """Return the value in a layer; None stands for outside the layers."""
        return self.pieces[layer or 0]


@dataclass(frozen=True)
class Tensors:
    """The tensors of a module, and the possible sources of parameters among them."""

    all: tuple[Tensor, ...]
    architecture: Architecture

    @cached_property
    def _sources(self) -> dict[tuple[Shape, bool], list[ParameterSource]]:
        return {}

    def sources(self, shape: Shape, *, layered: bool) -> list[ParameterSource]:
        """Return all possible sources of a parameter of a shape, inside or outside the layers."""
        key = (shape, layered)
        if key not in self._sources:
            self._sources[key] = [s for t in self.all if t.layered == layered for s in _sources(t, shape, self.architecture)]
        return self._sources[key]


def _sources(tensor: Tensor, shape: Shape, a: Architecture) -> Iterator[ParameterSource]:
    for form in FORMS if tensor.layered else ALONE:  # only query, key and value are fused, which are inside the layers
        cut = [form.pieces(value, shape, a) for value in tensor.values]
        if cut[0] is not None:
            for piece in range(form.parts):
                yield ParameterSource(
                    tensor, form.across() if tensor.across else form, piece, [c[piece] for c in cut if c is not None]
                )


def layer_patterns(shapes: Mapping[str, Shape], layers: int, least: int = 0) -> dict[str, str]:
    """Return the pattern of each name: the first number that counts layers with the same tensors is replaced by `{layer}`.

    If one list holds several parts of each layer, the number is replaced by a linear expression such as `{2*layer+1}`. A name
    without such a number is its own pattern. In a network of one layer, every list has the same tensors in each layer; if there
    are lists of at least `least` elements, as many as the weights of a layer have, only the smallest of these counts layers.
    """
    members: defaultdict[tuple[int, str, int], dict[str, Shape]] = defaultdict(dict)
    for name, shape in shapes.items():
        for place, number in enumerate(NUMBER.finditer(name)):
            members[place, name[: number.start()], int(number[0])][name[number.end() :]] = shape
    alike: defaultdict[tuple[str, frozenset[tuple[str, Shape]]], list[int]] = defaultdict(list)
    for place, before, each in sorted(members):
        alike[before, frozenset(members[place, before, each].items())].append(each)
    patterns: dict[str, str] = {}
    only = _smallest_list(shapes, {before for before, _ in alike}, least) if layers == 1 else None
    for (before, tensors), numbers in alike.items():
        if only not in (None, before):
            continue
        # Patterns of a name's first number take precedence over those of its second.
        for each, counter in _counters(numbers, layers).items():
            patterns = {f"{before}{each}{after}": f"{before}{counter}{after}" for after, _ in tensors} | patterns
    return {name: patterns.get(name, name) for name in shapes}


def _smallest_list(shapes: Mapping[str, Shape], lists: Collection[str], least: int) -> str | None:
    """Return how the names in the smallest list of at least `least` elements start, the outermost of equal ones; None if none."""
    sizes = {start: sum(prod(shape) for name, shape in shapes.items() if _is_in(name, start)) for start in lists}
    return min((start for start in lists if sizes[start] >= least), key=lambda start: (sizes[start], start), default=None)


def _is_in(name: str, start: str) -> bool:
    return name.startswith(start) and NUMBER.match(name, len(start)) is not None


def patterns_in(shapes: Mapping[str, Shape], a: Architecture) -> dict[str, str]:
    """Return the pattern of each name in a module of this architecture, as `layer_patterns`."""
    layer = {name: shape for name, shape in parameter_shapes(a).items() if ".layer.0." in name and "distance" not in name}
    patterns = layer_patterns(shapes, a.num_hidden_layers, sum(prod(shape) for shape in layer.values() if len(shape) == 2))
    return _with_heads(patterns, shapes, a)


def _with_heads(patterns: Mapping[str, str], shapes: Mapping[str, Shape], a: Architecture) -> dict[str, str]:
    """Return the patterns with `{head}` in place of a number in a layer that counts heads.

    Each has tensors of a head's size, or of two or three times that size if query, key and value are in one tensor.
    """
    sizes = {a.head_size} | ({2 * a.head_size, 3 * a.head_size} - {a.hidden_size})
    counted: defaultdict[tuple[str, str], dict[int, set[Shape]]] = defaultdict(lambda: defaultdict(set))
    for name, pattern in patterns.items():
        for number in NUMBER.finditer(pattern):
            counted[pattern[: number.start()], pattern[number.end() :]][int(number[0])].add(shapes[name])
    of_heads = {
        place
        for place, found in counted.items()
        if is_layered(place[0])
        and sorted(found) == list(range(a.num_attention_heads))
        and len(alike := set.union(*found.values())) == 1
        and not sizes.isdisjoint(next(iter(alike)))
    }

    def replaced(pattern: str) -> str:
        numbers = ((pattern[: n.start()], pattern[n.end() :]) for n in NUMBER.finditer(pattern))
        return next((f"{before}{HEAD}{after}" for before, after in numbers if (before, after) in of_heads), pattern)

    return {name: replaced(pattern) for name, pattern in patterns.items()}


def _counters(numbers: Sequence[int], layers: int) -> dict[int, str]:
    """Return the placeholder of each number; empty unless the numbers are equally spaced, with the same count for each layer."""
    parts = len(numbers) // layers
    step = numbers[1] - numbers[0] if len(numbers) > 1 else 1
    if len(numbers) != parts * layers or list(numbers) != list(range(numbers[0], numbers[-1] + 1, step)):
        return {}
    return {each: _counted(parts * step, numbers[place % parts]) for place, each in enumerate(numbers)}


def _counted(step: int, first: int) -> str:
    """Return the placeholder for `step` times the layer plus `first`.

    Example:
        >>> _counted(1, 0), _counted(2, 1)
        ('{layer}', '{2*layer+1}')
    """
    return "{" + (f"{step}*" if step > 1 else "") + "layer" + (f"+{first}" if first else "") + "}"


def grouped(state: Mapping[str, Array], a: Architecture) -> Tensors:
    """Group the tensors of a state dict by pattern; one whose first axis has the number of layers may hold every layer."""
    patterns = patterns_in({n: t.shape for n, t in state.items()}, a)
    groups: defaultdict[str, list[Array]] = defaultdict(list)
    for name, value in state.items():
        groups[patterns[name]].append(value)
    made = []
    for name, values in groups.items():
        if HEAD in name:
            count = a.num_attention_heads
            values = [np.stack(values[i : i + count]) for i in range(0, len(values), count)]
        made.append(Tensor(name, values))
        if not is_layered(name) and values[0].ndim > 1 and len(values[0]) == a.num_hidden_layers:
            made.append(Tensor(name, list(values[0]), across=True))
    return Tensors(tuple(made), a)
