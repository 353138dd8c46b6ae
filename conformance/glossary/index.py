"""Every name that can be explained, by group, and the entries of one."""

from collections.abc import Mapping
from importlib import import_module
from typing import cast

from conformance.errors import UnknownNameError
from conformance.glossary.entry import Entry, Group
from conformance.names import nearest

# The modules by the group that each describes, imported when it is asked for: those that need no oracle first.
GROUPS: Mapping[str, str] = {
    "outcome": "outcomes",
    "check": "checks",
    "golden": "goldens",
    "candidate": "candidates",
    "activation": "activations",
    "arithmetic": "arithmetics",
    "fault": "faults",
    "input mistake": "input_mistakes",
}


def group(name: str) -> Group:
    """The group of that name."""
    return cast(Group, import_module(f"conformance.glossary.{GROUPS[name]}"))


def summaries() -> dict[str, Mapping[str, str]]:
    """The meaning of every name in one sentence, by group."""
    return {name: group(name).summaries() for name in GROUPS}


def entries(written: str) -> tuple[Entry, ...]:
    """The entries that a name stands for; several where it is the end of several activations' names.

    Raises:
        UnknownNameError: nothing has that name; the message has the nearest names.
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
