"""Drawings of a page, in the cells of tables. Pure functions.

Points are an element whose positions the style sheet reads; strips are inline SVG. Colours are set by the style sheet.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from markupsafe import Markup, escape


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


Drawing = Points | HeatStrip


def drawn(drawing: Drawing) -> Markup:
    """Return the HTML of a drawing, on one line."""
    if isinstance(drawing, Points):
        places = {"first": drawing.first, "last": drawing.last, "band": drawing.band}
        style = ";".join(f"--{name}:{at:.1f}%" for name, at in places.items() if at is not None)
        return _element("i", class_="points", style=style)
    paths = (_element("path", d=path, class_=f"h{level}") for level, path in sorted(_paths(drawing.levels).items()))
    size = {"viewBox": f"0 0 {len(drawing.levels)} 1", "width": str(len(drawing.levels)), "height": "1"}
    return _element("svg", *paths, **size, role="img", aria_label=drawing.title, class_="strip", preserveAspectRatio="none")


def _element(name: str, *children: str, **attributes: str) -> Markup:
    """Return the element `<name …>…</name>`, with texts escaped.

    Of the attributes' Python names a trailing underscore is dropped, and other underscores become hyphens.
    """
    written = "".join(f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"' for key, value in attributes.items())
    return Markup(f"<{name}{written}>{''.join(map(escape, children))}</{name}>".replace("|", "&#124;"))


def _paths(levels: Sequence[int | None]) -> dict[int, str]:
    """Return one path of unit squares for each level except 0, with adjacent squares merged."""
    paths: dict[int, str] = {}
    start = 0
    for level, run in groupby(levels):
        width = len(list(run))
        if level:
            paths[level] = paths.get(level, "") + f"M{start} 0h{width}v1h-{width}z"
        start += width
    return paths
