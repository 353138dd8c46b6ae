"""Document of one trace, or of two side by side: the network, then every batch step by step. Pure functions of the view."""

import math
from collections.abc import Iterator, Sequence
from itertools import groupby

from conformance.checks.trace import Trace
from conformance.report.document import (
    Abridged,
    Block,
    Blocks,
    Cell,
    Column,
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
from conformance.report.trace.parts import parts, times
from conformance.report.trace.trace_view import (
    STATISTICS_NOTE,
    Statistics,
    TracedBatch,
    TracedStep,
    TraceView,
    rendered,
    trace_view,
)

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
