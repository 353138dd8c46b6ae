"""Document of one trace, or of two side by side: the network, then every batch step by step. Pure functions of the view.

Diagrams of the embeddings, one encoder layer, and pooler and heads are derived from the table of activations.

`rows` are the same for programs, one for each activation and batch.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

from conformance.checks.trace import Trace
from conformance.model.activation import SCALAR, Activation
from conformance.model.activations import placed
from conformance.report.document import (
    Abridged,
    Block,
    Blocks,
    Cell,
    Column,
    Diagram,
    DiagramNode,
    Document,
    Figures,
    Folded,
    Heading,
    Headline,
    Lists,
    Paragraph,
    Ranges,
    Row,
    Table,
    Tokens,
    tabled,
)
from conformance.report.html.page import fragment
from conformance.report.trace.attention import attention
from conformance.report.trace.trace_view import (
    SCORED,
    STATISTICS_NOTE,
    Statistics,
    TracedBatch,
    TracedStep,
    TraceView,
    rendered,
    trace_view,
)


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


STATISTICS = {"mean": "mean", "deviation": "deviation", "least": "min", "most": "max", "rms": "rms"}
BUDGET = 1_400  # maximum number of table rows on a page; a row with two traces counts twice
TOKENS = 4_000  # maximum number of tokens of a batch on a page
_FIRST = ("mean", "rms", "deviation", "least", "most")  # a narrow terminal omits the last ones first
_RANGES = (
    "The axes are batch × position × feature, in attention batch × head × query × key, of a sentence batch × feature. The bar goes "
    "from the least value to the largest, thick at mean ± deviation, on an asinh scale around zero that is the same for all steps "
    "of a batch."
)
_UPPER = " A is the upper bar, B the lower."
_OUTLINES = "Filled: with parameters of its own. Blue: a line that passes other steps. Dashed: not exposed by every candidate."


def trace_fragment(trace: Trace) -> str:
    """Return the report of one trace as an HTML fragment for a notebook."""
    return fragment(document(trace_view(trace), (trace,)))


def document(view: TraceView, traces: Sequence[Trace]) -> Document:
    """Return the document: the network, then tokens, steps and predictions of every batch, and in HTML the attention maps."""
    title, left_out = f"How an input flows through {' and '.join(view.names)}", _left_out(view)
    blocks = (
        Abridged((), (Headline(title),)),
        *map(Paragraph, _facts(view)),
        Abridged((Heading("The network", level=2),)),
        Figures(tuple((part, "") for part in parts(view))),
        Abridged(
            (
                Paragraph(_outlines(view), "quiet"),
                Heading("Step by step", level=2),
                Paragraph(f"{_RANGES}{_UPPER if len(view.names) > 1 else ''}", "quiet"),
            )
        ),
        *_batches(view, left_out),
        *(Abridged((Paragraph(text, "quiet"),)) for text in _counted(left_out)),
        Paragraph(STATISTICS_NOTE, "quiet"),
        Abridged(tuple(attention(view, traces))),
    )
    return Document(title, blocks)


def _facts(view: TraceView) -> Iterator[str]:
    """Yield a sentence about the network, then one about the activations that each candidate exposes."""
    a = view.architecture
    sizes = f"{a.num_hidden_layers} layers, width {a.hidden_size}, {a.num_attention_heads} heads, vocabulary of {a.vocab_size}"
    yield f"{view.golden}: {sizes}"
    for letter, name, setting, shown in zip(_letters(view), view.names, view.settings, view.shown, strict=True):
        who = f"{letter}: {name}" if letter else name
        yield f"{who}, {setting}: exposes {len(shown)} of {len(view.table)} activations"


def _letters(view: TraceView) -> Sequence[str]:
    return "AB" if len(view.names) > 1 else [""]


def _outlines(view: TraceView) -> str:
    return f"{_OUTLINES} B is the size of a batch, S its length." if len(view.batches) > 1 else _OUTLINES


def _left_out(view: TraceView) -> list[str]:
    """Return the names of the batches that a page omits; the first batch is always shown."""
    budget, names = BUDGET, []
    for number, traced in enumerate(view.batches):
        budget -= sum(len(step.sides) for step in traced.steps)
        if number and budget < 0:
            names.append(traced.name)
    return names


def _counted(names: Sequence[str]) -> Iterator[str]:
    if names:
        many = f"{len(names)} {'batch' if len(names) == 1 else 'batches'} more"
        yield f"Not shown, so that the page stays small: {many}. The terminal and JSON have all of them."


def _batches(view: TraceView, left_out: Sequence[str]) -> Iterator[Block]:
    """Yield the blocks of each batch, folded if there are several batches."""
    for number, traced in enumerate(view.batches):
        blocks: Blocks = tuple(_batch(view, traced))
        if len(view.batches) > 1:
            summary = f"{traced.name}, {times(traced.batch.input_ids.shape)} tokens"
            blocks = (Folded(summary, blocks, is_open=number == 0),)
        yield from (Abridged((), blocks),) if traced.name in left_out else blocks


def _batch(view: TraceView, traced: TracedBatch) -> Iterator[Block]:
    yield from _tokens(traced, "Tokens" if view.tokenized else "Token ids")
    yield from _table(view, traced)
    letters = [f", {letter}" if letter else "" for letter in _letters(view)]
    found = (
        (f"[MASK] at row {b.row}, position {b.position}{letter}", tuple(f"{g.token} {g.probability:.3g}" for g in guesses))
        for b in traced.predictions
        for letter, guesses in zip(letters, b.guesses, strict=True)
    )
    lists = tuple((place, guesses or ("not exposed",)) for place, guesses in found)
    yield from [Lists(lists)] if lists else []


def _tokens(traced: TracedBatch, what: str) -> Iterator[Block]:
    """Yield the tokens of a batch; on a page at most `TOKENS` tokens (at least one row), with a legend."""
    rows = traced.tokens
    shown = rows[: max(TOKENS // max(traced.batch.length, 1), 1)]
    if len(shown) < len(rows):
        more = Paragraph(f"{len(rows) - len(shown)} rows more are not shown, so that the page stays small.", "quiet")
        yield Abridged((Tokens(shown), more), (Tokens(rows),))
    else:
        yield Tokens(rows)
    second = " Underlined: token type 1, the second text." if any(t.underlined for row in rows for t in row) else ""
    yield Abridged((Paragraph(f"{what}, a row a line. Dashed: not attended to, as padding is not.{second}", "quiet"),))


def _table(view: TraceView, traced: TracedBatch) -> Iterator[Table]:
    """Yield the table of steps, grouped by module; the title of a group and the name of a row form the activation's name."""
    letters = _letters(view)
    spare = {name: 1 + _FIRST.index(name) if len(letters) > 1 else 0 for name in STATISTICS}
    numbers = [Column(f"{title} {letter}".strip(), spare=spare[name]) for name, title in STATISTICS.items() for letter in letters]
    texts = (Column("equation", is_text=True, is_remark=True, spare=8), Column("from", is_text=True, is_remark=True, spare=9))
    columns = (
        Column("activation"),
        Column("shape", is_text=True),
        Column("range"),
        *numbers,
        Column("difference"),
        *texts,
    )
    reach = _reach(traced)
    groups = groupby(traced.steps, lambda step: step.row.name.rpartition(".")[0])
    yield from tabled(columns, [(module, [_row(step, reach) for step in found]) for module, found in groups], most=None)


