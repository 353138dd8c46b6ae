"""Attention probabilities as one heat map for each head, with queries as rows and keys as columns. Pure functions of traces."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from conformance.checks.trace import Trace
from conformance.numerics.formats import Array, Mask
from conformance.report.document import Block, Figures, Folded, Heading, HeatMap, Paragraph
from conformance.report.trace.trace_view import TracedBatch, TraceView

STEPS = tuple(2.0**-n for n in range(6, 0, -1))  # smallest probability of each shade above 0; each is twice the preceding one
LONGEST = 32  # maximum number of tokens with a cell each; more, with labels, exceed the width of a phone's screen
BUDGET = 120_000  # maximum number of cells on a page; a cell takes about ten characters of SVG
PROBS = "encoder.layer.{}.attention.self.probs"
_LETTERS = 8  # maximum length of a token in a label


@dataclass(frozen=True)
class AttentionLayer:
    """The attention maps of one layer on one row of a batch.

    `sides` has for each trace that exposes the probabilities its name, and map and caption of each head.
    """

    traced: TracedBatch
    row: int
    layer: int
    sides: tuple[tuple[str, tuple[tuple[HeatMap, str], ...]], ...]


def attention(view: TraceView, traces: Sequence[Trace], budget: int = BUDGET) -> Iterator[Block]:
    """Yield the section about attention: maps in the order of batches, rows and layers, until the budget of cells is exhausted.

    The first layer is drawn in any case.
    """
    yield Heading("Attention", level=2)
    places = [(p, row, n) for p in view.batches for row in range(p.batch.size) for n in _layers(view, p, traces)]
    drawn: list[AttentionLayer] = []
    for place in places:
        layer = _drawn(*place, traces)
        budget -= sum(len(heat_map.shades) ** 2 for _, heads in layer.sides for heat_map, _ in heads)
        if budget < 0 and drawn:
            break
        drawn.append(layer)
    if drawn:
        shades = ", ".join(f"1/{1 / least:.0f}" for least in STEPS)
        yield Paragraph(
            "A map for each head: a row is a query, a column a key that it takes from; padding is left out. Below it, the key with "
            f"the largest share of all attention. The shades begin at probabilities of {shades}; each is twice the one before.",
            "quiet",
        )
    yield from (Paragraph(note, "quiet") for note in (*_hidden(view, traces), *_left_out(places[len(drawn) :], drawn)))
    for number, (_, found) in enumerate(groupby(drawn, lambda d: (d.traced.name, d.row))):
        yield _row(list(found), several=len(view.batches) > 1, is_first=number == 0)


def _layers(view: TraceView, traced: TracedBatch, traces: Sequence[Trace]) -> Iterator[int]:
    for layer in range(view.architecture.num_hidden_layers):
        if any(PROBS.format(layer) in t.activations[traced.name] for t in traces):
            yield layer


def _drawn(traced: TracedBatch, row: int, layer: int, traces: Sequence[Trace]) -> AttentionLayer:
    texts, attended = [token.text for token in traced.tokens[row]], traced.batch.mask[row]
    found = ((t.name, t.activations[traced.name].get(PROBS.format(layer))) for t in traces)
    sides = ((name, tuple(heads(probs[row], texts, attended))) for name, probs in found if probs is not None)
    return AttentionLayer(traced, row, layer, tuple(sides))


def heads(probs: Array, tokens: Sequence[str], attended: Mask) -> Iterator[tuple[HeatMap, str]]:
    """Yield the map and caption of each head for one row of a batch, without padding; `probs` are (heads, queries, keys).

    If there are more than `LONGEST` attended tokens, a cell covers a block of tokens and shows the largest of their probabilities.
    """
    kept = [token for token, seen in zip(tokens, attended, strict=True) if seen]
    block = -(-len(kept) // LONGEST)
    labels = tuple(map(_cut, kept)) if block == 1 else ()
    for number, head in enumerate(probs[:, attended][:, :, attended]):
        taken = head.mean(axis=0)
        caption = f"{number}: {taken.max():.0%} to {kept[int(taken.argmax())]}"
        shades = np.searchsorted(STEPS, pooled(head, block), side="right")
        yield HeatMap(tuple(map(tuple, shades.tolist())), labels, f"head {caption}"), caption


def pooled(values: Array, block: int) -> Array:
    """Return the maximum over each block × block part of a square matrix; the last blocks may be smaller."""
    starts = np.arange(0, len(values), block)
    return np.asarray(np.maximum.reduceat(np.maximum.reduceat(values, starts, axis=0), starts, axis=1))


def _cut(token: str) -> str:
    return token if len(token) <= _LETTERS else f"{token[: _LETTERS - 1]}…"


def _row(found: Sequence[AttentionLayer], *, several: bool, is_first: bool) -> Folded:
    """Return the maps of one row of a batch, one folded block for each layer, under a summary with the row's tokens."""
    first = found[0]
    tokens = [token.text for token in first.traced.tokens[first.row] if not token.masked]
    block, text = -(-len(tokens) // LONGEST), " ".join(tokens)
    note = f"A cell is {block} × {block} tokens, and shows the largest of their probabilities."
    layers = (
        Folded(f"layer {layer.layer}", tuple(_sides(layer)), is_open=is_first and number == 0) for number, layer in enumerate(found)
    )
    summary = f"{f'{first.traced.name}, ' if several else ''}row {first.row}: {text[:160]}{'…' * (len(text) > 160)}"
    return Folded(summary, (*([Paragraph(note, "quiet")] if block > 1 else []), *layers), is_open=is_first)


def _sides(layer: AttentionLayer) -> Iterator[Block]:
    for name, figures in layer.sides:
        yield from [Heading(name)] if len(layer.sides) > 1 else []
        yield Figures(figures)


def _hidden(view: TraceView, traces: Sequence[Trace]) -> Iterator[str]:
    layers = range(view.architecture.num_hidden_layers)
    for t, shown in zip(traces, view.shown, strict=True):
        missing = [layer for layer in layers if PROBS.format(layer) not in shown]
        if missing:
            which = PROBS.format("*") if len(missing) == len(layers) else ", ".join(map(PROBS.format, missing))
            yield f"{t.name} does not expose {which}, so that attention is not drawn."


def _left_out(places: Sequence[tuple[TracedBatch, int, int]], drawn: Sequence[AttentionLayer]) -> Iterator[str]:
    if not places:
        return
    last = (drawn[-1].traced.name, drawn[-1].row)
    rest = [layer for traced, row, layer in places if (traced.name, row) == last]
    rows = {(traced.name, row) for traced, row, _ in places} - {last}
    of = f"of row {last[1]} of {last[0]}"
    rendered = [f"layers {rest[0]} to {rest[-1]} {of}"] if len(rest) > 1 else [f"layer {n} {of}" for n in rest]
    rendered += [f"{len(rows)} {'row' if len(rows) == 1 else 'rows'} more"] if rows else []
    yield f"Not drawn, so that the page stays small: {' and '.join(rendered)}."
