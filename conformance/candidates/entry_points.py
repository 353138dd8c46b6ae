"""The implementations that installed packages register by an entry point; none of them is imported."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import metadata

from conformance.errors import PluginError

GROUP = "bert_conformance.implementations"
SWITCH = "BERT_CONFORMANCE_NO_PLUGINS"


@dataclass(frozen=True)
class Registered:
    """A registered implementation that has not been imported."""

    name: str
    distribution: str
    version: str
    origin: str


def entry_points() -> Mapping[str, metadata.EntryPoint]:
    """Return the entry points of implementations by name; none if the environment variable `SWITCH` is 1."""
    return {entry.name: entry for entry in _all()}


def require_one(name: str) -> None:
    """Raise `PluginError` if several distributions register an implementation of that name."""
    found = [entry for entry in _all() if entry.name == name]
    if len(found) > 1:
        by = " and ".join(f"{' '.join(name_and_version(entry.dist))} ({entry.value})" for entry in found)
        raise PluginError(
            f"the name {name} is registered by {len(found)} installed distributions, {by}; uninstall all but one, or give the "
            f"object instead of the name: -i {found[0].value}"
        )


def _all() -> Sequence[metadata.EntryPoint]:
    """Return all entry points of implementations, sorted by name; none if the environment variable `SWITCH` is 1."""
    if os.environ.get(SWITCH) == "1":
        return ()
    return _found_on(tuple((folder, _modified(folder)) for folder in sys.path))


# A scan reads a file of each installed distribution, and a run asks for the entry points at each candidate.
@lru_cache(maxsize=1)
def _found_on(path: tuple[tuple[str, int], ...]) -> Sequence[metadata.EntryPoint]:
    """Return the entry points found on `sys.path`, which is given with the times of modification of its folders."""
    return sorted(metadata.entry_points(group=GROUP), key=lambda e: (e.name, e.value))


def _modified(folder: str) -> int:
    try:
        return os.stat(folder or ".").st_mtime_ns
    except (OSError, TypeError, ValueError):  # a folder that does not exist, or an entry that is no path
        return 0


def registered() -> list[Registered]:
    """Return every registered implementation, sorted by name; a name that several distributions register occurs several times."""
    about = cache(name_and_version)  # importlib parses a distribution's whole metadata at each look
    return [Registered(e.name, *about(e.dist), e.value) for e in _all()]


def registered_origin(name: str) -> str | None:
    """Return the `module:object` of a registered implementation; None if there is none of that name."""
    entry = entry_points().get(name)
    return None if entry is None else entry.value


def name_and_version(distribution: metadata.Distribution | None) -> tuple[str, str]:
    """Return the name and the version of a distribution."""
    if distribution is None:
        return "unknown", "?"
    found = distribution.metadata
    return found["Name"], found["Version"]