def _reach(traced: TracedBatch) -> float:
    """Return the largest finite absolute value of a batch, or 1 if there is none or it is 0."""
    ends = (end for step in traced.steps for side in step.sides if side for end in (-side.least, side.most))
    return max((end for end in ends if math.isfinite(end)), default=0.0) or 1.0


def _row(step: TracedStep, reach: float) -> Row:
    module, _, name = step.row.name.rpartition(".")
    numbers = [rendered(getattr(side, statistic) if side else None) for statistic in STATISTICS for side in step.sides]
    parents = ", ".join(parent.removeprefix(f"{module}.") for parent in step.row.parents)
    ranges = Ranges(tuple(_range(side, reach) for side in step.sides))
    shape = "×".join(map(str, step.shape)) or "scalar"
    cells: tuple[Cell, ...] = (name, shape, ranges, *numbers, rendered(step.largest), step.row.equation, parents)
    return Row(cells, "quiet" if step.row.kind == "copy" else "")


def _range(side: Statistics | None, reach: float) -> tuple[float, float, float, float] | None:
    """Return smallest value, mean ± deviation and largest value in percent, on a scale of asinh x from −`reach` to `reach`.

    asinh x is approximately x near zero and ± ln 2|x| far from it, so that small and large activations are visible on one scale.
    None is returned if there are no statistics or one of them is not finite.
    """
    if side is None or not all(map(math.isfinite, (side.least, side.most, side.deviation))):
        return None
    low, high = max(side.least, side.mean - side.deviation), min(side.most, side.mean + side.deviation)
    least, low, high, most = (50.0 + 50.0 * math.asinh(x) / math.asinh(reach) for x in (side.least, low, high, side.most))
    return least, low, high, most


def rows(view: TraceView) -> list[dict[str, Any]]:
    """Return one row of JSON values for each activation and batch.

    The statistics of the first trace are texts with four significant digits (`-` if the trace does not expose the activation).
    `sides` has the numbers of every trace (null if not exposed), and rows with the scores of a masked-LM head have `predictions`
    for each `[MASK]`.
    """
    return [_step_row(view, traced, step) for traced in view.batches for step in traced.steps]


def _side(name: str, side: Statistics) -> dict[str, Any]:
    """Return the statistics of one trace; values that are not finite, for example after overflow of a square, are null in JSON."""
    return {"name": name, **{n: value if math.isfinite(value) else None for n, value in asdict(side).items()}}


def _step_row(view: TraceView, traced: TracedBatch, step: TracedStep) -> dict[str, Any]:
    name, first = step.row.name, step.sides[0]
    predicted = [asdict(prediction) for prediction in traced.predictions] if name in SCORED else []
    return {
        "activation": name if len(view.batches) == 1 else f"{name} [{traced.name}]",
        "shape": times(step.shape),
        **{statistic: f"{getattr(first, statistic):.4g}" if first else "-" for statistic in STATISTICS},
        "equation": step.row.equation,
        "batch": traced.name,
        "axes": list(step.row.axes),
        "lengths": list(step.shape),
        "parents": list(step.row.parents),
        "layer": step.row.layer,
        "sides": [_side(who, side) if side else None for who, side in zip(view.names, step.sides, strict=True)],
        "largest_difference": step.largest,
        **({"predictions": predicted} if predicted else {}),
    }
