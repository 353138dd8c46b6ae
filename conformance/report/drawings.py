"""Drawings of a page: points and strips in the cells of tables, and heat maps. Pure functions.

Points are an element whose positions the style sheet reads; the others are inline SVG. Colours are set by the style sheet.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

_CELL, _SMALL = 12.0, 6.0  # side of a heat map's cell with labels, and without
_LETTER = 6.3  # width of a letter of a label


@dataclass(frozen=True)
class Points:
    """A hollow and a filled point in percent of a cell's width, and the band of allowed values; None for one that is not drawn."""

    first: float | None
    last: float | None
    band: float | None = None


@dataclass(frozen=True)
class HeatStrip:
    """A strip with one heat level, 0 to 5, for each slice of an axis, and its description."""

    levels: tuple[int | None, ...]
    title: str


@dataclass(frozen=True)
class HeatMap:
    """A square map of shades, 0 to 6, with the labels of both axes, which may be empty, and its description."""

    shades: tuple[tuple[int, ...], ...]
    labels: tuple[str, ...]
    title: str


Drawing = Points | HeatStrip | HeatMap


def drawn(drawing: Drawing) -> Markup:
    """Return the HTML of a drawing, on one line."""
    match drawing:
        case Points(first, last, band):
            places = {"first": first, "last": last, "band": band}
            style = ";".join(f"--{name}:{at:.1f}%" for name, at in places.items() if at is not None)
            return element("i", class_="points", style=style)
        case HeatStrip(levels, title):
            return _svg(len(levels), 1, title, *_shaded([levels], "h"), class_="strip", preserveAspectRatio="none")
        case HeatMap():
            return _map(drawing)


def element(name: str, *children: str, **attributes: str | float) -> Markup:
    """Return the element `<name …>…</name>`, with texts escaped.

    Of the attributes' Python names a trailing underscore is dropped, and other underscores become hyphens.
    """
    written = "".join(f' {key.rstrip("_").replace("_", "-")}="{escape(_short(v))}"' for key, v in attributes.items())
    return Markup(f"<{name}{written}>{''.join(map(escape, children))}</{name}>".replace("|", "&#124;"))


def _short(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.2f}".rstrip("0").rstrip(".")


def _svg(width: float, height: float, title: str, *children: str, **attributes: str | float) -> Markup:
    box = f"0 0 {_short(width)} {_short(height)}"
    return element("svg", *children, viewBox=box, width=width, height=height, role="img", aria_label=title, **attributes)


def _map(found: HeatMap) -> Markup:
    cell = _CELL if found.labels else _SMALL
    margin = max(map(len, found.labels)) * _LETTER + 4 if found.labels else 0.0
    size = len(found.shades)
    ground = element("rect", width=size, height=size, class_="ground")
    shaded = element("g", ground, *_shaded(found.shades, "s"), transform=f"translate({margin:g} {margin:g})scale({cell:g})")
    middles = [(label, margin + (i + 0.8) * cell) for i, label in enumerate(found.labels)]
    beside = (element("text", label, x=margin - 4, y=at, text_anchor="end") for label, at in middles)
    above = (element("text", label, transform=f"translate({at:g} {margin - 4:g})rotate(-90)") for label, at in middles)
    side = margin + size * cell
    return _svg(side, side, found.title, shaded, *beside, *above, class_="map")


def _shaded(rows: Sequence[Sequence[int | None]], kind: str) -> Iterable[Markup]:
    """Return one path of unit squares for each shade except 0, with adjacent squares of a row merged."""
    paths: dict[int, str] = {}
    for y, row in enumerate(rows):
        start = 0
        for x in range(1, len(row) + 1):
            if x == len(row) or row[x] != row[start]:
                if shade := row[start]:
                    paths[shade] = paths.get(shade, "") + f"M{start} {y}h{x - start}v1h-{x - start}z"
                start = x
    return (element("path", d=path, class_=f"{kind}{shade}") for shade, path in sorted(paths.items()))
