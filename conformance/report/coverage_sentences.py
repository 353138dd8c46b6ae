"""Sentences on what was judged and how long it took, and on what a pass excludes. Pure functions of the records."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from conformance.faults import BY_NAME, OF_SOME
from conformance.numerics.thresholds import SEPARABLE_Z
from conformance.results.example import largest_sizes
from conformance.results.outcomes import ORDER, OUTCOME_TEXT
from conformance.results.records import CheckRecord, CounterexampleRecord, Footer, Note, Sensitivity


def headline(footer: Footer, notes: Sequence[Note] = ()) -> str:
    """Return `ran 25 of 38, 13 skipped: 1 fail, 24 pass`, whether results are missing, and the number of contradictory ones.

    The counts of the outcomes are those of all checks but the skipped ones, worst first. They add up to the number that ran and the
    number that could not run.
    """
    total, skipped = sum(footer.outcomes.values()), footer.outcomes.get("skip", 0)
    counted = [outcome for outcome in ORDER if outcome in footer.outcomes and outcome != "skip"]
    counts = ", ".join(f"{footer.outcomes[outcome]} {outcome}" for outcome in counted)
    unable = total - skipped - footer.ran
    rest = f", {skipped} skipped" * (skipped > 0) + f", {unable} could not run" * (unable > 0)
    grave = Counter(note.kind for note in notes if note.grave)
    beside = "".join("; results are missing" if kind == "missing" else f"; {number(n, kind)}" for kind, n in grave.items())
    return f"ran {footer.ran} of {total}{rest}{f': {counts}' if counts else ''}{beside}"


def verdict(check: CheckRecord) -> str:
    """Return the outcome in words, with the coverage."""
    said = OUTCOME_TEXT[check.outcome].of_check
    return f"{said}, {check.judged} of {check.activations} activations judged" if check.activations else said


def number(n: int, what: str) -> str:
    """Return a count with its noun in singular or plural, such as `1 check` or `2 checks`."""
    return f"{n} {what}{'' if n == 1 else 's'}"


def searched(check: CheckRecord) -> str:
    """Return the number and sizes of the examples of a search without a failure, and the largest error as a share of its limit."""
    worst = f", the largest error {check.worst:.2g} of its limit" if check.worst else ""
    return f"{number(check.tried, 'example')}{of_sizes([check])}{worst}"


def of_sizes(checks: Iterable[CheckRecord]) -> str:
    """Return, after a comma, the largest sizes of the batches that any of the checks judged; empty if there are none."""
    largest = largest_sizes(size for check in checks for size in check.sizes)
    return f", batches of up to {' and '.join(f'{rows} × {length}' for rows, length in largest)} tokens" if largest else ""


def duration(checks: Sequence[CheckRecord]) -> str:
    """Return the total time of checks, split into candidate and judge if the records have both."""
    total = f"{sum(c.seconds for c in checks):.1f} s"
    theirs = [c.candidate_seconds for c in checks if c.candidate_seconds is not None]
    ours = [c.judge_seconds for c in checks if c.judge_seconds is not None]
    return f"{total} (candidate {sum(theirs):.1f} s, judge {sum(ours):.1f} s)" if theirs and ours else total


# What laws do with a batch for their second call, with the parameters of the variation.
_VARIATIONS = {
    "padding-length": "for the second call, padding was appended to each row (tokens: {tokens}, id: {id})",
    "padding-content": "for the second call, padding was given the id {id} and the token type {token_type}",
    "masked-row": "for the second call, row {row} was masked entirely",
    "length-refused": "for the second call, each row was repeated up to {tokens} more than the longest sequence",
}


def varied(check: str, variation: Mapping[str, Any]) -> str:
    """Return in words how a law varied a batch; empty if it has no parameters.

    Example:
        >>> varied("padding-length", {"tokens": 4, "id": 0})
        'for the second call, padding was appended to each row (tokens: 4, id: 0)'
    """
    if not variation:
        return ""
    if check in _VARIATIONS and set(variation) >= set(re.findall(r"{(\w+)}", _VARIATIONS[check])):
        return _VARIATIONS[check].format(**variation)
    return f"varied by {', '.join(f'{name} {value}' for name, value in variation.items())} (`explain {check}`)"


def smallest(check: str, example: CounterexampleRecord) -> str:
    """Return the shape and the variation of the smallest failing batch."""
    ids, masked = example.batch.get("input_ids"), "" if example.batch.get("attention_mask") else " without a mask"
    if not ids:
        return "smallest failing batch: empty"
    variation = varied(check, example.variation)
    return f"smallest failing batch: {len(ids)} × {len(ids[0])} tokens{masked}{f'; {variation}' if variation else ''}"


def padding(mask: Sequence[Sequence[Any]]) -> list[list[bool]]:
    """Return which tokens are padding, (B, S): by a mask (B, S), those with 0; by a mask (B, S, S), those that attend to none."""
    return [[not (any(token) if isinstance(token, list) else token) for token in row] for row in mask]


def weakest(s: Sensitivity) -> str:
    """Return in words how well a mistake would be detected where it is least visible.

    The expected z is 0 if the effect does not exceed the deterministic errors that a correct implementation may have there.
    """
    return f"expected z = {s.expected_z:.2g} at {s.weakest}" if s.expected_z else f"no effect beyond rounding at {s.weakest}"


def exclusions(sensitivities: Sequence[Sensitivity]) -> list[str]:
    """Return sentences about the mistakes that a pass would have detected, and those that it could have missed at some steps."""
    some = [
        f"{s.fault} ({s.places - s.separable} of {s.places} steps, {weakest(s)})" for s in sensitivities if s.separable < s.places
    ]
    every, unseen = len(sensitivities), len(undetectable(sensitivities))
    whole = f"all {every} mistakes" if every > 1 else "the mistake"
    detected = f"{every - len(some)} of the {every} mistakes" if some else whole
    none = f"; {unseen} more change none, in this network on these inputs" if unseen else ""
    first = f"would have detected {detected} that change a judged activation here, at every step that they change{none}"
    missed = f"could have missed at some steps, where rounding could hide them (expected z below {SEPARABLE_Z:.0f}): "
    return [*([first] if sensitivities else []), *([missed + ", ".join(some)] if some else [])]


def undetectable(sensitivities: Iterable[Sensitivity]) -> Sequence[str]:
    """Return the names of the mistakes that change no judged activation, in alphabetical order.

    Mistakes in parts that the network does not have, or that are tested only after a failure, are left out.
    """
    seen = {s.fault for s in sensitivities}
    elsewhere = frozenset[str]().union(*(names for names in OF_SOME if not names & seen))
    return sorted({name for name, fault in BY_NAME.items() if not fault.after_failure} - seen - elsewhere)


def numbers_checked(sensitivities: Iterable[Sensitivity]) -> Iterator[tuple[str, str, str, str, str]]:
    """Yield each number that a pass checks, its value, and to within what deviation it is confirmed at every step.

    They are followed by the step where the number is least visible, and by the mistake.
    """
    for s in sensitivities:
        parameter = BY_NAME[s.fault].parameter if s.fault in BY_NAME else None
        if s.right is not None and s.separable and parameter and parameter.quantity:
            within = "not confirmed" if s.smallest is None else f"± {abs(s.smallest - s.right):.2g}"
            yield parameter.quantity, f"{s.right:.7g}", within, s.at, s.fault
