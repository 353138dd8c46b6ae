"""The implementations that installed packages register by an entry point; none of them is imported."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import metadata

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
    if os.environ.get(SWITCH) == "1":
        return {}
    return _found_on(tuple((folder, _modified(folder)) for folder in sys.path))


# A scan reads a file of each installed distribution, and a run asks for the entry points at each candidate.
@lru_cache(maxsize=1)
def _found_on(path: tuple[tuple[str, int], ...]) -> Mapping[str, metadata.EntryPoint]:
    """Return the entry points found on `sys.path`, which is given with the times of modification of its folders."""
    return {e.name: e for e in sorted(metadata.entry_points(group=GROUP), key=lambda e: e.name)}


def _modified(folder: str) -> int:
    try:
        return os.stat(folder or ".").st_mtime_ns
    except (OSError, TypeError, ValueError):  # a folder that does not exist, or an entry that is no path
        return 0


def registered() -> list[Registered]:
    """Return every registered implementation, sorted by name."""
    about = cache(name_and_version)  # importlib parses a distribution's whole metadata at each look
    return [Registered(e.name, *about(e.dist), e.value) for e in entry_points().values()]


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
