"""Names and texts that come from outside the package: lists of them, suggestions for unknown names, and printable forms.

The printable forms contain no control characters, so none reaches a terminal, a page or a file.
"""

import hashlib
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import TypeVar

from conformance.errors import UnknownNameError, UsageError

T = TypeVar("T")
_LONGEST = 200  # characters of a plain name; most file systems allow 255 bytes
LONGEST = 20_000  # characters of a text from outside; enough for a traceback of a few hundred calls

# Former names of faults, so that old results files and lists of known failures can still be read.
RENAMED_FAULTS: Mapping[str, str] = {"activation-form": "gelu-variant"}


def plain_name(name: str, more: str) -> str:
    """Return a name with every character other than ASCII letters, digits and the characters of `more` replaced by `_`.

    At most 200 characters are kept. If this changes the name, the first eight hexadecimal digits of the SHA-256 of the original are
    appended, so that different names remain different.
    """
    plain = "".join(c if (c.isascii() and c.isalnum()) or c in more else "_" for c in name)[:_LONGEST]
    return plain if plain == name else f"{plain}_{hashlib.sha256(name.encode('utf-8', 'backslashreplace')).hexdigest()[:8]}"


def nearest(name: str, existing: Iterable[str], others: str = "") -> str:
    """Return the end of an error message about an unknown name: the most similar existing names.

    If no name is similar, return `others`; if that is empty, the list of all existing names.
    """
    existing = list(existing)
    near = get_close_matches(name, existing, 3)
    return f"did you mean {' or '.join(near)}?" if near else others or f"there are {', '.join(existing) or 'none'}"


def unknown(kind: str, name: str, existing: Iterable[str]) -> UnknownNameError:
    """Return the error for a name under which nothing of this kind exists."""
    return UnknownNameError(f"no {kind} {name!r}; {nearest(name, existing)}")


def listed(what: str, given: Iterable[T], example: str = "") -> list[T]:
    """Return the value of the argument `what` as a list.

    Args:
        what: name of the argument, for messages.
        given: its value.
        example: an example of an element, for messages; if given, the list must not be empty.

    Raises:
        UsageError: the value is not iterable or is a string (whose letters would be taken as elements), or it is empty.
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
    """Return the first `LONGEST` characters of a text, followed by the number of omitted characters if there are any."""
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}\n… and {len(text) - LONGEST} characters more"


def printable(text: str) -> str:
    """Return a text as one line, with unprintable characters (control characters, line ends, bidirectional marks) escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def printable_lines(text: str) -> list[str]:
    """Return the lines of a text with unprintable characters escaped and tabs expanded to spaces."""
    return [printable(line) for line in text.replace("\r\n", "\n").expandtabs(4).split("\n")]
