"""Which attention is drawn: row by row and layer by layer, as far as a page may grow. Pure functions of traces."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from markupsafe import Markup

from conformance.checks.trace import Trace
from conformance.report.walk.attention import Head, favourite, heads, heat_map
from conformance.report.walk.walk import Passage, Walk

BUDGET = 1_200_000  # letters of SVG in a page
PROBS = "encoder.layer.{}.attention.self.probs"


@dataclass(frozen=True)
class MapPlace:
    """One layer of one row of a batch."""

    passage: Passage
    row: int
    layer: int


@dataclass(frozen=True)
class Side:
    """One trace's heads at a place: the map of each, and what is said below it."""

    name: str
    heads: tuple[tuple[int, Markup, str], ...]


@dataclass(frozen=True)
class Layer:
    """One layer, of each trace that shows its attention."""

    number: int
    sides: tuple[Side, ...]


@dataclass(frozen=True)
class MapRow:
    """One row of a batch: its tokens that are attended to, how many stand together in a cell, and its layers."""

    batch: str
    number: int
    tokens: str
    block: int
    layers: tuple[Layer, ...]


@dataclass(frozen=True)
class Attention:
    """What is drawn, and, in sentences, what is not."""

    rows: tuple[MapRow, ...]
    notes: tuple[str, ...]


def attention(walk: Walk, traces: Sequence[Trace], budget: int = BUDGET) -> Attention:
    """In the order of batches, rows and layers, until the page is full."""
    places = list(_places(walk, traces))
    drawn: list[tuple[MapPlace, Layer, int]] = []
    for place in places:
        layer, block = _layer(place, traces)
        budget -= sum(len(svg) for side in layer.sides for _, svg, _ in side.heads)
        if budget < 0 and drawn:
            break
        drawn.append((place, layer, block))
    rows = [_row(list(found)) for _, found in groupby(drawn, lambda d: (d[0].passage.name, d[0].row))]
    return Attention(tuple(rows), (*_unseen(walk, traces), *_left_out(places[len(drawn) :], drawn)))


def _places(walk: Walk, traces: Sequence[Trace]) -> Iterator[MapPlace]:
    for passage in walk.passages:
        for row in range(passage.batch.size):
            for layer in range(walk.architecture.num_hidden_layers):
                if any(PROBS.format(layer) in t.activations[passage.name] for t in traces):
                    yield MapPlace(passage, row, layer)


def _layer(place: MapPlace, traces: Sequence[Trace]) -> tuple[Layer, int]:
    """What is drawn at a place, and its block."""
    name, passage = PROBS.format(place.layer), place.passage
    texts, attended = [token.text for token in passage.tokens[place.row]], passage.batch.mask[place.row]
    kept = [text for text, seen in zip(texts, attended, strict=True) if seen]
    sides, block = [], 1
    for t in traces:
        probs = t.activations[passage.name].get(name)
        if probs is not None:
            found = heads(probs[place.row], texts, attended)
            block = found[0].block
            sides.append(Side(t.name, tuple(_rendered(head, kept) for head in found)))
    return Layer(place.layer, tuple(sides)), block


def _rendered(head: Head, tokens: Sequence[str]) -> tuple[int, Markup, str]:
    return head.number, heat_map(head, tokens), favourite(head)


def _row(found: Sequence[tuple[MapPlace, Layer, int]]) -> MapRow:
    place, _, block = found[0]
    tokens = " ".join(token.text for token in place.passage.tokens[place.row] if token.attended)
    return MapRow(place.passage.name, place.row, tokens, block, tuple(layer for _, layer, _ in found))


def _unseen(walk: Walk, traces: Sequence[Trace]) -> Iterator[str]:
    layers = range(walk.architecture.num_hidden_layers)
    for t, shown in zip(traces, walk.shown, strict=True):
        missing = [layer for layer in layers if PROBS.format(layer) not in shown]
        if missing:
            which = PROBS.format("*") if len(missing) == len(layers) else ", ".join(map(PROBS.format, missing))
            yield f"{t.name} does not show {which}, so that attention is not drawn."


def _left_out(places: Sequence[MapPlace], drawn: Sequence[tuple[MapPlace, Layer, int]]) -> Iterator[str]:
    if not places:
        return
    last = drawn[-1][0]
    rest = [p.layer for p in places if (p.passage.name, p.row) == (last.passage.name, last.row)]
    rows = {(p.passage.name, p.row) for p in places} - {(last.passage.name, last.row)}
    rendered = (
        [f"layers {rest[0]} to {rest[-1]} of {where(last)}"] if len(rest) > 1 else [f"layer {n} of {where(last)}" for n in rest]
    )
    rendered += [f"{len(rows)} {'row' if len(rows) == 1 else 'rows'} more"] if rows else []
    yield f"Not drawn, so that the page stays small: {' and '.join(rendered)}."


def where(place: MapPlace) -> str:
    """A row in words."""
    return f"row {place.row} of {place.passage.name}"
