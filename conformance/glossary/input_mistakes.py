"""Entries for mistakes in the inputs of a closed system, which `diagnose` finds from the system's outputs."""

from collections.abc import Iterator, Mapping

from conformance.diagnosis.inputs import MISTAKES
from conformance.glossary.entry import Section

_BY_NAME = {mistake.name: mistake for mistake in MISTAKES}


def summaries() -> Mapping[str, str]:
    """Return the sentence of each mistake, by name."""
    return {name: mistake.sentence.format(value="VALUE") for name, mistake in _BY_NAME.items()}


def names(written: str) -> tuple[str, ...]:
    """Return the mistake of this name."""
    return (written,) if written in _BY_NAME else ()


def sections(name: str) -> Iterator[Section]:
    """Yield the cause of a mistake, its repair, and how it is recognised."""
    mistake = _BY_NAME[name]
    yield "looked for", (mistake.looked_for,)
    yield "usual cause", (mistake.cause,)
    yield "how to repair it", (mistake.fix,)
    yield (
        "how it is recognised",
        ("`diagnose` evaluates the right network on the texts with the mistake; the outputs agree to within rounding",),
    )
