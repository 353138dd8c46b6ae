"""The walk for a terminal or a pipe: tokens first, then a line an activation, by layer. It prints on the console that is given."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from rich.console import Console
from rich.text import Text

from conformance.model.activations import placed
from conformance.names import printable
from conformance.report.walk.parts import times
from conformance.report.walk.table import STATISTICS, TITLES
from conformance.report.walk.walk import OVER, Passage, Step, Token, Walk, rendered
from conformance.report.walk.walk_page import facts, title

_ORDER = ("mean", "rms", "deviation", "least", "most")  # of the statistics, what is shown first where there is little room


@dataclass(frozen=True)
class Column:
    """A column: its head, and a cell a step."""

    head: str
    cells: tuple[str, ...]
    number: bool = True

    @property
    def width(self) -> int:
        """Letters of its widest cell."""
        return max(map(len, (self.head, *self.cells)))

    def padded(self, text: str) -> str:
        """A cell as wide as the column."""
        return text.rjust(self.width) if self.number else text.ljust(self.width)


def render(walk: Walk, console: Console, *, compact: bool) -> None:
    """Print it; `compact`, as on a terminal, reports each part of a name once, and as many columns as there is room for."""
    console.print(Text(printable(title(walk)), "bold"))
    sides = "" if len(walk.names) == 1 else "AB"
    for letter, fact in zip([" ", *(sides or " ")], facts(walk), strict=True):
        console.print(Text(printable(f"{letter} {fact}" if sides else fact)))
    for passage in walk.passages:
        console.print()
        _passage(walk, passage, sides, console, compact)
    console.print(Text(f"\n{OVER}", "dim" if compact else ""))


def _passage(walk: Walk, passage: Passage, sides: str, console: Console, compact: bool) -> None:
    several = len(walk.passages) > 1
    if several:
        console.print(Text(f"{printable(passage.name)}, {times(passage.batch.input_ids.shape)} tokens", "bold"))
    for number, row in enumerate(passage.tokens):
        console.print(Text(f"{number}  ").append_text(_tokens(row)))
    console.print()
    for line in _table(passage, sides, console.width, compact):
        console.print(line, soft_wrap=True)
    for blank in passage.blanks:
        for name, guesses in zip(walk.names, blank.guesses, strict=True):
            found = ", ".join(f"{g.token} {g.probability:.3g}" for g in guesses) or "not shown"
            who = f", {name}" if sides else ""
            console.print()
            console.print(Text(printable(f"[MASK] at row {blank.row}, position {blank.position}{who}: {found}")))


def _tokens(row: Sequence[Token]) -> Text:
    """In parentheses what is not attended to, equal ones shown once."""
    line = Text()
    for (text, attended, blank), found in groupby(row, lambda t: (printable(t.text), t.attended, t.blank)):
        count = len(list(found))
        if attended:
            line.append(f"{text} " * count, "bold yellow" if blank else "")
        else:
            line.append(f"({text}) " if count == 1 else f"({count} × {text}) ", "dim")
    line.rstrip()
    return line


def _table(passage: Passage, sides: str, width: int, compact: bool) -> Iterator[Text]:
    """Activations down; in `compact` form as many columns as fit."""
    names = list(_names(passage.steps, compact))
    first = max(len(name) for name, _ in names)
    columns = _read(_fitting(_columns(passage.steps, sides, compact), width - first if compact else sys.maxsize))
    yield Text(_line("activation".ljust(first), (column.padded(column.head) for column in columns)), "bold")
    for name, at in names:
        if at is None:
            yield Text(name, "bold")
        else:
            quiet = "dim" if compact and passage.steps[at].row.kind == "copy" else ""
            yield Text(_line(name.ljust(first), (column.padded(column.cells[at]) for column in columns)), quiet)


def _line(name: str, cells: Iterable[str]) -> str:
    return " ".join((name, *cells)).rstrip()


def _names(steps: Sequence[Step], compact: bool) -> Iterator[tuple[str, int | None]]:
    """What stands in the first column, and which step it is: full names, or their parts below one another, which are no steps."""
    before: tuple[str, ...] = ()
    for at, step in enumerate(steps):
        if not compact:
            yield step.row.name, at
            continue
        part, name = placed(step.row.name)
        module, _, last = name.rpartition(".")
        path = (part, module) if module else (part,)
        for depth, piece in enumerate(path):
            if path[: depth + 1] != before[: depth + 1]:
                yield f"{'  ' * depth}{piece}", None
        before = path
        yield f"{'  ' * len(path)}{last}", at


def _columns(steps: Sequence[Step], sides: str, compact: bool) -> Iterator[tuple[Column, ...]]:
    """Groups of columns that belong together, those that matter most first."""
    shape = tuple(times(s.shape).replace(" ", "" if compact else " ") for s in steps)
    yield (Column("shape", shape, number=False),)
    if sides:
        yield (Column("difference", tuple(rendered(s.largest) for s in steps)),)
    for name in _ORDER:
        yield tuple(_statistic(steps, name, side, letter) for side, letter in enumerate(sides or [""]))
    yield (Column("equation", tuple(s.row.equation for s in steps), number=False),)
    if compact:
        yield (Column("from", tuple(_parents(s) for s in steps), number=False),)


def _parents(step: Step) -> str:
    """Names, those of the same part of the network without it."""
    part = step.row.name.removesuffix(placed(step.row.name)[1])
    return ", ".join(name.removeprefix(part) for name in step.row.parents)


def _statistic(steps: Sequence[Step], name: str, side: int, letter: str) -> Column:
    cells = (rendered(getattr(found, name)) if (found := s.sides[side]) else "-" for s in steps)
    return Column(f"{TITLES[name]} {letter}".strip(), tuple(cells))


def _fitting(groups: Iterable[tuple[Column, ...]], room: int) -> list[Column]:
    """As many as there is room for."""
    kept: list[Column] = []
    for group in groups:
        needed = sum(column.width + 1 for column in group)
        if needed > room:
            break
        kept += group
        room -= needed
    return kept


def _read(columns: Sequence[Column]) -> list[Column]:
    """In the order in which they are read."""
    order = ["shape", *(TITLES[name] for name in STATISTICS), "difference", "equation", "from"]
    return sorted(columns, key=lambda column: order.index(column.head.removesuffix(" A").removesuffix(" B")))
