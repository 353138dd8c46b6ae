"""Entries of the glossary, the protocol of groups of entries, and the conversion of docstrings to paragraphs."""

import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

Section = tuple[str, tuple[str, ...]]


@dataclass(frozen=True)
class Entry:
    """The explanation of a name.

    Attributes:
        group: `mistake`, `check`, `activation`, `outcome`, `term`, `golden`, `candidate`, `arithmetic` or `input mistake`.
        name: the name as reports and options write it.
        summary: its meaning in one sentence.
        sections: titles, each with lines of text; no section is empty.
    """

    group: str
    name: str
    summary: str
    sections: tuple[Section, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the entry as a dictionary for JSON, with the sections by title."""
        return {**asdict(self), "sections": dict(self.sections)}


class Group(Protocol):
    """A module with the entries of one group."""

    def summaries(self) -> Mapping[str, str]:
        """Return the meaning of every name in one sentence, in the order in which the names are listed."""

    def sections(self, name: str) -> Iterator[Section]:
        """Yield the sections of the entry of a name; sections without lines are left out of the entry."""

    def names(self, written: str) -> tuple[str, ...]:
        """Return the names that `written` stands for, as a report, an option or a test id writes it; empty if there are none."""


def joined(text: str) -> str:
    """Return the text with all whitespace replaced by single spaces."""
    return " ".join(text.split())


def paragraphs(docstring: str) -> tuple[str, ...]:
    """Return the paragraphs of a docstring, one line each; indented equations and items of lists are lines of their own."""
    blocks = re.split(r"\n\s*\n|\n(?=\s*- )|\n(?=    )", inspect.cleandoc(docstring))
    return tuple(joined(block) for block in blocks if block.strip())
