"""Entries for goldens, from their recipes and from the manifest of the fixtures."""

from collections.abc import Iterator, Mapping

from conformance.glossary.entry import Section
from conformance.goldens.manifest import manifest
from conformance.goldens.shipped_goldens import RECIPES


def summaries() -> Mapping[str, str]:
    """Return the purpose of each golden."""
    return {name: recipe.about for name, recipe in RECIPES.items()}


def sections(name: str) -> Iterator[Section]:
    """Yield the architecture, batches, weights and version of a golden, and how to run on it."""
    entry = manifest()[name]
    yield "architecture", tuple(f"{key}: {_plain(value)}" for key, value in entry.architecture.items())
    yield "batches", (", ".join(entry.batches),)
    yield "weights", (entry.source,)
    yield "version", (f"{entry.version}; results of different versions are not compared",)
    yield "to run on it alone", (f"bert-conformance run -i NAME --golden {name}",)


def names(written: str) -> tuple[str, ...]:
    """Return the golden of this name, which may be written as `golden:NAME`."""
    name = written.removeprefix("golden:")
    return (name,) if name in RECIPES else ()


def _plain(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
