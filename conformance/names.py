"""Handling of names and texts from outside: validation of lists, suggestions for unknown names, removal of unprintable characters.

No control character of such a text reaches a terminal, a page or a file.
"""

import hashlib
import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import TypeVar

from conformance.errors import UsageError

T = TypeVar("T")
_LONGEST = 200  # characters; most file systems allow 255 bytes
_ALIKE = 0.7  # least similarity (difflib's ratio) of a suggested name, that of `cdua` and `cuda`; at 0.6, words without relation
_WORD = re.compile(r"[^\W_]+")
LONGEST = 20_000  # characters of a text from outside; a traceback of several hundred calls


def plain_name(name: str, more: str) -> str:
    """Return the name with `_` for every character but ASCII letters, digits and those in `more`, at most 200 characters long.

    Names that were changed stay distinct: eight digits of the SHA-256 of the original name are appended.
    """
    plain = "".join(c if (c.isascii() and c.isalnum()) or c in more else "_" for c in name)[:_LONGEST]
    return plain if plain == name else f"{plain}_{hashlib.sha256(name.encode('utf-8', 'backslashreplace')).hexdigest()[:8]}"


def nearest(name: str, existing: Iterable[str], others: str = "") -> str:
    """Return the end of an error message: the nearest existing names or, if none is near, `others`, by default all names.

    Near are names that contain every word of `name`, then names that are spelled alike.
    """
    existing = list(existing)
    return suggestion(nearest_names(name, existing)) or others or f"there are {', '.join(existing) or 'none'}"


def nearest_names(name: str, existing: Iterable[str]) -> list[str]:
    """Return at most three existing names that contain every word of `name` or are spelled alike."""
    existing, words = list(existing), _words(name)
    longer = [other for other in existing if words and words <= _words(other)]
    return list(dict.fromkeys((*longer, *get_close_matches(name, existing, 3, _ALIKE))))[:3]


def suggestion(near: Sequence[str]) -> str:
    """Return a question about the names that may be meant; empty if there are none."""
    return f"did you mean {' or '.join(near)}?" if near else ""


def _words(name: str) -> set[str]:
    return set(_WORD.findall(name.lower()))


def listed(what: str, given: Iterable[T], example: str = "") -> list[T]:
    """Return the argument `what` as a list; if `example` is not empty, the list must not be empty.

    Raises:
        UsageError: the argument is not a list, or is a string, whose letters would become the items, or is empty.
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
    """Return at most the first `LONGEST` characters of a text, followed by the number of omitted ones."""
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}\n… and {len(text) - LONGEST} characters more"


def class_name(value: object) -> str:
    """Return the name of the class of an object from outside, none of whose code is run: `__class__` and a metaclass may lie."""
    name: str = type.__dict__["__name__"].__get__(type(value))
    return name


def message_of(error: BaseException) -> str:
    """Return the message of an exception from outside, as `capped`; its `__str__` may raise an exception itself."""
    try:
        return capped(str.__str__(str(error)))
    except BaseException as another:
        return f"its text raises {class_name(another)}"


def described_error(error: BaseException) -> str:
    """Return the name of the class of an exception from outside, followed by its message if it has one."""
    return f"{class_name(error)}: {message_of(error)}".removesuffix(": ")


def printable(text: str) -> str:
    """Return a text as one line, with unprintable characters (control characters, line ends, bidirectional marks) escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def printable_lines(text: str) -> list[str]:
    """Return the lines of a text, each as `printable` returns it, with tabs expanded."""
    return [printable(line) for line in text.replace("\r\n", "\n").expandtabs(4).split("\n")]


_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")


def words(name: str) -> list[str]:
    """Return the words of a name, in lower case, split at dots, underscores, capitals and digits.

    Example:
        >>> words("blocks.0.attnNorm_w1")
        ['blocks', '0', 'attn', 'norm', 'w', '1']
    """
    return [word.lower() for word in _WORD.findall(name)]
