"""Layout of a diagram from top to bottom; the rank of a box is the length of the longest path to it from a box without parents.

Lengths are in units of the drawing; at full size one unit is a CSS pixel. The width fits a phone's screen without scaling.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from conformance.report.document import DiagramNode

WIDTH = 376.0
_MARGIN = 12.0  # margin at the sides, for lines that pass the boxes
_GAP = 8.0  # distance between boxes of a rank
_BULGE = 20.0  # distance between a box and a line that passes it, where there is room
_EDGE = 5.0  # minimum distance between the edge of the drawing and a line
_WIDEST = 228.0  # maximum width of a box
_BETWEEN = 22.0  # distance between ranks
_PADDING = 4.0
LINE = 14.0
_NAME, _TEXT = 6.85, 6.4  # at font size 11: largest advance width of monospaced letters, and a safe mean of proportional ones


@dataclass(frozen=True)
class DrawnLine:
    """A line of text in a box; its kind is `name`, `formula` or `shape`."""

    text: str
    kind: str


@dataclass(frozen=True)
class Box:
    """The place of a node: upper left corner (x, y), size and lines of text."""

    node: DiagramNode
    x: float
    y: float
    width: float
    height: float
    lines: tuple[DrawnLine, ...]

    @property
    def middle(self) -> float:
        """The x coordinate of the centre."""
        return self.x + self.width / 2

    @property
    def right(self) -> float:
        """The x coordinate of the right edge."""
        return self.x + self.width

    @property
    def bottom(self) -> float:
        """The y coordinate of the lower edge."""
        return self.y + self.height


@dataclass(frozen=True)
class Edge:
    """A line from a parent to a child: its SVG path, its end (x, y) at the upper edge of the child, and whether it skips ranks."""

    path: str
    end: tuple[float, float]
    skip: bool


@dataclass(frozen=True)
class DiagramLayout:
    """The boxes, lines and height of a diagram."""

    boxes: tuple[Box, ...]
    edges: tuple[Edge, ...]
    height: float


def layout(nodes: Sequence[DiagramNode]) -> DiagramLayout:
    """Compute the layout of nodes that are ordered so that parents precede their children."""
    ranks = _ranks(nodes)
    boxes = _boxes(ranks)
    rank_of = {node.name: r for r, rank in enumerate(ranks) for node in rank}
    edges = []
    for node in nodes:
        for parent in node.parents:
            between = [boxes[n.name] for rank in ranks[rank_of[parent] + 1 : rank_of[node.name]] for n in rank]
            edges.append(_edge(boxes[parent], boxes[node.name], between))
    return DiagramLayout(tuple(boxes.values()), tuple(edges), max(box.bottom for box in boxes.values()) + 1)


def _ranks(nodes: Sequence[DiagramNode]) -> list[list[DiagramNode]]:
    """Return the nodes of each rank; the rank of a node is the length of the longest path to it."""
    rank: dict[str, int] = {}
    for node in nodes:
        rank[node.name] = 1 + max((rank[p] for p in node.parents), default=-1)
    return [[node for node in nodes if rank[node.name] == r] for r in range(max(rank.values()) + 1)]


def _boxes(ranks: Sequence[Sequence[DiagramNode]]) -> dict[str, Box]:
    """Place the ranks from top to bottom, with the nodes of each rank sorted by the mean centre of their parents."""
    boxes: dict[str, Box] = {}
    y = 1.0
    for rank in ranks:
        ordered = sorted(rank, key=lambda node: _mean([boxes[p].middle for p in node.parents]))
        width = min(_WIDEST, (WIDTH - 2 * _MARGIN - _GAP * (len(rank) - 1)) / len(rank))
        lines = {node.name: _lines(node, width - 2 * _PADDING) for node in ordered}
        height = max(len(found) for found in lines.values()) * LINE + 2 * _PADDING
        x = (WIDTH - width * len(rank) - _GAP * (len(rank) - 1)) / 2
        for node in ordered:
            boxes[node.name] = Box(node, x, y, width, height, lines[node.name])
            x += width + _GAP
        y += height + _BETWEEN
    return boxes


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _lines(node: DiagramNode, room: float) -> tuple[DrawnLine, ...]:
    """Return the lines of a node, that is name, equation and shape, each wrapped to the width `room`."""
    advances = {"name": _NAME, "formula": _TEXT, "shape": _TEXT}
    return tuple(
        DrawnLine(piece, kind)
        for kind, text in zip(advances, node.lines, strict=False)
        for piece in wrapped(text, int(room / advances[kind]))
    )


def wrapped(text: str, letters: int) -> list[str]:
    """Return lines of at most `letters` letters, broken after a space, dot, underscore or slash, or anywhere if there is none."""
    lines = [""]
    for piece in re.findall(r"[^ ._/]*[ ._/]|[^ ._/]+", text):
        if len(lines[-1]) + len(piece.rstrip()) <= letters:
            lines[-1] += piece
            continue
        lines += [piece[i : i + letters] for i in range(0, len(piece), letters)]
    return [line.strip() for line in lines if line.strip()]


def _edge(parent: Box, child: Box, between: Sequence[Box]) -> Edge:
    """Return a line from parent to child past the boxes in between, ending on the side of the child from which it arrives."""
    lane = _lane(parent, child, between) if between else parent.middle
    side = (lane > child.middle) - (lane < child.middle) if len(child.node.parents) > 1 else 0
    end = child.middle + side * _GAP
    start = f"M{parent.middle:g} {parent.bottom:g}"
    path = f"{_shift(lane - parent.middle)}V{child.y - _BETWEEN:g}" if between else ""
    return Edge(f"{start}{path}{_shift(end - lane)}", (end, child.y), bool(between))


def _lane(parent: Box, child: Box, between: Sequence[Box]) -> float:
    """Return the x coordinate at which a line passes the boxes in between, chosen for the shortest horizontal way."""
    left, right = min(box.x for box in between), max(box.right for box in between)
    clear = [x for x in (parent.middle, child.middle) if x <= left - _BULGE or x >= right + _BULGE]
    beside = (max(left - _BULGE, _EDGE), min(right + _BULGE, WIDTH - _EDGE))
    return min([*clear, *beside], key=lambda x: round(abs(x - parent.middle) + abs(x - child.middle)))


def _shift(over: float) -> str:
    """Return an SVG curve that moves sideways by `over` between two ranks."""
    bend = _BETWEEN / 2
    return f"c0 {bend:g} {over:g} {bend:g} {over:g} {_BETWEEN:g}"
