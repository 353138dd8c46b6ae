"""Drawings of a page, in the cells of tables, and numbers in sigma. Pure functions.

Points are an element whose positions the style sheet reads; strips are inline SVG. Colours are set by the style sheet.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from markupsafe import Markup, escape

LEAST = -2  # decade at which an axis begins; errors below a hundredth of a sigma are negligible


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


@dataclass(frozen=True)
class Axis:
    """A logarithmic axis from 10^LEAST to 10^most sigma; smaller and larger values are drawn at its ends.

    Positions are percentages of the plot's width, so that it fits any screen.
    """

    most: int

    def at(self, value: float | None) -> float | None:
        """Return the position of a value in sigma, in percent of the width; None for None."""
        if value is None:
            return None
        decade = math.log10(value) if value > 0.0 else LEAST
        return 100.0 * min(max((decade - LEAST) / (self.most - LEAST), 0.0), 1.0)

    @property
    def reach(self) -> str:
        """The ends of the axis in words."""
        return f"from {10.0**LEAST:g} to 1e{self.most} σ, logarithmic"


def axis_of(values: Iterable[float | None]) -> Axis:
    """Return an axis that reaches the largest finite value, and at least 100 sigma."""
    largest = max((v for v in values if v and math.isfinite(v)), default=1.0)
    return Axis(max(2, math.ceil(math.log10(largest))))


# An error of more σ than float64 has digits: σ is at least the rounding of the expected value, so that is 0 beside the error.
LARGEST = 2.0**53


def bounded(value: float) -> str:
    """Return a number with three significant digits, or `over 9e+15` beyond `LARGEST`."""
    return f"{value + 0.0:.3g}" if abs(value) <= LARGEST else f"over {LARGEST:.0e}"  # -0.0 + 0.0 is 0.0


def sigma(value: float | None, none: str = "-") -> str:
    """Return a number with three significant digits, at most `LARGEST`, and the unit σ, or `none` if there is no value."""
    return none if value is None else f"{bounded(value)} σ"
