"""Diagrams of the embeddings, one encoder layer, and pooler and heads, derived from the table of activations."""

from collections.abc import Iterable, Mapping, Sequence

from conformance.model.activation import SCALAR, Activation
from conformance.model.activations import placed
from conformance.report.document import Diagram, DiagramNode
from conformance.report.trace.trace_view import TraceView


def parts(view: TraceView) -> tuple[Diagram, ...]:
    """Return the diagrams of the parts that the network has; the first encoder layer represents all layers."""
    layers = view.architecture.num_hidden_layers
    rows = view.table.values()
    embeddings = [row for row in rows if placed(row.name)[0] == "embeddings"]
    layer = [row for row in rows if row.layer == 0]
    heads = [row for row in rows if row.layer is None and placed(row.name)[0] != "embeddings"]
    last = embeddings[-1].name
    found = [_part("Embeddings", embeddings, view, {})]
    if layer:
        before = (last, "or what the layer before gives") if layers > 1 else (last,)
        found.append(_part(f"Encoder layer, × {layers}", layer, view, {last: before}))
    if heads:
        found.append(_part("Pooler and heads" if len(view.architecture.heads) else "Pooler", heads, view, {}))
    return tuple(found)


def _part(title: str, rows: Sequence[Activation], view: TraceView, called: Mapping[str, tuple[str, ...]]) -> Diagram:
    """Return the diagram of one part; `called` has the lines in the box of a parent from outside, by default its name."""
    names = {row.name for row in rows}
    outside = dict.fromkeys(parent for row in rows for parent in row.parents if parent not in names)
    sources = [DiagramNode(name, called.get(name, (name,)), (), "source") for name in outside]
    return Diagram(title, (*sources, *(_node(row, view) for row in rows)))


def _node(row: Activation, view: TraceView) -> DiagramNode:
    """Return the box of an activation, with a remark unless every candidate exposes the activation in every layer."""
    alike = [other.name for other in view.table.values() if placed(other.name)[1] == placed(row.name)[1]]
    exposed = all(name in side for side in view.shown for name in (alike if row.layer is not None else [row.name]))
    remark = "" if exposed else "not exposed by every candidate" if len(view.names) > 1 else f"not exposed by {view.names[0]}"
    kind = "filled" if row.parameters else "plain"
    return DiagramNode(row.name, (placed(row.name)[1], row.equation, shape(row, view)), row.parents, kind, remark)


def shape(row: Activation, view: TraceView) -> str:
    """Return the shape as text, with numbers if there is a single batch, else with B for batch size and S for sequence length."""
    if row.axes == SCALAR:
        return "scalar"
    heads = view.architecture.num_attention_heads
    if len(view.batches) == 1:
        batch = view.batches[0].batch
        return times(row.shape(batch.size, batch.length, heads, batch.states_length))
    own = str(row.heads or heads)
    letters = {"batch": "B", "position": "S", "query": "S", "key": "S", "state": "T", "state key": "T", "head": own}
    return times(letters.get(axis, str(row.width)) for axis in row.axes)


def times(lengths: Iterable[object]) -> str:
    """Return a shape as text, such as `2 × 9 × 384`, or `scalar`."""
    return " × ".join(map(str, lengths)) or "scalar"
