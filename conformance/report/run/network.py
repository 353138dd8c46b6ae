"""Tables of the network from input to output, one row for each activation, with local and global errors and their limits."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from conformance.model.activations import placed
from conformance.report.axis import Axis, axis_of, sigma
from conformance.report.document import Blocks, Column, Folded, Points, Row, TextSpan, tabled
from conformance.results.outcomes import OUTCOME_TEXT, Outcome, severity
from conformance.results.records import ActivationRecord

_MARKS: Mapping[Outcome, str] = {"xfail": "known failure"}
_TONES = {"origin": "bad", "breaks the contract": "bad", "known failure": "odd", "not exposed": "quiet", "not judged": "quiet"}


def network(activations: Sequence[ActivationRecord]) -> Blocks:
    """Return a table for each part of the network for one case; parts without a failure are folded if another part fails."""
    by_name: dict[str, list[ActivationRecord]] = {}
    for a in activations:
        by_name.setdefault(a.activation, []).append(a)
    worst = {name: max(found, key=_badness) for name, found in by_name.items()}
    axis = axis_of(e.rms for a in worst.values() for e in (a.local, a.global_error) if e)
    parts: dict[str, list[ActivationRecord]] = {}
    for name, a in worst.items():
        parts.setdefault(placed(name)[0], []).append(a)
    failing = {part for part, found in parts.items() if any(a.outcome in ("fail", "xfail") for a in found)}
    columns = ("activation", Column("○ global ● local", ticks=axis.ticks), "local rms", "max", "global rms")
    return tuple(
        Folded(
            f"{part}: {_counts(found)}",
            tuple(tabled(columns, [("", [_row(a, by_name[a.activation], axis) for a in found])])),
            is_open=part in failing or not failing,
        )
        for part, found in parts.items()
    )


def _badness(a: ActivationRecord) -> tuple[int, float]:
    if a.outcome == "not_observed":
        return -1, 0.0
    rank = severity(a.outcome)
    return rank, float("inf") if a.excess is None and rank else a.excess or 0.0


def _counts(found: Sequence[ActivationRecord]) -> str:
    """Return the numbers of activations that are right, wrong, not exposed and not judged, as text."""
    counts = Counter(_unjudged(a) or OUTCOME_TEXT[a.outcome].of_activation for a in found)
    texts = dict.fromkeys((*(outcome.of_activation for outcome in OUTCOME_TEXT.values()), "not judged"))
    right = OUTCOME_TEXT["pass"].of_activation
    given = ", given their own inputs" if counts[OUTCOME_TEXT["fail"].of_activation] else ""
    return ", ".join(f"{counts[text]} {text}{given if text == right else ''}" for text in texts if counts[text])


def _row(a: ActivationRecord, batches: Sequence[ActivationRecord], axis: Axis) -> Row:
    """Return the row of one activation, with the numbers of the batch on which it is worst."""
    mark = _unjudged(a) or ("breaks the contract" if _is_refused(a) else _MARKS.get(a.outcome, a.role or ""))
    name = TextSpan(placed(a.activation)[1], note="; ".join(part for part in (mark, *_notes(a, batches)) if part))
    local, global_error = (e.rms if e else None for e in (a.local, a.global_error))
    points = Points((axis.at(global_error), axis.at(local)), axis.at(a.limits.get("rms") if local is not None else None))
    largest = sigma(a.local.max if a.local else None, "")
    return Row((name, points, _local(a), largest, sigma(global_error, "")), _TONES.get(mark, ""))


def _unjudged(a: ActivationRecord) -> str:
    """Return why no error is known: the candidate does not expose the activation, or there is a reason; otherwise empty."""
    return "" if a.outcome != "not_observed" else "not judged" if a.reason else "not exposed"


def _is_refused(a: ActivationRecord) -> bool:
    """Return whether an activation breaks the contract, so that it was not judged."""
    return a.outcome == "fail" and a.local is None and bool(a.reason)


def _local(a: ActivationRecord) -> str:
    if a.local is None or a.local.rms is not None:
        return sigma(a.local.rms if a.local else None, "")
    return "exact" if a.outcome == "pass" else "differs"


def _notes(a: ActivationRecord, batches: Sequence[ActivationRecord]) -> Iterable[str]:
    failing, all_batches = {b.batch for b in batches if b.outcome == a.outcome}, {b.batch for b in batches}
    yield a.reason
    yield f"in {len(failing)} of {len(all_batches)} batches" if a.outcome in ("fail", "xfail") and len(all_batches) > 1 else ""
