"""Where a program's activations are: found by the parameters that they are made with, and by what flows between those.

What a product with a parameter, a norm or a look-up gives is the activation that its parameters belong to. What a product takes is
the activation before it. Nothing is guessed from positions. What is not found is not observed, and reported as such.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from conformance.candidates.archives.graph import MOVED, SAME, Graph, Node
from conformance.candidates.archives.parameters import Names
from conformance.model.activation import Activation
from conformance.model.activations import table
from conformance.model.architecture import Architecture

Locations = Mapping[Names, tuple[str, ...]]
"""Activations (several that stand side by side in one value), and the values that may be they: the first of the right shape."""

_Rows = Mapping[str, Activation]
_Places = Mapping[Names, str]


@dataclass(frozen=True)
class _Made:
    """What is made with a parameter: the result, and the operand."""

    result: str
    operand: str


def located(graph: Graph, parameters: Mapping[str, Names], architecture: Architecture) -> Locations:
    """The activations that are found."""
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
    """Look-ups, products and norms, each found by its weight, where that is used once."""
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
    """The kind of node that makes it with its weight."""
    if row.kind == "norm":
        return "norm"
    return "lookup" if row.kind.endswith("lookup") else "product"


def _activations(held: Names, rows: _Rows) -> Iterator[Names]:
    """Those that have these as their weights; a tied one belongs to two."""
    users = [[r.name for r in rows.values() if r.parameters.get("weight") == name] for name in held]
    return zip(*users, strict=False) if all(users) else iter(())


def _result(graph: Graph, node: Node, weights: set[str]) -> _Made | None:
    """What the node gives, once a product has its bias."""
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
    """The one activation that a step takes, copies left out, where that has no parameters of its own."""
    parents = rows[name].parents
    while len(parents) == 1 and rows[parents[0]].kind == "copy":
        parents = rows[parents[0]].parents
    return parents[0] if len(parents) == 1 and not rows[parents[0]].parameters else None


def _probabilities(graph: Graph, places: _Places, rows: _Rows) -> Iterator[tuple[Names, str]]:
    """What the product that gives the context takes first, as it takes it, if that comes of a softmax."""
    for names, value in places.items():
        product = graph.made_by.get(_last(graph.before(value, (*MOVED, *SAME))))
        if names[0].endswith("self.context") and product is not None and product.kind == "product":
            softmax = graph.made_by.get(_last(graph.before(product.inputs[0], (*MOVED, *SAME))))
            if softmax is not None and softmax.kind == "softmax":
                yield (names[0].replace("context", "probs"),), _last(graph.before(product.inputs[0], (*SAME, "reshape")))


def _functions(graph: Graph, places: _Places, rows: _Rows) -> Iterator[tuple[Names, str]]:
    """The results of tanh and log-softmax of activations that were found."""
    for row in rows.values():
        if row.kind in ("tanh", "log_softmax") and (row.name,) not in places and row.parents in places:
            for value in graph.after(places[row.parents], (*MOVED, *SAME)):
                yield from (((row.name,), n.outputs[0]) for n in graph.taken_by.get(value, ()) if n.kind == row.kind)


def _dropouts(graph: Graph, places: _Places, rows: _Rows) -> Iterator[tuple[Names, str]]:
    """The results of dropouts of activations that were found."""
    for row in rows.values():
        if row.kind == "copy" and row.parents in places:
            takers = graph.taken_by.get(places[row.parents], ())
            yield from (((row.name,), n.outputs[0]) for n in takers if n.kind == "dropout")
