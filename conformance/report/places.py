"""Where errors are: along each axis, at the tokens of a batch, and in the network from input to output. Pure functions."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from conformance.judge.error_distribution import Strip
from conformance.model.activations import placed
from conformance.report.coverage_sentences import padding
from conformance.report.document import Row, Span
from conformance.report.drawings import Axis, HeatStrip, Points, axis_of, sigma
from conformance.results.outcomes import OUTCOME_TEXT, Outcome, severity
from conformance.results.records import ActivationRecord, CounterexampleRecord

LEVELS = 6  # number of heat levels; level 0 is within the limit
_UNITS = {"sigma": "σ", "ulp": "ULP"}
_MARKS: Mapping[Outcome, str] = {"xfail": "known failure"}
_TONES = {"origin": "bad", "breaks the contract": "bad", "known failure": "odd", "not exposed": "quiet", "not judged": "quiet"}


@dataclass(frozen=True)
class Scale:
    """A scale of heat: level 0 up to `limit`, then levels that are linear in the logarithm of the value up to `top`."""

    limit: float
    top: float
    unit: str

    def level(self, value: float | None) -> int | None:
        """Return the heat level of a value, 0 to LEVELS − 1; None if nothing is judged."""
        if value is None:
            return None
        if value <= self.limit:
            return 0
        reach = math.log(self.top) - math.log(self.limit)
        return min(1 + int((LEVELS - 1) * (math.log(value) - math.log(self.limit)) / reach), LEVELS - 1) if reach else LEVELS - 1

    def rendered(self, value: float | None) -> str:
        """Return a value with three significant digits and its unit, or `not judged` for None."""
        return "not judged" if value is None else f"{value:.3g} {self.unit}"


def scale_of(a: ActivationRecord) -> Scale | None:
    """Return the scale of an activation's error; at exact activations every nonzero error is beyond the limit.

    None is returned if the location of the error is not known.
    """
    if a.spread is None or not a.spread.strips:
        return None
    values = [v for s in a.spread.strips for v in s.values if v and math.isfinite(v)]
    values += [v for row in a.spread.tokens for v in row if v and math.isfinite(v)]
    if not values:
        return None
    limit = a.limits.get("rms") or math.nextafter(min(values), 0.0)
    return Scale(limit, max(values), _UNITS[a.spread.unit])


def strip(s: Strip, scale: Scale) -> Row:
    """Return the row of one axis: its name, its heat strip, and the affected slices in words."""
    levels = tuple(scale.level(v) for v in s.values)
    hot = sum(bool(level) for level in levels)
    where = max(range(len(s.values)), key=lambda i: s.values[i] or 0.0)
    per = -(-s.size // len(s.values))
    last = min((where + 1) * per, s.size) - 1
    slices = f"{s.axis} {where * per}" if per == 1 else f"{s.axis}s {where * per} to {last}"
    everywhere = hot == sum(v is not None for v in s.values)
    share = "at no slice by itself" if not hot else "everywhere" if everywhere else f"in {hot} of {len(s.values)} slices"
    worst = f"{share}; largest at {slices} (of 0 to {s.size - 1}), {scale.rendered(s.values[where])}"
    return s.axis, HeatStrip(levels, f"error along {s.axis}, beyond the limit {worst}"), worst


@dataclass(frozen=True)
class Token:
    """One token of an input.

    Attributes:
        masked: whether the attention mask hides the token.
        kind: class of the style sheet: a heat level, `marked`, `underlined`, or none.
        about: further facts about the token, in words.
    """

    text: str
    masked: bool = False
    kind: str = ""
    about: str = ""


def tokens(example: CounterexampleRecord, errors: Sequence[Sequence[float | None]], scale: Scale | None) -> list[list[Token]]:
    """Return the batch of a counterexample as rows of tokens, coloured on a scale by the errors at each row and position."""
    ids, mask, types = (example.batch.get(name) for name in ("input_ids", "attention_mask", "token_type_ids"))
    unread = padding(mask) if mask else None
    rows = []
    for r, row in enumerate(ids or []):
        rendered = []
        for i, token in enumerate(row):
            text = example.words[r][i] if example.words and r < len(example.words) and i < len(example.words[r]) else str(token)
            masked = unread is not None and unread[r][i]
            error = errors[r][i] if r < len(errors) and i < len(errors[r]) else None
            parts = [f"id {token}", "masked" if masked else "", f"token type {types[r][i]}" if types else ""]
            parts += [scale.rendered(error)] if scale and error is not None else []
            kind = f"h{scale.level(error) or 0}" if scale else ""
            rendered.append(Token(text, masked, kind, ", ".join(part for part in parts if part)))
        rows.append(rendered)
    return rows


def network(activations: Sequence[ActivationRecord]) -> Iterator[tuple[str, bool, str, list[Row]]]:
    """Yield of each part of the network its title, whether something is wrong, the head of its plots, and a row an activation."""
    by_name: dict[str, list[ActivationRecord]] = {}
    for a in activations:
        by_name.setdefault(a.activation, []).append(a)
    worst = {name: max(of_name, key=_badness) for name, of_name in by_name.items()}
    axis = axis_of(e.rms for a in worst.values() for e in (a.local, a.global_error) if e)
    parts: dict[str, list[ActivationRecord]] = {}
    for name, a in worst.items():
        parts.setdefault(placed(name)[0], []).append(a)
    head = f"○ global ● local, {axis.reach}"
    for part, records in parts.items():
        fails = any(a.outcome in ("fail", "xfail") for a in records)
        yield f"{part}: {_counts(records)}", fails, head, [_row(a, by_name[a.activation], axis) for a in records]


def _badness(a: ActivationRecord) -> tuple[int, float]:
    if a.outcome == "not_observed":
        return -1, 0.0
    rank = severity(a.outcome)
    return rank, float("inf") if a.excess is None and rank else a.excess or 0.0


def _counts(records: Sequence[ActivationRecord]) -> str:
    """Return the numbers of activations that are right, wrong, not exposed and not judged, as text."""
    counts = Counter(_unjudged(a) or OUTCOME_TEXT[a.outcome].of_activation for a in records)
    texts = dict.fromkeys((*(outcome.of_activation for outcome in OUTCOME_TEXT.values()), "not judged"))
    right = OUTCOME_TEXT["pass"].of_activation
    given = ", given their own inputs" if counts[OUTCOME_TEXT["fail"].of_activation] else ""
    return ", ".join(f"{counts[text]} {text}{given if text == right else ''}" for text in texts if counts[text])


def _row(a: ActivationRecord, batches: Sequence[ActivationRecord], axis: Axis) -> Row:
    """Return the row of one activation, with the numbers of the batch on which it is worst."""
    refused = a.outcome == "fail" and a.local is None and bool(a.reason)
    mark = _unjudged(a) or ("breaks the contract" if refused else _MARKS.get(a.outcome, a.role or ""))
    failing, every = {b.batch for b in batches if b.outcome == a.outcome}, {b.batch for b in batches}
    several = f"in {len(failing)} of {len(every)} batches" if a.outcome in ("fail", "xfail") and len(every) > 1 else ""
    name = Span(placed(a.activation)[1], _TONES.get(mark, ""), note="; ".join(filter(None, (mark, a.reason, several))))
    local, global_error = (e.rms if e else None for e in (a.local, a.global_error))
    points = Points(axis.at(global_error), axis.at(local), axis.at(a.limits.get("rms") if local is not None else None))
    exact = "" if a.local is None else "exact" if a.outcome == "pass" else "differs"
    return name, points, sigma(local, exact), sigma(a.local.max if a.local else None, ""), sigma(global_error, "")


def _unjudged(a: ActivationRecord) -> str:
    """Return why no error is known: the candidate does not expose the activation, or there is a reason; otherwise empty."""
    return "" if a.outcome != "not_observed" else "not judged" if a.reason else "not exposed"
