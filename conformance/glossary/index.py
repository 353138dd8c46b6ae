"""The names that can be explained, by group, and the entries for a given name."""

from collections.abc import Mapping
from importlib import import_module
from typing import cast

from conformance.errors import UnknownNameError
from conformance.glossary.entry import Entry, Group
from conformance.names import nearest

# Module names by group; modules are imported on demand, and those that do not need the oracle come first.
GROUPS: Mapping[str, str] = {
    "outcome": "outcomes",
    "term": "terms",
    "check": "checks",
    "golden": "goldens",
    "candidate": "candidates",
    "activation": "activations",
    "arithmetic": "arithmetics",
    "mistake": "faults",
    "input mistake": "input_mistakes",
}


def group(name: str) -> Group:
    """Return the group of this name."""
    return cast(Group, import_module(f"conformance.glossary.{GROUPS[name]}"))


def summaries() -> dict[str, Mapping[str, str]]:
    """Return the meaning of every name in one sentence, by group."""
    return {name: group(name).summaries() for name in GROUPS}


def entries(written: str) -> tuple[Entry, ...]:
    """Return the entries that a name stands for; several if several activations' names end with it.

    Raises:
        UnknownNameError: If nothing has this name; the message gives the nearest names.
    """
    for kind in GROUPS:
        found = group(kind)
        names = found.names(written)
        if names:
            meanings = found.summaries()
            return tuple(Entry(kind, name, meanings[name], tuple(s for s in found.sections(name) if any(s[1]))) for name in names)
    everything = [name for meanings in summaries().values() for name in meanings]
    hint = nearest(written, everything, "`bert-conformance explain` lists every name")
    raise UnknownNameError(f"nothing is called {written!r}; {hint}")
