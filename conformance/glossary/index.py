"""The names that can be explained, by group, and the entries for a given name."""

from collections.abc import Mapping, Sequence

from conformance.errors import UnknownNameError
from conformance.glossary.entry import Entry
from conformance.glossary.groups import GROUPS
from conformance.glossary.terms import ALIASES
from conformance.names import nearest_names, suggestion


def summaries() -> dict[str, Mapping[str, str]]:
    """Return the meaning of every name in one sentence, by group."""
    return {name: group.summaries() for name, group in GROUPS.items()}


def entries(written: str) -> tuple[Entry, ...]:
    """Return the entries that a name stands for; several if several activations' names end with it.

    Raises:
        UnknownNameError: If nothing has this name; the message gives the nearest names.
    """
    found = _found(written)
    if not found:
        raise UnknownNameError(f"nothing is called {written!r}; {_hint(written)}")
    return found


def entries_of_words(words: Sequence[str]) -> tuple[Entry, ...]:
    """Return the entries for words that were written without quotes: first all words together, then the longest names in turn.

    Example:
        >>> [entry.name for entry in entries_of_words(["global", "rms", "tiny"])]
        ['global rms', 'tiny']

    Raises:
        UnknownNameError: as raised by `entries`, for words that no name begins with, or for the one word that is unknown.
    """
    left: list[str] = list(words)
    found: tuple[Entry, ...] = ()
    while left:
        lengths = range(len(left), 0, -1)
        length, these = next(((n, these) for n in lengths if (these := _found(" ".join(left[:n])))), (0, ()))
        if not these:
            known = any(_found(word) for word in words)
            these = entries(left[0] if known else " ".join(left))  # raises
        found, left = (*found, *these), left[length:]
    return found


def _found(written: str) -> tuple[Entry, ...]:
    for kind, group in GROUPS.items():
        meanings = group.summaries()
        names = (written,) if written in meanings else tuple(name for name in group.names(written) if name in meanings)
        if names:
            return tuple(Entry(kind, name, meanings[name], tuple(s for s in group.sections(name) if any(s[1]))) for name in names)
    return ()


def _hint(written: str) -> str:
    """Return the nearest names, else how all names are listed."""
    names = [*ALIASES, *(name for meanings in summaries().values() for name in meanings)]
    return suggestion(nearest_names(written, names)) or "`bert-conformance explain` lists every name"
