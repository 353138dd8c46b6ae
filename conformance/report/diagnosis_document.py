"""Document of a diagnosis from final outputs. Pure functions."""

import math
from collections.abc import Iterator

from conformance.diagnosis.conclusions import Diagnosis, RankedExplanation
from conformance.diagnosis.pooling import POOLINGS
from conformance.judge.thresholds import SEPARABLE_Z
from conformance.report.document import Block, Document, Headline, Items, Lists, Paragraph

_LISTED = 12  # maximum number of names in a list


def document(found: Diagnosis) -> Document:
    """Return the document: verdict, facts about the outputs, then the explanations or, after a pass, the excluded faults."""
    verdict = Headline(_verdict(found), "good" if found.conforms else "bad")
    blocks = (verdict, *map(Paragraph, _facts(found)), *(_passing(found) if found.conforms else _failing(found)))
    return Document(verdict.text, blocks, verdict.tone)


def _verdict(found: Diagnosis) -> str:
    if found.conforms:
        return "conforms, as far as these outputs show"
    if not any(e.explains for e in found.explanations):
        if found.cut_short:
            return "does not conform, and no explanation was found within the time limit"
        return "does not conform, and no set of up to three mistakes of the catalogue explains it"
    return "does not conform"


def _facts(found: Diagnosis) -> Iterator[str]:
    read = ", ".join(f"{count} numbers of {name}" for name, count in found.outputs)
    digits = "exact" if found.digits is None else f"{found.digits:.2g} decimals"
    yield f"read: {read}; {digits}; computed in {found.dtype}; sigma {found.sigma:.2g} (rounding and printing), the median"
    under = f" with pooling {found.pooling}" if found.pooling else ""
    yield (
        f"difference from the correct network{under}: rms {found.rms:.3g} σ (limit {found.rms_limit:.3g}), "
        f"largest {found.max:.3g} σ (limit {found.max_limit:.3g})"
    )
    if found.cut_short:
        yield found.cut_short


def _passing(found: Diagnosis) -> Iterator[Block]:
    yield from (Paragraph(f"pooling: {name}, {POOLINGS[name].sentence}") for name in found.poolings)
    total = len(found.shown) + len(found.unseen)
    yield Paragraph(
        f"{len(found.shown)} of {total} mistakes would have been detected (expected z ≥ {SEPARABLE_Z:g}), in every layer"
    )
    weak = [f"{u.name} (z = {u.expected_z:.2g})" for u in found.unseen if u.expected_z > 0.0]
    none = [u.name for u in found.unseen if not u.expected_z > 0.0]
    lists = (("too small to be detected in these outputs", _first(weak)), ("no effect on these outputs", _first(none)))
    yield Lists(tuple((what, of) for what, of in lists if of))
    yield Paragraph(found.unconfirmed)


def _failing(found: Diagnosis) -> Iterator[Block]:
    if found.called:
        mistakes = ", ".join(_first(list(found.called)))
        yield Paragraph(f"rms and largest error are within their limits, but the error has the pattern of {mistakes}")
    explaining = [e for e in found.explanations if e.explains]
    tied = found.tied
    if explaining and len(tied) > 1:
        yield Paragraph(f"{len(tied)} explanations cannot be distinguished on these numbers:")
    if not explaining and found.explanations:
        yield Paragraph(
            "These sets of mistakes come closest, but do not explain the outputs: each leaves errors beyond rounding, and any of "
            "their mistakes may be absent."
        )
    yield Items(tuple((f"{i}. {_headline(e)}", *_details(e)) for i, e in enumerate(tied or found.explanations, 1)))
    others = [e for e in explaining if not e.tied]
    if others:
        yield Lists((("also explain the outputs, but are less likely or less simple", _first([_brief(e) for e in others])),))


def _details(e: RankedExplanation) -> Iterator[str]:
    for attribution in e.faults:
        yield f"{attribution.sentence}: {attribution.where}"
        if attribution.cause and e.explains:
            yield f"usual cause: {attribution.cause}"
    yield _figures(e)


def _headline(e: RankedExplanation) -> str:
    names = [b.name for b in e.faults]
    if e.pooling_differs:
        names.insert(0, f"pooling {e.pooling}")
    if not names:
        names = [f"computed in {e.dtype}"]
    rendered = " and ".join(names)
    return (
        rendered if e.explains else f"not an explanation: {rendered} would account for {_percent(e.accounted)} of the squared error"
    )


def _percent(share: float) -> str:
    """Return a share of less than 1 in per cent, rounded down, so that it is never shown as 100 %."""
    return f"{math.floor(1000.0 * share) / 10.0:g} %"


def _brief(e: RankedExplanation) -> str:
    return " and ".join(f"{b.name} ({b.where})" for b in e.faults) or (f"pooling {e.pooling}" if e.pooling_differs else e.dtype)


def _figures(e: RankedExplanation) -> str:
    parts = [f"remaining difference: rms {e.rms:.3g} σ, largest {e.max:.3g} σ"]
    if e.z is not None:
        parts.append(f"z = {e.z:.3g}")
    parts.append(f"evidence {e.evidence:.3g} nats")
    if e.pooling:
        parts.append(f"pooling {e.pooling}")
    return ", ".join(parts)


def _first(texts: list[str]) -> tuple[str, ...]:
    """Return the first `_LISTED` texts and, if there are more, their number."""
    more = [f"{len(texts) - _LISTED} more"] if len(texts) > _LISTED else []
    return (*texts[:_LISTED], *more)
