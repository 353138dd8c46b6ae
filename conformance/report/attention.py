"""Attention probabilities as one heat map for each head, with queries as rows and keys as columns. Pure functions of traces."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from conformance.checks.trace import Trace
from conformance.numerics.formats import Array, Mask
from conformance.report.drawings import HeatMap
from conformance.report.trace_view import TracedBatch, TraceView

STEPS = tuple(2.0**-n for n in range(6, 0, -1))  # smallest probability of each shade above 0; each is twice the preceding one
LONGEST = 32  # maximum number of tokens with a cell each; more, with labels, exceed the width of a phone's screen
BUDGET = 120_000  # maximum number of cells on a page; a cell takes about ten characters of SVG
PROBS = "encoder.layer.{}.attention.self.probs"
_LETTERS = 8  # maximum length of a token in a label

Maps = list[tuple[HeatMap, str]]  # a map and its caption for each head


@dataclass(frozen=True)
class AttentionLayer:
    """The attention of one layer on one row of a batch: for each trace that exposes it, its name and the maps of its heads."""

    traced: TracedBatch
    row: int
    layer: int
    sides: list[tuple[str, Maps]]


@dataclass(frozen=True)
class AttentionRow:
    """The attention of a row of a batch in each layer, with the row's tokens, and the number of tokens that a cell covers."""

    summary: str
    block: int
    layers: list[AttentionLayer]


def attention(view: TraceView, traces: Sequence[Trace], budget: int = BUDGET) -> tuple[list[AttentionRow], list[str]]:
    """Return the rows in the order of batches, until the budget of cells is exhausted, and sentences on what is not drawn.

    The first layer is drawn in any case.
    """
    places = [(p, row, n) for p in view.batches for row in range(p.batch.size) for n in _layers(view, p, traces)]
    drawn: list[AttentionLayer] = []
    for place in places:
        layer = _drawn(*place, traces)
        budget -= sum(len(heat_map.shades) ** 2 for _, heads in layer.sides for heat_map, _ in heads)
        if budget < 0 and drawn:
            break
        drawn.append(layer)
    rows = [_row(list(found), several=len(view.batches) > 1) for _, found in groupby(drawn, lambda d: (d.traced.name, d.row))]
    left = len(places) - len(drawn)
    rest = [f"Not drawn, so that the page stays small: {left} of {len(places)} layers of all rows."] if left else []
    return rows, [*_hidden(view, traces), *rest]


def _layers(view: TraceView, traced: TracedBatch, traces: Sequence[Trace]) -> Iterator[int]:
    for layer in range(view.architecture.num_hidden_layers):
        if any(PROBS.format(layer) in t.activations[traced.name] for t in traces):
            yield layer


def _drawn(traced: TracedBatch, row: int, layer: int, traces: Sequence[Trace]) -> AttentionLayer:
    texts, attended = [token.text for token in traced.tokens[row]], traced.batch.mask[row]
    found = ((t.name, t.activations[traced.name].get(PROBS.format(layer))) for t in traces)
    sides = [(name, list(heads(probs[row], texts, attended))) for name, probs in found if probs is not None]
    return AttentionLayer(traced, row, layer, sides)


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


def _row(layers: list[AttentionLayer], *, several: bool) -> AttentionRow:
    first = layers[0]
    tokens = [token.text for token in first.traced.tokens[first.row] if not token.masked]
    text = " ".join(tokens)
    summary = f"{f'{first.traced.name}, ' if several else ''}row {first.row}: {text[:160]}{'…' * (len(text) > 160)}"
    return AttentionRow(summary, -(-len(tokens) // LONGEST), layers)


def _hidden(view: TraceView, traces: Sequence[Trace]) -> Iterator[str]:
    layers = range(view.architecture.num_hidden_layers)
    for t, shown in zip(traces, view.shown, strict=True):
        missing = [layer for layer in layers if PROBS.format(layer) not in shown]
        if missing:
            which = PROBS.format("*") if len(missing) == len(layers) else ", ".join(map(PROBS.format, missing))
            yield f"{t.name} does not expose {which}, so that attention is not drawn."
