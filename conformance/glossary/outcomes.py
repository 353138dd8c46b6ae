"""Entries for the outcomes of checks and activations, from the table of outcomes."""

from collections.abc import Iterator, Mapping

from conformance.glossary.entry import Section
from conformance.glossary.terms import names as terms_named
from conformance.results.outcomes import OUTCOME_TEXT, Outcome

OF_ACTIVATIONS = ("fail", "not_observed", "xfail", "pass")  # the outcomes that an activation may have


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
    of_activation = (f"of an activation: {outcome.of_activation}",) if name in OF_ACTIVATIONS else ()
    yield "in reports", (f"of a check: {outcome.of_check}", *of_activation)
    yield "in JUnit", (outcome.junit or "a test case that passes",)


def names(written: str) -> tuple[str, ...]:
    """Return the outcome of this name, with spaces or underscores, or that which reports call so, unless it is a term."""
    name = written.replace(" ", "_")
    if name in OUTCOME_TEXT:
        return (name,)
    if terms_named(written):
        return ()
    return tuple(n for n, o in OUTCOME_TEXT.items() if written in (o.of_check, *([o.of_activation] * (n in OF_ACTIVATIONS))))[:1]
