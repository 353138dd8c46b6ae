"""An entry of the glossary, what each group of entries must offer, and docstrings as paragraphs of running text."""

import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

Section = tuple[str, tuple[str, ...]]


@dataclass(frozen=True)
class Entry:
    """What one name means.

    Attributes:
        group: what it is: `fault`, `check`, `activation`, `outcome`, `golden`, `candidate`, `arithmetic` or
            `input mistake`.
        name: as reports and options write it.
        summary: its meaning in one sentence.
        sections: a title each, with lines of text; none is empty.
    """

    group: str
    name: str
    summary: str
    sections: tuple[Section, ...]

    def as_dict(self) -> dict[str, Any]:
        """For JSON: the sections by title."""
        return {**asdict(self), "sections": dict(self.sections)}


class Group(Protocol):
    """A module of entries of one kind."""

    def summaries(self) -> Mapping[str, str]:
        """The meaning of every name in one sentence, in the order in which they are listed."""

    def sections(self, name: str) -> Iterator[Section]:
        """What else is known of the name; sections without lines are left out of the entry."""

    def names(self, written: str) -> tuple[str, ...]:
        """The names that `written` stands for, as a report, an option or a test id writes it; empty for none."""


def joined(text: str) -> str:
    """The text in one line."""
    return " ".join(text.split())


def paragraphs(docstring: str) -> tuple[str, ...]:
    """The paragraphs of a docstring, one line each; an equation that is set off and an item of a list keep lines of their own."""
    blocks = re.split(r"\n\s*\n|\n(?=\s*- )|\n(?=    )", inspect.cleandoc(docstring))
    return tuple(joined(block) for block in blocks if block.strip())
