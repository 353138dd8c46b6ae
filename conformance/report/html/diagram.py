"""A diagram as SVG and as a description in words.

In its elements every text and every attribute is escaped. Colours are set by the page's CSS classes.
"""

from collections.abc import Iterator

from markupsafe import Markup, escape

from conformance.names import printable
from conformance.report.document import Diagram
from conformance.report.html.layout import LINE, WIDTH, Box, Edge, layout

Value = str | float | None


def element(name: str, *children: str, **attributes: Value) -> Markup:
    """Return the element `<name …>…</name>`.

    Args:
        name: name of the element.
        children: contents; texts are escaped, markup is not.
        attributes: attributes; of their Python names a trailing underscore is dropped and other underscores become hyphens.
            Attributes that are None are omitted.
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_plain(v))}"' for key, v in attributes.items() if v is not None
    )
    inner = "".join(escape(child if isinstance(child, Markup) else printable(child)) for child in children)
    return Markup(f"<{name}{written}>{inner}</{name}>")


def drawing(width: float, height: float, title: str, *children: str, **attributes: Value) -> Markup:
    """Return an SVG element that scales with its container; `title` is its text for screen readers."""
    return element(
        "svg",
        *children,
        viewBox=f"0 0 {_plain(width)} {_plain(height)}",
        width=width,
        height=height,
        role="img",
        aria_label=title,
        **attributes,
    )


def _plain(value: str | float) -> str:
    """Return a text with unprintable characters escaped, or a number rounded to 0.01, which is finer than a screen's resolution."""
    if isinstance(value, str):
        return value if isinstance(value, Markup) else printable(value)
    return f"{value:.2f}".rstrip("0").rstrip(".")


_HEAD = 4.0  # half the length of an arrow's head


def diagram(described: Diagram) -> Markup:
    """Return the diagram as SVG, from top to bottom; `sentences` gives the same information in words."""
    found = layout(described.nodes)
    edges = (piece for edge in found.edges for piece in _edge(edge))
    boxes = (_box(box) for box in found.boxes)
    return drawing(
        WIDTH, found.height, f"{described.title}: diagram, described in words below it", *edges, *boxes, class_="modules"
    )


def sentences(described: Diagram) -> Iterator[tuple[str, str]]:
    """Yield for each box, except sources, its first line, and a text with its other lines, its parents and its remark."""
    short = {node.name: node.lines[0] for node in described.nodes}
    for node in described.nodes:
        if node.kind != "source":
            from_ = f", from {', '.join(short[p] for p in node.parents)}" if node.parents else ""
            remark = f"; {node.remark}" if node.remark else ""
            yield node.lines[0], f"{': '.join(node.lines[1:])}{from_}{remark}"


def _box(box: Box) -> Markup:
    kind = f"{box.node.kind} dashed" if box.node.remark else box.node.kind
    rounded = box.height / 2 if box.node.kind == "source" else 5.0
    frame = element("rect", x=box.x, y=box.y, width=box.width, height=box.height, rx=rounded)
    top = box.y + (box.height - len(box.lines) * LINE) / 2
    texts = (
        element("text", line.text, x=box.middle, y=top + LINE * (i + 0.75), text_anchor="middle", class_=line.kind)
        for i, line in enumerate(box.lines)
    )
    return element("g", frame, *texts, class_=kind)


def _edge(edge: Edge) -> tuple[Markup, Markup]:
    x, y = edge.end
    kind = "skip-edge" if edge.skip else "edge"
    head = f"M{x:g} {y:g}l-{_HEAD:g} -{2 * _HEAD:g}h{2 * _HEAD:g}z"
    return element("path", d=edge.path, class_=kind), element("path", d=head, class_=f"{kind} head")
