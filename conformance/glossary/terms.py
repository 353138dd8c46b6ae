"""The terms in which reports state errors: their meaning, and how they are computed.

Adding a term: a row of `TERMS`; `report.run.run_document` prints those that a failing report uses.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from conformance.glossary.entry import Section


class Term(NamedTuple):
    """A term of reports.

    Attributes:
        meaning: what it is, in one sentence.
        details: how it is computed and how to read it, each in a line of text.
    """

    meaning: str
    details: tuple[str, ...]


TERMS: Mapping[str, Term] = {
    "sigma": Term(
        "the unit of errors, σ: the standard deviation of a correct implementation's rounding error, element by element",
        (
            "It is derived from the floating-point format and the accuracy of library functions; no tolerance is set by hand.",
            "A correct candidate has an RMS of about 0.3 to 2 σ.",
        ),
    ),
    "origin": Term(
        "an activation that is wrong for the candidate's own inputs to it: an error begins there, or in hidden steps before it",
        (
            "The inputs are the nearest earlier activations that the candidate exposes.",
            "Origins are listed in the order of computation.",
        ),
    ),
    "local rms": Term(
        "the error of one step, or of a segment of hidden steps, given the candidate's own inputs to it",
        (
            "RMS over all judged elements, each in units of its σ.",
            "Positions that the attention mask excludes (padding) are not judged: a correct candidate may compute anything there.",
        ),
    ),
    "max": Term(
        "the largest error of a single element of the step, in units of its σ",
        ("It finds errors in few elements, which an RMS over all elements does not show.",),
    ),
    "limit": Term(
        "the largest value that passes, of the local rms or the max in the column before it",
        ("It is derived from a false-alarm probability of 1e-6 for the whole run and from the number of independent rows.",),
    ),
    "global rms": Term(
        "the error that has accumulated since the token ids, in units of accumulated rounding",
        ("It is not judged. If it is large and the local error is small, the mistake is at an earlier step.",),
    ),
    "amplitude": Term(
        "the share of the mistake's effect that the error contains: 1 if it is present, 0 if it is absent",
        (
            "It is not given for a mistake with an estimated number: the estimate is chosen so that it is 1.",
            "a = <r,d>/<d,d> with the residual r, the effect d of the mistake, and <x,y> = Σ x y / σ².",
        ),
    ),
    "z": Term(
        "the amplitude in units of its own standard deviation under rounding alone",
        ("A mistake is reported only if z exceeds the threshold that follows from the run's false-alarm probability.",),
    ),
    "amplifier": Term(
        "a correct step behind an origin whose arriving error grows more than an error with random signs would",
        ("It is reported as a role of activations that pass; nothing has to be repaired there.",),
    ),
    "attenuator": Term(
        "a correct step behind an origin whose arriving error shrinks more than an error with random signs would",
        ("It is reported as a role of activations that pass; nothing has to be repaired there.",),
    ),
}

_ALIASES = {"σ": "sigma", "rms": "local rms", "local": "local rms", "global": "global rms"}


def summaries() -> Mapping[str, str]:
    """Return the meaning of each term."""
    return {name: term.meaning for name, term in TERMS.items()}


def sections(name: str) -> Iterator[Section]:
    """Yield how a term is computed and read."""
    yield "details", TERMS[name].details


def names(written: str) -> tuple[str, ...]:
    """Return the term of this name, in any case."""
    name = _ALIASES.get(written.lower(), written.lower())
    return (name,) if name in TERMS else ()
