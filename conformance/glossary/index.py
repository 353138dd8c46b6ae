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
    if not (entries := _entries(written)):
        names = [*ALIASES, *(name for meanings in summaries().values() for name in meanings)]
        hint = suggestion(nearest_names(written, names)) or "`bert-conformance explain` lists every name"
        raise UnknownNameError(f"nothing is called {written!r}; {hint}")
    return entries


def entries_of_words(words: Sequence[str]) -> tuple[Entry, ...]:
    """Return the entries for words that were written without quotes: first all words together, then the longest names in turn.

    Example:
        >>> [entry.name for entry in entries_of_words(["global", "rms", "tiny"])]
        ['global rms', 'tiny']

    Raises:
        UnknownNameError: as raised by `entries`, for words that no name begins with, or for the one word that is unknown.
    """
    if not words:
        return ()
    for n in range(len(words), 0, -1):
        if first := _entries(" ".join(words[:n])):
            return (*first, *entries_of_words(words[n:]))
    return entries(words[0] if any(_entries(word) for word in words) else " ".join(words))  # raises


def _entries(written: str) -> tuple[Entry, ...]:
    for kind, group in GROUPS.items():
        meanings = group.summaries()
        names = (written,) if written in meanings else tuple(name for name in group.names(written) if name in meanings)
        if names:
            return tuple(Entry(kind, name, meanings[name], tuple(s for s in group.sections(name) if any(s[1]))) for name in names)
    return ()
