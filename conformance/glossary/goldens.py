"""Goldens, from their recipes and from the manifest of the fixtures."""

from collections.abc import Iterator, Mapping

from conformance.glossary.entry import Section
from conformance.goldens.manifest import manifest
from conformance.goldens.recipes import RECIPES


def summaries() -> Mapping[str, str]:
    """What each golden is for."""
    return {name: recipe.about for name, recipe in RECIPES.items()}


def sections(name: str) -> Iterator[Section]:
    """Its architecture, its batches, and how to run on it."""
    entry = manifest()[name]
    yield "architecture", tuple(f"{key}: {_plain(value)}" for key, value in entry.architecture.items())
    yield "batches", (", ".join(entry.batches),)
    yield "weights", (entry.source,)
    yield "version", (f"{entry.version}; results of different versions are not compared",)
    yield "to run on it alone", (f"bert-conformance run -i NAME --golden {name}",)


def names(written: str) -> tuple[str, ...]:
    """The golden of that name, also as `golden:NAME`."""
    name = written.removeprefix("golden:")
    return (name,) if name in RECIPES else ()


def _plain(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
