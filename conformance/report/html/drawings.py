"""SVG of diagrams, histograms, heat maps, strips, points on an axis and ranges. Pure functions.

In elements every text and every attribute is escaped. Colours are set by the page's CSS classes.
"""

from collections.abc import Iterable, Iterator
from functools import singledispatch

from markupsafe import Markup, escape

from conformance.report.document import Diagram, HeatMap, HeatStrip, Histogram, Points, Ranges
from conformance.report.html.layout import LINE, WIDTH, Box, Edge, layout

_WIDTH, _HEIGHT, _FOOT = 330.0, 130.0, 18.0  # size of a histogram, and height of its labels
_CELL, _SMALL = 12.0, 6.0  # side of a heat map's cell: the minimum with labels, and the value without labels
_ROOM = 96.0  # a labelled map with few cells has cells enlarged by up to one half, until the map has this size
_LETTER = 6.3  # width of a letter of a label
_BELOW = 3.5  # distance from the middle of a letter to its baseline
_BAR = 120.0, 10.0  # width and height of a bar of `Ranges`
_HEAD = 4.0  # half the length of an arrow's head

Value = str | float | None


def element(name: str, *children: str, **attributes: Value) -> Markup:
    """Return the element `<name …>…</name>`; texts among the children are escaped, markup is not.

    Of the attributes' Python names a trailing underscore is dropped, and other underscores become hyphens. Those that are None are
    omitted.
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_plain(v))}"' for key, v in attributes.items() if v is not None
    )
    inner = "".join(map(escape, children))
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
    """Return a text, or a number rounded to 0.01, which is finer than a screen's resolution."""
    return value if isinstance(value, str) else f"{value:.2f}".rstrip("0").rstrip(".")


@singledispatch
def drawn(found: object) -> Markup:
    """Return a drawing, or a plot in a table's cell, as SVG.

    Raises:
        TypeError: the type is no drawing and no plot.
    """
    raise TypeError(type(found).__name__)


@drawn.register
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


@drawn.register
def _(found: Histogram) -> Markup:
    """Draw the counts as bars, the first and last of which hold all values beyond the range, and the expected counts as a line."""
    top = max(*found.counts, *found.expected)
    width, room = _WIDTH / len(found.counts), _HEIGHT - _FOOT
    bars = {False: "", True: ""}
    for i, n in enumerate(found.counts):
        if n:
            path = f"M{i * width + 0.5:.1f} {room:.1f}v{-max(room * n / top, 1.0):.1f}h{width - 1.0:.1f}V{room:.1f}z"
            bars[i in (0, len(found.counts) - 1)] += path
    line = "M" + "L".join(f"{(i + 0.5) * width:.1f} {room - room * p / top:.1f}" for i, p in enumerate(found.expected))
    paths = ((bars[False], "bar"), (bars[True], "bar beyond"), (line, "predicted"))
    anchors = {0.0: "start", 1.0: "end"}
    return drawing(
        _WIDTH,
        _HEIGHT,
        found.title,
        *(element("path", d=path, class_=kind) for path, kind in paths),
        *(
            element("text", text, x=at * _WIDTH, y=_HEIGHT - 4.0, text_anchor=anchors.get(at, "middle"))
            for at, text in found.labels
        ),
    )


@drawn.register
def _(found: HeatMap) -> Markup:
    cell = min(max(_CELL, _ROOM / len(found.labels)), 1.5 * _CELL) if found.labels else _SMALL
    margin = max(map(len, found.labels)) * _LETTER + 4 if found.labels else 0.0
    size = len(found.shades)
    ground = element("rect", width=size, height=size, class_="ground")
    shaded = element("g", ground, *_shaded(found.shades, "s"), transform=f"translate({margin:g} {margin:g})scale({cell:g})")
    middles = [(label, margin + (i + 0.5) * cell + _BELOW) for i, label in enumerate(found.labels)]
    beside = (element("text", label, x=margin - 4, y=at, text_anchor="end") for label, at in middles)
    above = (element("text", label, transform=f"translate({at:g} {margin - 4:g})rotate(-90)") for label, at in middles)
    side = margin + size * cell
    return drawing(side, side, found.title, shaded, *beside, *above, class_="map")


@drawn.register
def _(found: HeatStrip) -> Markup:
    levels = tuple(level or 0 for level in found.levels)
    return drawing(len(levels), 1, found.title, *_shaded((levels,), "h"), class_="strip", preserveAspectRatio="none")


def _shaded(rows: tuple[tuple[int, ...], ...], kind: str) -> Iterable[Markup]:
    """Return one path of unit squares for each shade except 0."""
    places: dict[int, list[tuple[int, int]]] = {}
    for y, row in enumerate(rows):
        for x, shade in enumerate(row):
            places.setdefault(shade, []).append((x, y))
    return (element("path", d=cells(found), class_=f"{kind}{shade}") for shade, found in sorted(places.items()) if shade)


def cells(places: Iterable[tuple[int, int]]) -> str:
    """Return the SVG path of unit squares at (column, row), with adjacent squares of a row merged."""
    runs: list[list[int]] = []
    for column, row in sorted(places, key=lambda p: (p[1], p[0])):
        if runs and runs[-1][1] == row and runs[-1][0] + runs[-1][2] == column:
            runs[-1][2] += 1
        else:
            runs.append([column, row, 1])
    return "".join(f"M{x} {y}h{n}v1h-{n}z" for x, y, n in runs)


@drawn.register
def _(found: Points) -> Markup:
    if not any(at is not None for at in (*found.at, found.band)):
        return Markup()
    parts = [] if found.band is None else [Markup('<rect width="{}%"/>').format(round(found.band))]
    known = [at for at in found.at if at is not None]
    if found.joined and len(known) > 1:
        parts.append(Markup('<line y1="7" y2="7" x1="{:.1f}%" x2="{:.1f}%"/>').format(known[0], known[-1]))
    for i, at in enumerate(found.at):
        if at is not None:
            parts.append(Markup('<circle{} cx="{:.1f}%"/>').format(Markup(' class="last"' if i == len(found.at) - 1 else ""), at))
    return Markup('<svg aria-hidden="true">{}</svg>').format(Markup().join(parts))


@drawn.register
def _(found: Ranges) -> Markup:
    return Markup().join(_range(bar) for bar in found.bars)


def _range(bar: tuple[float, float, float, float] | None) -> Markup:
    """Draw a line from the smallest to the largest value, thick over mean ± deviation, with a mark at zero."""
    width, height = _BAR
    parts = [element("path", d=f"M{width / 2:g} 0v{height:g}", class_="zero")]
    if bar:
        least, low, high, most = (at * width / 100 for at in bar)
        parts.append(element("path", d=f"M{least:.1f} {height / 2:g}H{most:.1f}", class_="extent"))
        parts.append(element("rect", x=low, y=2, width=max(high - low, 1.0), height=height - 4, class_="spread"))
    return element("svg", *parts, viewBox=f"0 0 {width:g} {height:g}", class_="range", aria_hidden="true")
