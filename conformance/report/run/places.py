"""Location of an error: heat strips along each axis, coloured tokens of a batch, and a histogram of the residuals."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from conformance.judge.error_distribution import REACH, STEP
from conformance.report.coverage_sentences import padding, place
from conformance.report.document import Block, Column, Figures, Heading, HeatStrip, Histogram, Row, Token, tabled
from conformance.results.records import ActivationRecord, CounterexampleRecord, StripRecord

LEVELS = 6  # number of heat levels; level 0 is within the limit
_UNITS = {"sigma": "σ", "ulp": "ULP"}


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


def placed_error(a: ActivationRecord, scale: Scale) -> Iterator[Block]:
    """Yield the heat strips of one activation's error and, if known, the histogram of its residuals."""
    assert a.spread is not None
    yield Heading(f"Where the error sits: {place(a)}", level=4)
    columns = (Column("axis"), Column("error along it"), Column("beyond the limit", is_text=True))
    yield from tabled(columns, [("", [_strip(s, scale) for s in a.spread.strips if s.size > 1])])
    if any(a.spread.counts):
        limit = f". The limit of their RMS is {scale.rendered(scale.limit)}" if a.spread.unit == "sigma" else ""
        yield Figures(((histogram(a.spread.counts), f"Residuals in σ; the line is what rounding predicts{limit}."),))


def _strip(s: StripRecord, scale: Scale) -> Row:
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
    return Row((s.axis, HeatStrip(levels, f"error along {s.axis}, beyond the limit {worst}"), worst))


def tokens(
    found: CounterexampleRecord, errors: Sequence[Sequence[float | None]], scale: Scale | None
) -> tuple[tuple[Token, ...], ...]:
    """Return the batch of a counterexample as rows of tokens, coloured on a scale by the known errors at each row and position."""
    ids, mask, types = (found.batch.get(name) for name in ("input_ids", "attention_mask", "token_type_ids"))
    unread = padding(mask) if mask else None
    rows = []
    for r, row in enumerate(ids or []):
        rendered = []
        for i, token in enumerate(row):
            text = found.words[r][i] if found.words and r < len(found.words) and i < len(found.words[r]) else str(token)
            masked = unread is not None and unread[r][i]
            error = errors[r][i] if r < len(errors) and i < len(errors[r]) else None
            parts = [f"id {token}", "masked" if masked else "", f"token type {types[r][i]}" if types else ""]
            parts += [scale.rendered(error)] if scale and error is not None else []
            level = (scale.level(error) or 0) if scale else 0
            rendered.append(Token(text, masked, level=level, about=", ".join(part for part in parts if part)))
        rows.append(tuple(rendered))
    return tuple(rows)


def histogram(counts: Sequence[int]) -> Histogram:
    """Return the histogram of residuals, with a normal distribution of one sigma; bins as in `judge.error_distribution`."""
    total, bins = sum(counts), len(counts)
    title = f"{total} residuals, {counts[0] + counts[-1]} of them beyond {REACH:g} sigma, beside a normal distribution of one sigma"
    inner = ((0.5 + at / STEP / bins, f"{at:g}{' σ' if at == 0.0 else ''}") for at in (-REACH / 2.0, 0.0, REACH / 2.0))
    labels = ((0.0, f"< −{REACH:g}"), *inner, (1.0, f"> {REACH:g}"))
    return Histogram(tuple(counts), tuple(total * _normal(i, bins) for i in range(bins)), labels, title)


def pooled(all_counts: Sequence[Sequence[int]]) -> list[int]:
    """Return the sum of several histograms; empty ones are ignored."""
    return [sum(column) for column in zip(*(c for c in all_counts if c), strict=True)]


def _normal(index: int, bins: int) -> float:
    """Return the probability of a bin under a normal distribution of one sigma; the first and the last bin include the tails."""
    low = -math.inf if index == 0 else -REACH + (index - 1) * STEP
    high = math.inf if index == bins - 1 else -REACH + index * STEP
    return 0.5 * (math.erf(high / math.sqrt(2.0)) - math.erf(low / math.sqrt(2.0)))
