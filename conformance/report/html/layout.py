"""Where the boxes and lines of a drawing stand: from the top down, a box's rank being its longest path from the top.

Units are those of the drawing; at full size one is a CSS pixel. It is as narrow as a telephone, so that text keeps its size.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from conformance.report.document import DiagramNode

WIDTH = 376.0
_MARGIN = 12.0  # room at the sides for lines that go around
_GAP = 8.0  # between boxes of a rank
_BULGE = 20.0  # between a box and a line that passes it, where there is room
_EDGE = 5.0  # between the edge of the drawing and a line
_TURN = 11.0  # the radius of a line's corners
_WIDEST = 228.0  # a box alone in its rank
_BETWEEN = 2 * _TURN  # ranks
_PADDING = 4.0
LINE = 14.0
_NAME, _TEXT = 6.85, 6.4  # the widest advance of a monospaced letter, and a safe mean of others, at 11 units

Direction = Literal["down", "left", "right"]


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

    @property
    def centre(self) -> float:
        """Of its height."""
        return self.y + self.height / 2


@dataclass(frozen=True)
class Edge:
    """A line from a parent: an SVG path, where its head points, and whether it passes ranks in between."""

    path: str
    end: tuple[float, float]
    direction: Direction
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
    edges = [
        _edge(boxes[parent], boxes[node.name], [[boxes[n.name] for n in rank] for rank in ranks], rank_of)
        for node in nodes
        for parent in node.parents
    ]
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


def _edge(parent: Box, child: Box, ranks: Sequence[Sequence[Box]], rank_of: Mapping[str, int]) -> Edge:
    above, below = rank_of[parent.node.name], rank_of[child.node.name]
    if below == above + 1:
        return _straight(parent, child)
    between = [box for rank in ranks[above + 1 : below] for box in rank]
    return _around(parent, child, _lane(parent, child, between), ranks[above], ranks[below])


def _straight(parent: Box, child: Box) -> Edge:
    """A curve from the parent's lower edge to the child's upper one, there beside the other parents' ends."""
    parents = child.node.parents
    x = child.middle + (parents.index(parent.node.name) - (len(parents) - 1) / 2) * 2 * _GAP if len(parents) > 2 else child.middle
    if len(parents) == 2:  # to the side on which the parent stands
        x += _GAP * ((parent.middle > child.middle) - (parent.middle < child.middle))
    bend = (child.y - parent.bottom) / 2
    path = f"M{parent.middle:g} {parent.bottom:g}c0 {bend:g} {x - parent.middle:g} {bend:g} {x - parent.middle:g} {2 * bend:g}"
    return Edge(path, (x, child.y), "down", False)


def _lane(parent: Box, child: Box, between: Sequence[Box]) -> float:
    """Where a line passes the boxes in between, with the shortest way to the sides."""
    left, right = min(box.x for box in between), max(box.right for box in between)
    clear = [x for x in (parent.middle, child.middle) if x <= left - _BULGE or x >= right + _BULGE]
    beside = (max(left - _BULGE, _EDGE), min(right + _BULGE, WIDTH - _EDGE))
    return min([*clear, *beside], key=lambda x: round(abs(x - parent.middle) + abs(x - child.middle)))


def _around(parent: Box, child: Box, lane: float, beside: Sequence[Box], along: Sequence[Box]) -> Edge:
    """Out of the parent, down the lane, into the child: at their sides where no other box is in the way, else above and below."""
    start = _start(parent, lane, beside)
    if not _free(child, lane, along):
        path = f"{start}V{child.y - _BETWEEN:g}{_shift(child.middle - lane)}"
        return Edge(path, (child.middle, child.y), "down", True)
    turn, side = (_TURN, child.x) if lane < child.middle else (-_TURN, child.right)
    path = f"{start}V{child.centre - _TURN:g}q0 {_TURN:g} {turn:g} {_TURN:g}H{side:g}"
    return Edge(path, (side, child.centre), "right" if turn > 0 else "left", True)


def _start(box: Box, lane: float, others: Sequence[Box]) -> str:
    """From the box to the lane; at the side below the middle, where lines come in."""
    if not _free(box, lane, others):
        return f"M{box.middle:g} {box.bottom:g}{_shift(lane - box.middle)}"
    turn, side = (_TURN, box.right) if lane > box.middle else (-_TURN, box.x)
    y = box.centre + box.height / 4
    return f"M{side:g} {y:g}H{lane - turn:g}q{turn:g} 0 {turn:g} {_TURN:g}"


def _shift(over: float) -> str:
    """A curve to the side in the room between two ranks."""
    return f"c0 {_TURN:g} {over:g} {_TURN:g} {over:g} {_BETWEEN:g}"


def _free(box: Box, lane: float, others: Sequence[Box]) -> bool:
    """Whether the lane is beside the box with nothing in between."""
    low, high = sorted((lane, box.middle))
    return not box.x <= lane <= box.right and not any(o is not box and o.right > low and o.x < high for o in others)
