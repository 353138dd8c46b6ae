"""The terms of reports, of `--help` and of the README, from `terms.md`: their meaning, and how they are computed.

Adding a term: a heading in that file; `report.run` prints those that a failing report uses.
"""

import re
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import NamedTuple

from conformance.glossary.entry import Section, joined
from conformance.numerics.thresholds import FALSE_ALARM_TEXT

_ALSO = "Also: "
_INDEX = re.compile(r" \d+( to \d+)?$")  # as in `layer 0`, `positions 1 to 15`


class Term(NamedTuple):
    """A term of reports: its meaning in one sentence, how it is computed and read, line by line, and other words for it."""

    meaning: str
    details: tuple[str, ...]
    others: tuple[str, ...]


def _terms() -> Iterator[tuple[str, Term]]:
    """Yield each term of the file by its heading."""
    text = files("conformance.glossary").joinpath("terms.md").read_text("utf-8").replace("FALSE_ALARM", FALSE_ALARM_TEXT)
    for entry in re.split(r"^## ", text.partition("\n## ")[2], flags=re.MULTILINE):
        name, *blocks = (joined(block) for block in re.split(r"\n\n|\n(?=- )", entry) if block.strip())
        others = blocks.pop(0).removeprefix(_ALSO).split("; ") if blocks[0].startswith(_ALSO) else ()
        meaning, *details = blocks
        yield name, Term(meaning, tuple(detail.removeprefix("- ") for detail in details), tuple(others))


TERMS: Mapping[str, Term] = dict(_terms())
ALIASES = {other: name for name, term in TERMS.items() for other in term.others}
_BY_LOWER_CASE = {name.lower(): name for name in TERMS}


def summaries() -> Mapping[str, str]:
    """Return the meaning of each term."""
    return {name: term.meaning for name, term in TERMS.items()}


def sections(name: str) -> Iterator[Section]:
    """Yield how a term is computed and read."""
    yield "details", TERMS[name].details


def names(written: str) -> tuple[str, ...]:
    """Return the term of this name, in any case, in the singular or the plural, with spaces or hyphens, or with an index."""
    plain = _INDEX.sub("", written.lower().replace("-", " ").replace("_", " "))
    terms = (_BY_LOWER_CASE.get(ALIASES.get(name, name).lower()) for name in (plain, plain.removesuffix("s"), f"{plain}s"))
    return next(((term,) for term in terms if term), ())
