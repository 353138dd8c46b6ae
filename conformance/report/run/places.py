"""Where an error sits: a strip an axis, a batch's tokens, each in the colours of its size beyond the limit."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from conformance.report.html.axis import figure
from conformance.report.html.svg import cells, drawing, element
from conformance.results.records import ActivationRecord, CounterexampleRecord, SpreadRecord, StripRecord

LEVELS = 6  # of heat; level 0 is within the limit
_UNITS = {"sigma": "σ", "ulp": "ULP"}


@dataclass(frozen=True)
class Scale:
    """Heat of a value: none up to `limit`, then by its logarithm up to `top`."""

    limit: float
    top: float
    unit: str

    def level(self, value: float | None) -> int | None:
        """0 to LEVELS − 1; None where nothing is judged."""
        if value is None:
            return None
        if value <= self.limit:
            return 0
        reach = math.log(self.top) - math.log(self.limit)
        return min(1 + int((LEVELS - 1) * (math.log(value) - math.log(self.limit)) / reach), LEVELS - 1) if reach else LEVELS - 1

    def rendered(self, value: float | None) -> str:
        """With its unit."""
        return "not judged" if value is None else f"{figure(value)} {self.unit}"


def scale_of(a: ActivationRecord) -> Scale | None:
    """Of an activation whose places are known; at exact ones anything at all is beyond the limit."""
    if a.spread is None or not a.spread.strips:
        return None
    values = [v for s in a.spread.strips for v in s.values if v and math.isfinite(v)]
    values += [v for row in a.spread.tokens for v in row if v and math.isfinite(v)]
    if not values:
        return None
    limit = a.limits.get("rms") or math.nextafter(min(values), 0.0)
    return Scale(limit, max(values), _UNITS[a.spread.unit])


@dataclass(frozen=True)
class StripView:
    """A strip: its axis, the drawing, and where it is worst, in words."""

    axis: str
    drawn: Markup
    worst: str


def strips(spread: SpreadRecord, scale: Scale) -> list[StripView]:
    """A strip for each axis along which there is more than one slice."""
    return [_strip(s, scale) for s in spread.strips if s.size > 1]


def _strip(s: StripRecord, scale: Scale) -> StripView:
    levels = [scale.level(v) for v in s.values]
    hot = sum(bool(level) for level in levels)
    where = max(range(len(s.values)), key=lambda i: s.values[i] or 0.0)
    per = -(-s.size // len(s.values))
    last = min((where + 1) * per, s.size) - 1
    place = f"{s.axis} {where * per}" if per == 1 else f"{s.axis}s {where * per} to {last}"
    everywhere = hot == sum(v is not None for v in s.values)
    share = "nowhere by itself" if not hot else "everywhere" if everywhere else f"in {hot} of {len(s.values)} parts"
    worst = f"beyond the limit {share}; worst: {place} (of 0 to {s.size - 1}), {scale.rendered(s.values[where])}"
    paths = [element("path", d=_path(levels, n), class_=f"h{n}") for n in range(1, LEVELS) if n in levels]
    title = f"error along {s.axis}: {worst}"
    return StripView(s.axis, drawing(len(levels), 1, title, *paths, class_="strip", preserveAspectRatio="none"), worst)


def _path(levels: Sequence[int | None], level: int) -> str:
    return cells((i, 0) for i, found in enumerate(levels) if found == level)


@dataclass(frozen=True)
class Token:
    """One token: its text, whether it is padding, its heat, and the rest in words."""

    text: str
    masked: bool
    level: int
    about: str


def tokens(found: CounterexampleRecord, errors: Sequence[Sequence[float | None]], scale: Scale | None) -> list[list[Token]]:
    """A batch as rows of tokens, with the error at each position where it is known."""
    ids, mask, types = (found.batch.get(name) for name in ("input_ids", "attention_mask", "token_type_ids"))
    rows: list[list[Token]] = []
    for r, row in enumerate(ids or []):
        rendered = []
        for i, token in enumerate(row):
            text = found.words[r][i] if found.words and r < len(found.words) and i < len(found.words[r]) else str(token)
            masked = mask is not None and not mask[r][i]
            error = errors[r][i] if r < len(errors) and i < len(errors[r]) else None
            parts = [f"id {token}", "masked" if masked else "", f"token type {types[r][i]}" if types else ""]
            parts += [scale.rendered(error)] if scale and error is not None else []
            rendered.append(Token(text, masked, (scale.level(error) or 0) if scale else 0, ", ".join(p for p in parts if p)))
        rows.append(rendered)
    return rows
