"""The walk in Markdown, with the drawings as Mermaid, which GitHub draws. A pure function of the walk."""

from collections.abc import Iterator, Sequence

from conformance.report.markdown import cell
from conformance.report.walk.diagram import mermaid
from conformance.report.walk.parts import parts, times
from conformance.report.walk.table import STATISTICS, TITLES
from conformance.report.walk.walk import OVER, Passage, Step, Walk, rendered
from conformance.report.walk.walk_page import facts, title


def markdown(walk: Walk) -> str:
    """Tokens, drawings, a table of steps a batch, predictions."""
    return "\n".join(_lines(walk)) + "\n"


def _lines(walk: Walk) -> Iterator[str]:
    yield f"# {cell(title(walk))}"
    sides = "" if len(walk.names) == 1 else "AB"
    yield ""
    for letter, fact in zip(["", *(sides or [""])], facts(walk), strict=True):
        yield f"- {letter}{': ' if letter else ''}{cell(fact)}"
    for part in parts(walk):
        yield from ("", f"## {part.title}", "", "```mermaid", mermaid(part), "```")
    for passage in walk.passages:
        yield from ("", f"## Step by step: {cell(passage.name)}", "")
        yield from (f"{number}. {_row(passage, number)}" for number in range(passage.batch.size))
        yield from ("", *_table(passage.steps, sides))
        yield from _blanks(walk, passage)
    yield from ("", f"{OVER} Struck out: tokens that are not attended to.")


def _row(passage: Passage, number: int) -> str:
    return " ".join(cell(t.text) if t.attended else f"~~{cell(t.text)}~~" for t in passage.tokens[number])


def _table(steps: Sequence[Step], sides: str) -> Iterator[str]:
    heads = [f"{TITLES[name]} {letter}".strip() for name in STATISTICS for letter in sides or [""]]
    heads += ["largest difference"] if sides else []
    yield f"| activation | shape | {' | '.join(heads)} | equation | from |"
    yield f"| --- | --- |{' ---: |' * len(heads)} --- | --- |"
    for step in steps:
        numbers = [rendered(getattr(side, name) if side else None) for name in STATISTICS for side in step.sides]
        numbers += [rendered(step.largest)] if sides else []
        parents = ", ".join(f"`{p}`" for p in step.row.parents)
        yield f"| `{step.row.name}` | {times(step.shape)} | {' | '.join(numbers)} | {cell(step.row.equation)} | {parents} |"


def _blanks(walk: Walk, passage: Passage) -> Iterator[str]:
    if not passage.blanks:
        return
    yield from ("", "| `[MASK]` at |" + "".join(f" {cell(name)} |" for name in walk.names))
    yield f"| --- |{' --- |' * len(walk.names)}"
    for blank in passage.blanks:
        guesses = (", ".join(f"{cell(g.token)} {g.probability:.3g}" for g in side) or "not shown" for side in blank.guesses)
        yield f"| row {blank.row}, position {blank.position} | {' | '.join(guesses)} |"
