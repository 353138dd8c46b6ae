"""Document of a diagnosis from final outputs. Pure functions."""

from collections.abc import Iterator, Sequence

from conformance.diagnosis.diagnose_black_box import Diagnosis, RankedExplanation
from conformance.diagnosis.pooling import POOLINGS
from conformance.faults import BY_NAME, reported_as
from conformance.model.activations import LAYER
from conformance.numerics.thresholds import SEPARABLE_Z
from conformance.report.document import Document
from conformance.report.finding import same_phrase


def document(diagnosis: Diagnosis) -> Document:
    """Return the document: verdict, facts about the outputs, then the explanations or, after a pass, the excluded faults."""
    odd = _is_odd_pooling(diagnosis, diagnosis.pooling)
    tone = "bad" if not diagnosis.conforms else "odd" if odd else "good"
    same = _same_functions(diagnosis.tied)
    listed = [(diagnosis.tied[i], phrases) for i, phrases in same.items()]
    view = {
        "f": diagnosis,
        "poolings": [(name, _sentence(name, diagnosis)) for name in diagnosis.poolings],
        "separable": SEPARABLE_Z,
        "shown": sum(z >= SEPARABLE_Z for z in diagnosis.expected_z.values()),
        "weak": [f"{name} (z = {z:.2g})" for name, z in diagnosis.expected_z.items() if 0.0 < z < SEPARABLE_Z],
        "unseen": [name for name, z in diagnosis.expected_z.items() if not z > 0.0],
        "tied": len(same),
        "explanations": [
            [f"{i}. {_headline(e, diagnosis)}", *_details(e, diagnosis, said)] for i, (e, said) in enumerate(listed, 1)
        ],
        "others": [_brief(e, diagnosis) for e in diagnosis.explanations if not e.tied],
    }
    return Document("diagnosis", view, _verdict(diagnosis), tone, diagnosis)


def _verdict(diagnosis: Diagnosis) -> str:
    if diagnosis.conforms:
        if _is_odd_pooling(diagnosis, diagnosis.pooling):
            return f"conforms only if pooling over padding is intended ({diagnosis.pooling}); the checkpoint declares no pooling"
        return "conforms, as far as these outputs show"
    if not diagnosis.explanations:
        return "does not conform, and no set of up to three mistakes of the catalogue explains it"
    return "does not conform"


def _sentence(pooling: str, diagnosis: Diagnosis) -> str:
    return POOLINGS[pooling].sentence.format(features=diagnosis.features)


def _name(pooling: str, diagnosis: Diagnosis) -> str:
    """Return a name of a wrong pooling."""
    if POOLINGS[pooling].is_cut_last:
        return f"cut to {diagnosis.features} features, not normalised again"
    return POOLINGS[pooling].mistake or f"pooling {pooling}"


def _is_odd_pooling(diagnosis: Diagnosis, pooling: str) -> bool:
    """Return whether a pooling is over padding where none was declared: embeddings then depend on the batch."""
    return diagnosis.undeclared_pooling and bool(pooling) and POOLINGS[pooling].reads_padding


def _same_functions(tied: Sequence[RankedExplanation]) -> dict[int, list[str]]:
    """Return the indices of those explanations that are different functions.

    Each has the explanations that are the same function, as clauses. Of these the fault that is reported in the others' place
    comes first in `tied`, which is in the order of the catalogue.
    """
    first: dict[tuple[object, ...], int] = {}
    phrases: dict[int, list[str]] = {}
    for i, e in enumerate(tied):
        functions = sorted((reported_as(f.name), tuple(LAYER.sub(r"\1", place) for place in f.places)) for f in e.faults)
        index = first.setdefault((e.pooling, e.dtype, *functions), i)
        said = phrases.setdefault(index, [])
        others = [f for f in e.faults if index != i and reported_as(f.name) != f.name]
        numbers = [(f.estimate.value, f.estimate.deviation) if f.estimate else (None, None) for f in others]
        said += [same_phrase(f.name, *number) for f, number in zip(others, numbers, strict=True)]
    return phrases


def _details(e: RankedExplanation, diagnosis: Diagnosis, same: Sequence[str]) -> Iterator[str]:
    yield from _pooling(e, diagnosis)
    for attribution in e.faults:
        alike = f" (or {', or '.join(same)}; these outputs cannot tell which)" if same and attribution is e.faults[0] else ""
        yield f"{attribution.sentence}{alike}: {attribution.where}"
        if attribution.cause:
            yield f"usual cause: {attribution.cause}"
    yield _figures(e)


def _pooling(e: RankedExplanation, diagnosis: Diagnosis) -> Iterator[str]:
    """Yield a sentence about a wrong pooling, or one over padding, and its usual cause."""
    if not e.pooling_differs and not _is_odd_pooling(diagnosis, e.pooling):
        return
    pooling = POOLINGS[e.pooling]
    expected = f", not {_sentence(diagnosis.pooling, diagnosis)}" if e.pooling_differs else ""
    yield f"the embedding is {_sentence(e.pooling, diagnosis)}{expected}: in the pooling"
    if not e.pooling_differs:
        yield "the checkpoint declares no pooling; embeddings then depend on the padding of their batch"
    if pooling.is_cut_last:
        yield "usual cause: a slice of the embedding, or sentence-transformers' truncate_dim without normalize_embeddings=True"
    if pooling.mistake and BY_NAME[pooling.mistake].cause:
        yield f"usual cause: {BY_NAME[pooling.mistake].cause}"


def _headline(e: RankedExplanation, diagnosis: Diagnosis) -> str:
    names = [b.name for b in e.faults]
    if e.pooling_differs or _is_odd_pooling(diagnosis, e.pooling):
        names.insert(0, _name(e.pooling, diagnosis))
    if not names:
        names = [f"computed in {e.dtype}"]
    return " and ".join(names)


def _brief(e: RankedExplanation, diagnosis: Diagnosis) -> str:
    pooling = _name(e.pooling, diagnosis) if e.pooling_differs else ""
    return " and ".join(f"{b.name} ({b.where})" for b in e.faults) or pooling or e.dtype


def _figures(e: RankedExplanation) -> str:
    parts = [f"remaining difference: rms {e.rms:.3g} σ, largest {e.max:.3g} σ"]
    if e.z is not None and not any(f.estimate for f in e.faults):
        parts.append(f"z = {e.z:.3g}")
    if e.pooling:
        parts.append(f"pooling {e.pooling}")
    return ", ".join(parts)
