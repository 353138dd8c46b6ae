"""The record of a term."""

from typing import NamedTuple


class Term(NamedTuple):
    """A term of reports.

    Attributes:
        meaning: what it is, in one sentence.
        details: how it is computed and how to read it, each in a line of text.
    """

    meaning: str
    details: tuple[str, ...]
