"""Location of activations in a program's graph, by the parameters from which they are computed and the data flow between them.

The result of a product with a parameter, of a norm or of a look-up is the activation to which the parameters belong. The other
operand of a product is the activation before it. Nothing is inferred from positions in the graph. An activation that is not
located is reported as not observed.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from conformance.candidates.archives.graph import MOVED, SAME, Graph, Node
from conformance.candidates.archives.program_parameters import Names
from conformance.model.activation import Activation
from conformance.model.activations import table
from conformance.model.architecture import Architecture

Locations = Mapping[Names, tuple[str, ...]]
"""Candidate values by activations (several if concatenated in one value); the first candidate of the right shape is used."""

_Rows = Mapping[str, Activation]
_Places = Mapping[Names, str]


@dataclass(frozen=True)
class _Made:
    """The result of an operation with a parameter, and its other operand."""

    result: str
    operand: str


def located(graph: Graph, parameters: Mapping[str, Names], architecture: Architecture) -> Locations:
    """Return the activations that are located in a graph, with the values that may hold them.

    Args:
        graph: the graph.
        parameters: the checkpoint's parameters in each value of the graph.
        architecture: the architecture of the checkpoint.
    """
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
