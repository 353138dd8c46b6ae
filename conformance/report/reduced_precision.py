"""Errors of reduced precision in reports: one cause, such as autocast, affects the roundings of most steps at once."""

from collections.abc import Sequence

from conformance.judge.narrower_format import HALF, format_of
from conformance.judge.step_phrases import phrases
from conformance.model.activations import LAYER
from conformance.results.records import ActivationRecord

PREFIX = "precision-"  # of the names of faults that round operands, weights or results
MOST_KINDS = 4  # maximum number of kinds of step that are listed; more are counted


def is_reduced(name: str) -> bool:
    """Return whether a fault is rounding to a half-precision format."""
    return name.startswith(PREFIX) and name.removeprefix(PREFIX) in HALF


def fault_of(a: ActivationRecord) -> str:
    """Return the name of the reduced precision that leaves an unexplained error of this size and form; empty if there is none."""
    formats = [name for line in a.anatomy if (name := format_of(line))]
    return f"{PREFIX}{formats[0]}" if len(formats) == 1 else ""


def rounding(anatomy: Sequence[str]) -> str:
    """Return in words that an unidentified error has the size and form of a format's rounding; empty if it does not."""
    formats = [name for line in anatomy if (name := format_of(line))]
    return f"the error has the size and form of computing in {' or '.join(formats)}; its place is not known" if formats else ""


def where_reduced(steps: Sequence[str], layers: int) -> str:
    """Return the places of reduced precision; if they are many, their layers and the number of kinds of step."""
    inside = [(match[1], match[2]) for step in steps if (match := LAYER.fullmatch(step))]
    kinds = list(dict.fromkeys(kind for _, kind in inside))
    if len(kinds) <= MOST_KINDS:
        return "; ".join(phrases(steps, layers))
    of_layers = sorted({f"encoder.layer.{layer}.{kinds[0]}" for layer, _ in inside})
    (phrase,) = phrases(of_layers, layers)
    named = phrase.removesuffix(f", {kinds[0]}")
    outside = [step for step in steps if not LAYER.fullmatch(step)]
    return "; ".join([f"{named}, {len(kinds)} kinds of step, {kinds[0]} to {kinds[-1]}", *phrases(outside, layers)])
