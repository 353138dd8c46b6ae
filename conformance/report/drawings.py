"""Drawings of a page: points, ranges and strips in the cells of tables, histograms and heat maps. Pure functions.

Points and ranges are elements whose positions the style sheet reads; the others are inline SVG. Colours are set by the style sheet.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from conformance.judge.error_distribution import REACH, STEP

_WIDTH, _HEIGHT, _FOOT = 330.0, 130.0, 18.0  # size of a histogram, and height of its labels
_CELL, _SMALL = 12.0, 6.0  # side of a heat map's cell with labels, and without
_LETTER = 6.3  # width of a letter of a label


@dataclass(frozen=True)
class Points:
    """A hollow and a filled point in percent of a cell's width, and the band of allowed values; None for one that is not drawn."""

    first: float | None
    last: float | None
    band: float | None = None


@dataclass(frozen=True)
class Ranges:
    """A bar for each series: smallest value, mean − deviation, mean + deviation and largest value in percent, with zero at 50."""

    bars: tuple[tuple[float, float, float, float] | None, ...]


@dataclass(frozen=True)
class HeatStrip:
    """A strip with one heat level, 0 to 5, for each slice of an axis, and its description."""

    levels: tuple[int | None, ...]
    title: str


@dataclass(frozen=True)
class Histogram:
    """A histogram of residuals in σ, beside a normal distribution of one σ; bins as in `judge.error_distribution`."""

    counts: tuple[int, ...]


@dataclass(frozen=True)
class HeatMap:
    """A square map of shades, 0 to 6, with the labels of both axes, which may be empty, and its description."""

    shades: tuple[tuple[int, ...], ...]
    labels: tuple[str, ...]
    title: str


Drawing = Points | Ranges | HeatStrip | Histogram | HeatMap


def drawn(drawing: Drawing) -> Markup:
    """Return the HTML of a drawing, on one line."""
    match drawing:
        case Points(first, last, band):
            return _positioned("points", {"first": first, "last": last, "band": band})
        case Ranges(bars):
            names = ("least", "low", "high", "most")
            return Markup("").join(_positioned("range", dict(zip(names, bar or (None,) * 4, strict=True))) for bar in bars)
        case HeatStrip(levels, title):
            return _svg(len(levels), 1, title, *_shaded([levels], "h"), class_="strip", preserveAspectRatio="none")
        case Histogram(counts):
            return _histogram(counts)
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


def _positioned(kind: str, places: Mapping[str, float | None]) -> Markup:
    style = ";".join(f"--{name}:{at:.1f}%" for name, at in places.items() if at is not None)
    return element("i", class_=kind, style=style)


def _svg(width: float, height: float, title: str, *children: str, **attributes: str | float) -> Markup:
    box = f"0 0 {_short(width)} {_short(height)}"
    return element("svg", *children, viewBox=box, width=width, height=height, role="img", aria_label=title, **attributes)


def _histogram(counts: Sequence[int]) -> Markup:
    """Draw the counts as bars, the first and last of which hold all values beyond the range, and the expected counts as a line."""
    total, bins = sum(counts), len(counts)
    expected = [total * _normal(i, bins) for i in range(bins)]
    top, width, room = max(*counts, *expected), _WIDTH / bins, _HEIGHT - _FOOT
    bars = {False: "", True: ""}
    for i, n in enumerate(counts):
        if n:
            bars[i in (0, bins - 1)] += (
                f"M{i * width + 0.5:.1f} {room:.1f}v{-max(room * n / top, 1.0):.1f}h{width - 1.0:.1f}V{room:.1f}z"
            )
    line = "M" + "L".join(f"{(i + 0.5) * width:.1f} {room - room * p / top:.1f}" for i, p in enumerate(expected))
    labels = [(0.0, f"< −{REACH:g}", "start"), (1.0, f"> {REACH:g}", "end")]
    labels += [(0.5 + at / STEP / bins, f"{at:g}{' σ' if at == 0.0 else ''}", "middle") for at in (-REACH / 2.0, 0.0, REACH / 2.0)]
    return _svg(
        _WIDTH,
        _HEIGHT,
        f"{total} residuals, {counts[0] + counts[-1]} of them beyond {REACH:g} sigma, beside a normal distribution of one sigma",
        *(element("path", d=d, class_=kind) for d, kind in ((bars[False], "bar"), (bars[True], "bar beyond"), (line, "predicted"))),
        *(element("text", text, x=at * _WIDTH, y=_HEIGHT - 4.0, text_anchor=anchor) for at, text, anchor in labels),
    )


def _normal(index: int, bins: int) -> float:
    """Return the probability of a bin under a normal distribution of one sigma; the first and the last bin include the tails."""
    low = -math.inf if index == 0 else -REACH + (index - 1) * STEP
    high = math.inf if index == bins - 1 else -REACH + index * STEP
    return 0.5 * (math.erf(high / math.sqrt(2.0)) - math.erf(low / math.sqrt(2.0)))


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
