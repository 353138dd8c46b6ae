"""The drawing of a part of the network, as SVG and, for Markdown, as Mermaid."""

from collections.abc import Iterator

from markupsafe import Markup

from conformance.report.html.svg import drawing, element
from conformance.report.walk.layout import LINE, WIDTH, Box, Edge, layout
from conformance.report.walk.parts import Node, Part

_HEAD = 4.0  # half the length of an arrow's head


def diagram(part: Part) -> Markup:
    """A part as SVG, from the top down; what it says in words is `sentences`."""
    found = layout(part.nodes)
    edges = (piece for edge in found.edges for piece in _edge(edge))
    boxes = (_box(box) for box in found.boxes)
    return drawing(WIDTH, found.height, f"{part.title}: diagram, described in words below it", *edges, *boxes, class_="modules")


def sentences(part: Part) -> Iterator[tuple[str, str]]:
    """Each step's name, and where it comes from."""
    short = {node.name: node.lines[0] for node in part.nodes}
    for node in part.nodes:
        if node.kind != "source":
            from_ = f", from {', '.join(short[p] for p in node.parents)}" if node.parents else ""
            unseen = "" if node.shown else "; not shown by every candidate"
            yield node.lines[0], f"{': '.join(node.lines[1:])}{from_}{unseen}"


def _box(box: Box) -> Markup:
    kind = box.node.kind if box.node.shown else f"{box.node.kind} unseen-step"
    rounded = box.height / 2 if box.node.kind == "source" else 5.0
    frame = element("rect", x=box.x, y=box.y, width=box.width, height=box.height, rx=rounded)
    top = box.centre - len(box.lines) * LINE / 2
    texts = (
        element("text", line.text, x=box.middle, y=top + LINE * (i + 0.75), text_anchor="middle", class_=line.kind)
        for i, line in enumerate(box.lines)
    )
    return element("g", frame, *texts, class_=kind)


def _edge(edge: Edge) -> tuple[Markup, Markup]:
    x, y = edge.end
    head = {
        "down": f"M{x:g} {y:g}l-{_HEAD:g} -{2 * _HEAD:g}h{2 * _HEAD:g}z",
        "right": f"M{x:g} {y:g}l-{2 * _HEAD:g} -{_HEAD:g}v{2 * _HEAD:g}z",
        "left": f"M{x:g} {y:g}l{2 * _HEAD:g} -{_HEAD:g}v{2 * _HEAD:g}z",
    }[edge.direction]
    kind = "skip-edge" if edge.skip else "edge"
    return element("path", d=edge.path, class_=kind), element("path", d=head, class_=f"{kind} head")


def mermaid(part: Part) -> str:
    """A part as a flowchart that GitHub and notebooks draw."""
    number = {node.name: f"n{i}" for i, node in enumerate(part.nodes)}
    lines = ["flowchart TD"]
    for node in part.nodes:
        lines.append(f"  {number[node.name]}{_shaped(node)}")
    lines += [f"  {number[parent]} --> {number[node.name]}" for node in part.nodes for parent in node.parents]
    return "\n".join(lines)


def _shaped(node: Node) -> str:
    """Its text, quoted; quotes cannot stand in it, and of HTML only the line breaks that we put there."""
    text = "<br>".join(line.replace("&", "#amp;").replace("<", "#lt;").replace('"', "#quot;") for line in node.lines)
    return f'(["{text}"])' if node.kind == "source" else f'["{text}"]'
