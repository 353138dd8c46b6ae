"""The walk for a terminal or a pipe: tokens first, then a line an activation, by layer. It prints on the console that is given."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from rich.console import Console
from rich.table import Table
from rich.text import Text

from conformance.traces.page import facts, title
from conformance.traces.parts import times
from conformance.traces.steps import STATISTICS, TITLES
from conformance.traces.walk import OVER, Passage, Step, Token, Walk, placed, told

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


def tell(walk: Walk, console: Console, *, compact: bool) -> None:
    """Print it; `compact`, as on a terminal, tells each part of a name once, and as many columns as there is room for."""
    console.print(Text(title(walk), "bold"))
    sides = "" if len(walk.names) == 1 else "AB"
    for letter, fact in zip([" ", *(sides or " ")], facts(walk), strict=True):
        console.print(Text(f"{letter} {fact}" if sides else fact))
    for passage in walk.passages:
        console.print()
        _passage(walk, passage, sides, console, compact)
    console.print(Text(f"\n{OVER}", "dim" if compact else ""))


def _passage(walk: Walk, passage: Passage, sides: str, console: Console, compact: bool) -> None:
    several = len(walk.passages) > 1
    if several:
        console.print(Text(f"{passage.name}, {times(passage.batch.input_ids.shape)} tokens", "bold"))
    for number, row in enumerate(passage.tokens):
        console.print(Text(f"{number}  ").append_text(_tokens(row)))
    console.print()
    console.print(_table(passage, sides, console.width, compact))
    for blank in passage.blanks:
        for name, guesses in zip(walk.names, blank.guesses, strict=True):
            found = ", ".join(f"{g.token} {g.probability:.3g}" for g in guesses) or "not shown"
            who = f", {name}" if sides else ""
            console.print(Text(f"\n[MASK] at row {blank.row}, position {blank.position}{who}: {found}"))


def _tokens(row: Sequence[Token]) -> Text:
    """In parentheses what is not attended to, equal ones told once."""
    line = Text()
    for (text, attended, blank), found in groupby(row, lambda t: (t.text, t.attended, t.blank)):
        count = len(list(found))
        if attended:
            line.append(f"{text} " * count, "bold yellow" if blank else "")
        else:
            line.append(f"({text}) " if count == 1 else f"({count} × {text}) ", "dim")
    line.rstrip()
    return line


def _table(passage: Passage, sides: str, width: int, compact: bool) -> Table:
    """Activations down; the columns that fit."""
    names = list(_names(passage.steps, compact))
    first = max(len(name) for name, _ in names)
    columns = _fitting(_columns(passage.steps, sides, compact), width - first)
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    table.add_column("activation", no_wrap=True)
    for column in columns:
        table.add_column(column.head, justify="right" if column.number else "left", no_wrap=True)
    for name, at in names:
        if at is None:
            table.add_row(Text(name, "bold"))
        else:
            quiet = "dim" if compact and passage.steps[at].row.kind == "copy" else ""
            table.add_row(Text(name), *(Text(column.cells[at]) for column in columns), style=quiet)
    return table


def _names(steps: Sequence[Step], compact: bool) -> Iterator[tuple[str, int | None]]:
    """What stands in the first column, and which step it is: full names, or their parts below one another, which are no steps."""
    before: tuple[str, ...] = ()
    for at, step in enumerate(steps):
        if not compact:
            yield step.row.name, at
            continue
        part, name = placed(step.row)
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
        yield (Column("difference", tuple(told(s.largest) for s in steps)),)
    for name in _ORDER:
        yield tuple(_statistic(steps, name, side, letter) for side, letter in enumerate(sides or [""]))
    yield (Column("equation", tuple(s.row.equation for s in steps), number=False),)
    yield (Column("from", tuple(_parents(s, compact) for s in steps), number=False),)


def _parents(step: Step, compact: bool) -> str:
    """Full names, or, where names are told in parts, those of the same part of the network without it."""
    part = placed(step.row)[0].replace("layer ", "encoder.layer.")
    return ", ".join(name.removeprefix(f"{part}." if compact else "") for name in step.row.parents)


def _statistic(steps: Sequence[Step], name: str, side: int, letter: str) -> Column:
    cells = (told(getattr(found, name)) if (found := s.sides[side]) else "-" for s in steps)
    return Column(f"{TITLES[name]} {letter}".strip(), tuple(cells))


def _fitting(groups: Iterator[tuple[Column, ...]], room: int) -> list[Column]:
    """As many as there is room for, in the order in which they are read."""
    kept = []
    for group in groups:
        needed = sum(column.width + 1 for column in group)
        if needed > room:
            break
        kept.append(group)
        room -= needed
    order = ["shape", *(TITLES[name] for name in STATISTICS), "difference", "equation", "from"]
    return [column for group in sorted(kept, key=lambda g: order.index(g[0].head.removesuffix(" A"))) for column in group]
