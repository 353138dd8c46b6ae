"""Location of parameters in a program's graph, and of activations by the parameters and the data flow between them.

A tensor is identified with a parameter by Hugging Face's name, else by value.

The result of a product with a parameter, of a norm or of a look-up is the activation to which the parameters belong. The other
operand of a product is the activation before it. Nothing is inferred from positions in the graph. An activation that is not
located is reported as not observed.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from conformance.candidates.archives.graph import MOVED, SAME, Constant, Graph, Node
from conformance.model.activation import Activation
from conformance.model.activations import parameter_shapes, table
from conformance.model.architecture import Architecture
from conformance.model.checkpoint import COPIES, Checkpoint, canonical_name
from conformance.numerics.formats import Array, Format

HEAD = 16  # number of leading elements compared before the whole tensor

Names = tuple[str, ...]
"""One parameter, or several concatenated along their first axis (those of query, key and value)."""
_Rows = Mapping[str, Activation]
_Places = Mapping[Names, str]


def recognised(constants: Mapping[str, Constant], checkpoint: Checkpoint, storage: Format) -> dict[str, Names]:
    """Return the checkpoint's parameters that each of the program's tensors holds, unchanged or transposed, by value name.

    A tensor without a recognized name whose values equal those of several parameters (all ones, for instance) is not identified.
    The checkpoint's parameters are rounded to the format `storage` before the comparison.
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


Locations = Mapping[Names, tuple[str, ...]]
"""Candidate values by activations (several if concatenated in one value); the first candidate of the right shape is used."""


@dataclass(frozen=True)
class _Made:
    """The result of an operation with a parameter, and its other operand."""

    result: str
    operand: str


def located(graph: Graph, parameters: Mapping[str, Names], architecture: Architecture) -> Locations:
    """Return the activations that are located in a graph, with the values that may hold them."""
    rows = table(architecture)
    made = dict(_with_parameters(graph, parameters, rows))
    places = {names: found.result for names, found in made.items()}
    for names, found in made.items():
        if len(names) == 1 and (before := _before(names[0], rows)):
            places.setdefault((before,), _last(graph.before(found.operand, SAME)))
    for more in (_probabilities, _functions, _dropouts):
        places |= dict(more(graph, places, rows))
    return {n: tuple(dict.fromkeys((*graph.before(v, ("reshape",)), *graph.after(v, MOVED)))) for n, v in places.items()}


def _with_parameters(graph: Graph, parameters: Mapping[str, Names], rows: _Rows) -> Iterator[tuple[Names, _Made]]:
    """Yield the results of look-ups, products and norms, located by their weights; a weight must be used exactly once."""
    values: defaultdict[Names, list[str]] = defaultdict(list)
    for value, held in parameters.items():
        values[held] += graph.after(value, (*MOVED, *SAME))
    for held, weights in values.items():
        for names in _activations(held, rows):
            kind = _kind(rows[names[0]])
            uses = {id(n): n for v in weights for n in graph.taken_by.get(v, ()) if n.kind == kind}
            made = [found for node in uses.values() if (found := _result(graph, node, set(weights)))]
            if len(made) == len(uses) == 1:
                yield names, made[0]


def _kind(row: Activation) -> str:
    """Return the kind of node that computes an activation with its weight."""
    if row.kind == "norm":
        return "norm"
    return "lookup" if row.kind.endswith("lookup") else "product"


def _activations(held: Names, rows: _Rows) -> Iterator[Names]:
    """Yield the activations whose weights are `held`; a tied weight belongs to two activations."""
    users = [[r.name for r in rows.values() if r.parameters.get("weight") == name] for name in held]
    return zip(*users, strict=False) if all(users) else iter(())


def _result(graph: Graph, node: Node, weights: set[str]) -> _Made | None:
    """Return the result of a node and its operand; for a product, the result after the bias has been added."""
    operands = [i for i in node.inputs if i not in weights and not _is_constant(graph, i)]
    if not operands:
        return None
    has_bias = any(i not in weights and _is_constant(graph, i) for i in node.inputs)
    if node.kind != "product" or has_bias:
        return _Made(node.outputs[0], operands[0])
    for value in graph.after(node.outputs[0], MOVED):
        for taker in graph.taken_by.get(value, ()):
            if taker.kind == "add" and any(_is_constant(graph, i) for i in taker.inputs):
                return _Made(taker.outputs[0], operands[0])
    return None


def _is_constant(graph: Graph, value: str) -> bool:
    return _last(graph.before(value, (*MOVED, *SAME))) in graph.constants


def _last(values: Iterator[str]) -> str:
    return list(values)[-1]


def _before(name: str, rows: _Rows) -> str | None:
    """Return the single parent of an activation, skipping copies, if the parent has no parameters of its own; else None."""
    parents = rows[name].parents
    while len(parents) == 1 and rows[parents[0]].kind == "copy":
        parents = rows[parents[0]].parents
    return parents[0] if len(parents) == 1 and not rows[parents[0]].parameters else None


def _probabilities(graph: Graph, places: _Places, rows: _Rows) -> Iterator[tuple[Names, str]]:
    """Yield the attention probabilities: the first operand of the product that computes the context, if it comes from a softmax."""
    for names, value in places.items():
        product = graph.made_by.get(_last(graph.before(value, (*MOVED, *SAME))))
        if names[0].endswith("self.context") and product is not None and product.kind == "product":
            softmax = graph.made_by.get(_last(graph.before(product.inputs[0], (*MOVED, *SAME))))
            if softmax is not None and softmax.kind == "softmax":
                yield (names[0].replace("context", "probs"),), _last(graph.before(product.inputs[0], (*SAME, "reshape")))


def _functions(graph: Graph, places: _Places, rows: _Rows) -> Iterator[tuple[Names, str]]:
    """Yield the results of tanh and log-softmax of located activations."""
    for row in rows.values():
        if row.kind in ("tanh", "log_softmax") and (row.name,) not in places and row.parents in places:
            for value in graph.after(places[row.parents], (*MOVED, *SAME)):
                yield from (((row.name,), n.outputs[0]) for n in graph.taken_by.get(value, ()) if n.kind == row.kind)


def _dropouts(graph: Graph, places: _Places, rows: _Rows) -> Iterator[tuple[Names, str]]:
    """Yield the results of dropouts of located activations."""
    for row in rows.values():
        if row.kind == "copy" and row.parents in places:
            takers = graph.taken_by.get(places[row.parents], ())
            yield from (((row.name,), n.outputs[0]) for n in takers if n.kind == "dropout")
