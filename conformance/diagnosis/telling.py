"""A diagnosis as text: for a terminal, and in Markdown. Pure functions."""

from collections.abc import Iterator

from conformance.diagnosis.evidence import Diagnosis, FaultAttribution, RankedExplanation
from conformance.diagnosis.pooling import POOLINGS
from conformance.judge.statistics import SEPARABLE_Z

_LISTED = 12  # names that are reported one by one


def pretty(found: Diagnosis) -> str:
    """For a terminal or a pipe."""
    return "\n".join([_verdict(found), *(f"  {line}" for line in _details(found))]) + "\n"


def markdown(found: Diagnosis) -> str:
    """For a pull request or an issue."""
    lines = [f"**{_verdict(found)}**", ""]
    for line in _details(found):
        indent = len(line) - len(line.lstrip())
        lines.append(f"{' ' * indent}- {_escaped(line.strip())}")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    for special, rendered in (("&", "&amp;"), ("<", "&lt;"), ("|", "\\|"), ("`", "&#96;"), ("_", "\\_"), ("*", "\\*")):
        text = text.replace(special, rendered)
    return text


def _verdict(found: Diagnosis) -> str:
    if found.conforms:
        return "conforms, as far as these numbers show"
    if not any(e.explains for e in found.explanations):
        if found.cut_short:
            return "does not conform, and no explanation was found in the time that it had"
        return "does not conform, and no set of up to three faults of the catalogue explains it"
    return "does not conform"


def _details(found: Diagnosis) -> Iterator[str]:
    read = ", ".join(f"{count} numbers of {name}" for name, count in found.outputs)
    digits = "exact" if found.digits is None else f"{found.digits:.2g} decimals"
    yield f"read: {read}; {digits}; computed in {found.dtype}; sigma {found.sigma:.2g} (rounding and printing), the median"
    under = f" with pooling {found.pooling}" if found.pooling else ""
    yield (
        f"the right network{under}: rms {found.rms:.3g} σ (limit {found.rms_limit:.3g}), "
        f"largest {found.max:.3g} σ (limit {found.max_limit:.3g})"
    )
    if found.cut_short:
        yield found.cut_short
    yield from _passing(found) if found.conforms else _failing(found)


def _passing(found: Diagnosis) -> Iterator[str]:
    for name in found.poolings:
        yield f"pooling: {name}, {POOLINGS[name].sentence}"
    total = len(found.shown) + len(found.unseen)
    yield f"{len(found.shown)} of {total} faults would have been seen (expected z ≥ {SEPARABLE_Z:g}), in every layer"
    weak = [f"{u.name} (z = {u.expected_z:.2g})" for u in found.unseen if u.expected_z > 0.0]
    none = [u.name for u in found.unseen if not u.expected_z > 0.0]
    if weak:
        yield f"too weak to be seen in these numbers: {_some(weak)}"
    if none:
        yield f"would change none of them: {_some(none)}"


def _failing(found: Diagnosis) -> Iterator[str]:
    if found.called:
        yield f"rms and largest error would pass; what gives it away is the pattern of {_some(list(found.called))}"
    explaining = [e for e in found.explanations if e.explains]
    tied = found.tied
    if explaining and len(tied) > 1:
        yield f"{len(tied)} explanations cannot be distinguished on these numbers:"
    for number, e in enumerate(tied or found.explanations, 1):
        yield f"{number}. {_headline(e)}"
        for blamed in e.faults:
            yield f"   {sentence(blamed)}"
            if blamed.cause:
                yield f"     usual cause: {blamed.cause}"
        yield f"   {_figures(e)}"
    others = [e for e in explaining if not e.tied]
    if others:
        yield f"less likely or less simple, though they would pass: {_some([_brief(e) for e in others])}"


def _headline(e: RankedExplanation) -> str:
    names = [b.name for b in e.faults]
    if e.pooling_differs:
        names.insert(0, f"pooling {e.pooling}")
    if not names:
        names = [f"computed in {e.dtype}"]
    rendered = " and ".join(names)
    return rendered if e.explains else f"{rendered}: accounts for {100.0 * e.accounted:.3g} % only"


def sentence(blamed: FaultAttribution) -> str:
    """`epsilon is 1e-05 ± 1e-08, the checkpoint says 1e-12: in every layer, ...`."""
    return f"{blamed.sentence}: {blamed.where}"


def _brief(e: RankedExplanation) -> str:
    return " and ".join(f"{b.name} ({b.where})" for b in e.faults) or (f"pooling {e.pooling}" if e.pooling_differs else e.dtype)


def _figures(e: RankedExplanation) -> str:
    parts = [f"leaves rms {e.rms:.3g} σ, largest {e.max:.3g} σ"]
    if e.z is not None:
        parts.append(f"z = {e.z:.3g}")
    parts.append(f"evidence {e.evidence:.3g} nats")
    if e.pooling:
        parts.append(f"pooling {e.pooling}")
    return ", ".join(parts)


def _some(texts: list[str]) -> str:
    return ", ".join(texts[:_LISTED]) + (f" and {len(texts) - _LISTED} more" if len(texts) > _LISTED else "")
