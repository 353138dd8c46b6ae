"""Where the boxes and lines of a drawing stand: from the top down, a box's rank being its longest path from the top.

Units are those of the drawing; at full size one is a CSS pixel. It is as narrow as a telephone, so that text keeps its size.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from conformance.report.document import DiagramNode

WIDTH = 376.0
_MARGIN = 12.0  # room at the sides for lines that go around
_GAP = 8.0  # between boxes of a rank
_BULGE = 20.0  # between a box and a line that passes it, where there is room
_EDGE = 5.0  # between the edge of the drawing and a line
_WIDEST = 228.0  # a box alone in its rank
_BETWEEN = 22.0  # ranks
_PADDING = 4.0
LINE = 14.0
_NAME, _TEXT = 6.85, 6.4  # the widest advance of a monospaced letter, and a safe mean of others, at 11 units


@dataclass(frozen=True)
class DrawnLine:
    """A line of text in a box: `name`, `formula` or `shape`."""

    text: str
    kind: str


@dataclass(frozen=True)
class Box:
    """A node's place: its upper left corner, its size and its lines."""

    node: DiagramNode
    x: float
    y: float
    width: float
    height: float
    lines: tuple[DrawnLine, ...]

    @property
    def middle(self) -> float:
        """Of its width."""
        return self.x + self.width / 2

    @property
    def right(self) -> float:
        """Its right edge."""
        return self.x + self.width

    @property
    def bottom(self) -> float:
        """Its lower edge."""
        return self.y + self.height


@dataclass(frozen=True)
class Edge:
    """A line from a parent: an SVG path, where it ends, and whether it passes ranks in between."""

    path: str
    end: tuple[float, float]
    skip: bool


@dataclass(frozen=True)
class DiagramLayout:
    """A drawing's boxes and lines, and its height."""

    boxes: tuple[Box, ...]
    edges: tuple[Edge, ...]
    height: float


def layout(nodes: Sequence[DiagramNode]) -> DiagramLayout:
    """Of nodes in an order in which parents come first."""
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
    """Nodes by the length of the longest path to them."""
    rank: dict[str, int] = {}
    for node in nodes:
        rank[node.name] = 1 + max((rank[p] for p in node.parents), default=-1)
    return [[node for node in nodes if rank[node.name] == r] for r in range(max(rank.values()) + 1)]


def _boxes(ranks: Sequence[Sequence[DiagramNode]]) -> dict[str, Box]:
    """Rank below rank, each node as near as its order allows to the middle of its parents."""
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
    """Name, equation and shape, each broken to fit."""
    advances = {"name": _NAME, "formula": _TEXT, "shape": _TEXT}
    return tuple(
        DrawnLine(piece, kind)
        for kind, text in zip(advances, node.lines, strict=False)
        for piece in wrapped(text, int(room / advances[kind]))
    )


def wrapped(text: str, letters: int) -> list[str]:
    """Lines of at most so many letters, broken after a space, a dot, an underscore or a slash; where there is none, anywhere."""
    lines = [""]
    for piece in re.findall(r"[^ ._/]*[ ._/]|[^ ._/]+", text):
        if len(lines[-1]) + len(piece.rstrip()) <= letters:
            lines[-1] += piece
            continue
        lines += [piece[i : i + letters] for i in range(0, len(piece), letters)]
    return [line.strip() for line in lines if line.strip()]


def _edge(parent: Box, child: Box, between: Sequence[Box]) -> Edge:
    """From the parent's lower edge, past the boxes in between, to the child's upper edge, there on the side that it comes from."""
    lane = _lane(parent, child, between) if between else parent.middle
    side = (lane > child.middle) - (lane < child.middle) if len(child.node.parents) > 1 else 0
    end = child.middle + side * _GAP
    start = f"M{parent.middle:g} {parent.bottom:g}"
    path = f"{_shift(lane - parent.middle)}V{child.y - _BETWEEN:g}" if between else ""
    return Edge(f"{start}{path}{_shift(end - lane)}", (end, child.y), bool(between))


def _lane(parent: Box, child: Box, between: Sequence[Box]) -> float:
    """Where a line passes the boxes in between, with the shortest way to the sides."""
    left, right = min(box.x for box in between), max(box.right for box in between)
    clear = [x for x in (parent.middle, child.middle) if x <= left - _BULGE or x >= right + _BULGE]
    beside = (max(left - _BULGE, _EDGE), min(right + _BULGE, WIDTH - _EDGE))
    return min([*clear, *beside], key=lambda x: round(abs(x - parent.middle) + abs(x - child.middle)))


def _shift(over: float) -> str:
    """A curve to the side in the room between two ranks."""
    bend = _BETWEEN / 2
    return f"c0 {bend:g} {over:g} {bend:g} {over:g} {_BETWEEN:g}"
