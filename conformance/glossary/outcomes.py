"""Entries for the outcomes of checks and activations, from the table of outcomes."""

from collections.abc import Iterator, Mapping

from conformance.glossary.entry import Section
from conformance.results.outcomes import OUTCOME_TEXT, Outcome


def summaries() -> Mapping[str, str]:
    """Return the meaning of each outcome."""
    return {name: outcome.meaning for name, outcome in OUTCOME_TEXT.items()}


def sections(name: Outcome) -> Iterator[Section]:
    """Yield the effect of an outcome on a run, what to do, and how reports write it."""
    outcome = OUTCOME_TEXT[name]
    effects = {
        "good": "The candidate conforms as far as this check goes.",
        "odd": "It decides nothing: neither for nor against the candidate.",
        "bad": "The run does not conform; its exit code is not 0.",
    }
    yield "effect on the run", (effects[outcome.tone],)
    yield "what to do", (outcome.remedy,)
    yield "in reports", (f"of a check: {outcome.of_check}", f"of an activation: {outcome.of_activation}")
    yield "in JUnit", (outcome.junit or "a test case that passes",)


def names(written: str) -> tuple[str, ...]:
    """Return the outcome of this name, with spaces or underscores."""
    name = written.replace(" ", "_")
    return (name,) if name in OUTCOME_TEXT else ()
