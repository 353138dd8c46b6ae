"""The steps of a walk as a table for a page: grouped by layer, with the range of each on one scale. Pure functions of walks."""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from markupsafe import Markup

from conformance.model.activations import placed
from conformance.report.html.svg import element
from conformance.report.walk.parts import times
from conformance.report.walk.walk import Passage, Statistics, Step, rendered

STATISTICS = ("mean", "deviation", "least", "most", "rms")
TITLES = {**{name: name for name in STATISTICS}, "least": "min", "most": "max"}
BUDGET = 1_400  # rows of a page, each a side

_WIDTH, _HEIGHT = 120.0, 10.0


@dataclass(frozen=True)
class StepLine:
    """One step.

    Attributes:
        name: within the group, with places at which it may be broken.
        equation, shape: what it is.
        ranges: its extent, one a side.
        numbers: in the order of the table's columns.
        copy: whether it is its parent's value.
    """

    name: Markup
    equation: str
    shape: str
    ranges: tuple[Markup, ...]
    numbers: tuple[str, ...]
    copy: bool


@dataclass(frozen=True)
class StepTable:
    """The steps of one batch, by the part of the network."""

    batch: str
    groups: tuple[tuple[str, tuple[StepLine, ...]], ...]


@dataclass(frozen=True)
class Steps:
    """The batches whose steps are shown, and the names of those that are left out."""

    tables: tuple[StepTable, ...]
    left_out: tuple[str, ...]


def steps(passages: Sequence[Passage], budget: int = BUDGET) -> Steps:
    """Of as many batches as a page may hold, of the first in any case."""
    tables: list[StepTable] = []
    for passage in passages:
        budget -= sum(len(step.sides) for step in passage.steps)
        if budget < 0 and tables:
            break
        tables.append(table(passage))
    return Steps(tuple(tables), tuple(p.name for p in passages[len(tables) :]))


def table(passage: Passage) -> StepTable:
    """Every step, by the part of the network."""
    ends = (end for step in passage.steps for side in step.sides if side for end in (-side.least, side.most))
    reach = max((end for end in ends if math.isfinite(end)), default=0.0) or 1.0
    groups = groupby(passage.steps, lambda step: placed(step.row.name)[0])
    return StepTable(passage.name, tuple((title, tuple(_line(step, reach) for step in found)) for title, found in groups))


def _line(step: Step, reach: float) -> StepLine:
    numbers = [rendered(getattr(side, name) if side else None) for name in STATISTICS for side in step.sides]
    numbers += [rendered(step.largest)] if len(step.sides) > 1 else []
    ranges = tuple(range_of(side, reach) for side in step.sides)
    name = Markup("<wbr>").join(re.split(r"(?<=[._])", placed(step.row.name)[1]))
    return StepLine(name, step.row.equation, times(step.shape), ranges, tuple(numbers), step.row.kind == "copy")


def range_of(side: Statistics | None, reach: float) -> Markup:
    """A line from the least to the most, thick at mean ± deviation, on a scale of asinh x from −`reach` to `reach`; zero is marked.

    asinh x is x near zero and ± ln 2|x| far from it, so that small and large activations are seen on one scale. What is not finite
    has no line.
    """
    zero = element("path", d=f"M{_WIDTH / 2:g} 0v{_HEIGHT:g}", class_="zero")
    bars: Iterable[Markup] = ()
    if side and all(map(math.isfinite, (side.least, side.most, side.deviation))):
        scale = _WIDTH / 2 / math.asinh(reach)
        ends = (side.least, max(side.least, side.mean - side.deviation), min(side.most, side.mean + side.deviation), side.most)
        least, low, high, most = (_WIDTH / 2 + scale * math.asinh(value) for value in ends)
        bars = (
            element("path", d=f"M{least:.1f} {_HEIGHT / 2:g}H{most:.1f}", class_="extent"),
            element("rect", x=low, y=2, width=max(high - low, 1.0), height=_HEIGHT - 4, class_="spread"),
        )
    return element("svg", zero, *bars, viewBox=f"0 0 {_WIDTH:g} {_HEIGHT:g}", aria_hidden="true")
