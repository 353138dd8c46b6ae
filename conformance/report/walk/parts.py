"""A network in three drawings, read off the table of activations: the embeddings, one encoder layer, the heads."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from conformance.model.activation import SCALAR, Activation
from conformance.model.activations import placed
from conformance.report.walk.walk import Walk


@dataclass(frozen=True)
class Node:
    """A step of a drawing, or what comes into it from outside.

    Attributes:
        name: the activation's name, by which others call it their parent.
        lines: what stands in its box: its name, its equation and its shape; of what comes from outside what it is.
        parents: names, of nodes of the same drawing.
        kind: `source` for what comes from outside; `learned` with parameters of its own; else `plain`.
        shown: whether every candidate shows it.
    """

    name: str
    lines: tuple[str, ...]
    parents: tuple[str, ...]
    kind: str
    shown: bool


@dataclass(frozen=True)
class Part:
    """One drawing: its title and its nodes in the order of computation."""

    title: str
    nodes: tuple[Node, ...]


def parts(walk: Walk) -> tuple[Part, ...]:
    """Those that the network has: the encoder's layers are alike, so that the first stands for all."""
    layers = walk.architecture.num_hidden_layers
    rows = walk.table.values()
    embeddings = [row for row in rows if placed(row.name)[0] == "embeddings"]
    layer = [row for row in rows if row.layer == 0]
    heads = [row for row in rows if row.layer is None and placed(row.name)[0] != "embeddings"]
    last = embeddings[-1].name
    found = [_part("Embeddings", embeddings, walk, {})]
    if layer:
        before = (last, "or what the layer before gives") if layers > 1 else (last,)
        found.append(_part(f"Encoder layer, × {layers}", layer, walk, {last: before}))
    if heads:
        found.append(_part("Pooler and heads" if len(walk.architecture.heads) else "Pooler", heads, walk, {}))
    return tuple(found)


def _part(title: str, rows: Sequence[Activation], walk: Walk, called: Mapping[str, tuple[str, ...]]) -> Part:
    """`called` says what stands in the box of a parent from outside, where that is not its name alone."""
    names = {row.name for row in rows}
    outside = dict.fromkeys(parent for row in rows for parent in row.parents if parent not in names)
    sources = [Node(name, called.get(name, (name,)), (), "source", True) for name in outside]
    return Part(title, (*sources, *(_node(row, walk) for row in rows)))


def _node(row: Activation, walk: Walk) -> Node:
    """A step is shown where every layer's is."""
    alike = [other.name for other in walk.table.values() if placed(other.name)[1] == placed(row.name)[1]]
    shown = all(name in side for side in walk.shown for name in (alike if row.layer is not None else [row.name]))
    kind = "learned" if row.parameters else "plain"
    return Node(row.name, (placed(row.name)[1], row.equation, _shape(row, walk)), row.parents, kind, shown)


def _shape(row: Activation, walk: Walk) -> str:
    """In numbers where there is one batch, else with B for its size and S for its length."""
    if row.axes == SCALAR:
        return "scalar"
    heads = walk.architecture.num_attention_heads
    if len(walk.passages) == 1:
        batch = walk.passages[0].batch
        return times(row.shape(batch.size, batch.length, heads))
    letters = {"batch": "B", "position": "S", "query": "S", "key": "S", "head": str(heads)}
    return times(letters.get(axis, str(row.width)) for axis in row.axes)


def times(lengths: Iterable[object]) -> str:
    """A shape in words: 2 × 9 × 384."""
    return " × ".join(map(str, lengths)) or "scalar"
