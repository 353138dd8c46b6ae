"""Names and texts that others give: lists of them, the nearest that exist, and what of them can be printed.

No control character of such a text reaches a terminal, a page or a file.
"""

import hashlib
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import TypeVar

from conformance.errors import UnknownNameError, UsageError

T = TypeVar("T")
_LONGEST = 200  # characters, where most file systems allow 255 bytes
LONGEST = 20_000  # characters of a text from outside: a traceback of some hundred calls

# Faults that were called otherwise before: old results files and lists of known failures are still read.
RENAMED_FAULTS: Mapping[str, str] = {"activation-form": "gelu-variant"}


def plain_name(name: str, more: str) -> str:
    """The name in ASCII letters, digits and the characters of `more`, at most 200, with `_` for every other.

    Names that differ in other characters, or further on, stay different, by eight digits of their SHA-256.
    """
    plain = "".join(c if (c.isascii() and c.isalnum()) or c in more else "_" for c in name)[:_LONGEST]
    return plain if plain == name else f"{plain}_{hashlib.sha256(name.encode('utf-8', 'backslashreplace')).hexdigest()[:8]}"


def nearest(name: str, existing: Iterable[str], others: str = "") -> str:
    """A sentence's end: the names that are nearest, or, where none is near, `others`, without which all that there are."""
    existing = list(existing)
    near = get_close_matches(name, existing, 3)
    return f"did you mean {' or '.join(near)}?" if near else others or f"there are {', '.join(existing) or 'none'}"


def unknown(kind: str, name: str, existing: Iterable[str]) -> UnknownNameError:
    """The error for a name that nothing of that kind is called by."""
    return UnknownNameError(f"no {kind} {name!r}; {nearest(name, existing)}")


def listed(what: str, given: Iterable[T], example: str = "") -> list[T]:
    """What is given for the argument `what`; with an `example`, at least one.

    Raises:
        UsageError: it is no list, above all a bare text, whose letters are not meant; or it is empty.
    """
    if isinstance(given, str):
        raise UsageError(f"{what} is the text {given!r}, and no list; write {what}=[{given!r}]")
    if not isinstance(given, Iterable):
        raise UsageError(f"{what} is one {type(given).__name__}, and no list; put it in brackets: {what}=[…]")
    found = list(given)
    if example and not found:
        raise UsageError(f"{what} is empty, so nothing would be checked; write one or more, as in {what}=[{example}]")
    return found


def capped(text: str) -> str:
    """At most `LONGEST` characters of a text, and how many more there are."""
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}\n… and {len(text) - LONGEST} characters more"


def printable(text: str) -> str:
    """One line: what cannot be printed (control characters, line ends, marks that turn the direction round) as Python writes it."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def printable_lines(text: str) -> list[str]:
    """The same of a text of several lines, which stay lines; tabs are spaces."""
    return [printable(line) for line in text.replace("\r\n", "\n").expandtabs(4).split("\n")]
