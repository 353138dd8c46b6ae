"""Disambiguation of several explanations of a failure: another batch is generated, run by the candidate, and judged."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from conformance.errors import CandidateFailure, NotApplicable
from conformance.goldens.batches import batch, drawn
from conformance.goldens.recipe import SEED
from conformance.judge.discriminating_batch import discriminating
from conformance.judge.evidence import Explanation, LocalJudgement, Verdict
from conformance.model.architecture import Architecture
from conformance.model.batch import Batch
from conformance.oracle import Network

_MASKS = (
    ("1111111111111111", "1111111111000000", "0000011111111111", "1101101011101101"),
    ("1111111111111111", "1111111111111111", "0111111111111111", "0001111111111000"),
    ("1111100000000000", "1111111111111110", "1011111111111111", "0000000011111111"),
)
LENGTH = len(_MASKS[0][0])  # tokens of a row of a further batch
_DRAWS = 2  # draws of ids and token types for each padding pattern
AT_MOST = 4  # batches tried per run; each is one more call of the candidate

Again = Callable[[Batch], Sequence[Verdict]]


def disambiguated(verdicts: Sequence[Verdict], network: Network, dtype: str, again: Again) -> list[Verdict]:
    """Return the verdicts without the explanations that another batch refutes; `again` judges the candidate on a batch."""
    rendered = list(verdicts)
    for names in list(_ambiguous(rendered))[:AT_MOST]:
        first = next(v for v in rendered if _names(v) == names)
        assert first.local is not None
        found = discriminating(network, first.activation, _open(first.local), dtype, _batches(network.architecture))
        if found is not None:
            rendered = _narrowed(rendered, names, again, found)
    return rendered


def _batches(architecture: Architecture) -> Iterator[Batch]:
    length = min(LENGTH, architecture.longest)
    for seed in range(SEED, SEED + _DRAWS):
        for masks in _MASKS:
            yield batch(seed, architecture, drawn([m[:length] for m in masks if "1" in m[:length]]), name="disambiguation/")


def _open(local: LocalJudgement) -> tuple[Explanation, ...]:
    """Return the best explanation and those that cannot be distinguished from it."""
    return (local.explanations[0], *local.alternatives)


def _names(verdict: Verdict) -> tuple[tuple[str, ...], ...]:
    """Return the names of the faults of each explanation; empty unless there are several explanations."""
    if verdict.outcome != "fail" or verdict.local is None or not verdict.local.alternatives:
        return ()
    return tuple(tuple(f.name for f in e.faults) for e in _open(verdict.local))


def _ambiguous(verdicts: Sequence[Verdict]) -> dict[tuple[tuple[str, ...], ...], None]:
    return dict.fromkeys(names for v in verdicts if (names := _names(v)))


def _narrowed(verdicts: Sequence[Verdict], names: tuple[tuple[str, ...], ...], again: Again, found: Batch) -> list[Verdict]:
    """Return the verdicts; each ambiguous one keeps only the explanations that the other batch allows as well."""
    try:
        other = {v.activation: v for v in again(found) if v.local is not None and v.local.explanations}
    except (CandidateFailure, NotApplicable):
        return list(verdicts)  # a failure on, or absence of, the other batch is no evidence for any explanation
    return [_allowed(v, other[v.activation]) if _names(v) == names and v.activation in other else v for v in verdicts]


def _allowed(verdict: Verdict, other: Verdict) -> Verdict:
    assert verdict.local is not None
    assert other.local is not None
    allowed = {tuple(f.name for f in e.faults) for e in _open(other.local)}
    kept = tuple(e for e in verdict.local.explanations if tuple(f.name for f in e.faults) in allowed)
    return replace(verdict, local=replace(verdict.local, explanations=kept)) if kept else verdict
