"""The walk as HTML: a whole page, or a part of one for a notebook. Effects are elsewhere; this is a text made of values."""

from collections.abc import Sequence

from markupsafe import Markup

from conformance.checks.trace import Trace
from conformance.report.html.page import fragment, page
from conformance.report.walk import diagram
from conformance.report.walk.attention import STEPS
from conformance.report.walk.maps import attention
from conformance.report.walk.parts import Part, parts
from conformance.report.walk.table import TITLES, steps
from conformance.report.walk.walk import OVER, Token, Walk
from conformance.report.walk.walk import walk as walk_of

TOKENS = 4_000  # tokens of a page
BLANKS = 200  # and predictions


def title(walk: Walk) -> str:
    """What the page is about."""
    return f"How an input flows through {' and '.join(walk.names)}"


def facts(walk: Walk) -> list[str]:
    """The network, then who shows how much of it."""
    a = walk.architecture
    network = (
        f"{walk.golden}: {a.num_hidden_layers} layers, width {a.hidden_size}, {a.num_attention_heads} heads, {a.vocab_size} tokens"
    )
    sides = zip(walk.names, walk.settings, walk.shown, strict=True)
    return [network, *(f"{name}, {how}: shows {len(shown)} of {len(walk.table)} activations" for name, how, shown in sides)]


def trace_fragment(trace: Trace) -> str:
    """The walk of one trace, for a notebook."""
    return html(walk_of(trace), (trace,), whole=False)


def html(walk: Walk, traces: Sequence[Trace], *, whole: bool = True) -> str:
    """The walk of these traces: a document, or without `whole` what stands in one."""
    tokens = _tokens(walk)
    values = {
        "walk": walk,
        "facts": facts(walk),
        "over": OVER,
        "titles": list(TITLES.values()),
        "sides": [chr(ord("A") + i) for i in range(len(walk.names))],
        "tokens": tokens,
        "has_second": any(token.type for _, rows in tokens for _, row in rows for token in row),
        "rows_left_out": sum(p.batch.size for p in walk.passages) - sum(len(rows) for _, rows in tokens),
        "drawings": [_drawing(part) for part in parts(walk)],
        "steps": steps(walk.passages),
        "attention": attention(walk, traces),
        "shades": [(i, f"1/{1 / least:.0f}") for i, least in enumerate(STEPS, 1)],
        "blanks": [(p, blank) for p in walk.passages for blank in p.blanks],
        "most_blanks": BLANKS,
    }
    return (page if whole else fragment)("trace.html", title(walk), **values)


def _drawing(part: Part) -> tuple[str, Markup, list[tuple[str, str]]]:
    return part.title, diagram.diagram(part), list(diagram.sentences(part))


def _tokens(walk: Walk) -> list[tuple[str, list[tuple[int, Sequence[Token]]]]]:
    """Each batch's rows, numbered, as far as they fit."""
    left, found = TOKENS, []  # type: int, list[tuple[str, list[tuple[int, Sequence[Token]]]]]
    for passage in walk.passages:
        rows: list[tuple[int, Sequence[Token]]] = []
        for number, row in enumerate(passage.tokens):
            left -= len(row)
            if left >= 0 or not (found or rows):
                rows.append((number, row))
        if rows:
            found.append((passage.name, rows))
    return found
