"""A law, and what a search makes of it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from hypothesis import strategies as st

from conformance.checks.search.agreement import RowPairs, require_agreement
from conformance.checks.search.strategies import ANY, Batches
from conformance.checks.search.subject import Subject
from conformance.model.architecture import Architecture
from conformance.model.batch import Batch
from conformance.results.example import Example
from conformance.results.law_broken import Run

Variation = Mapping[str, Any]


def _unvaried(batch: Batch, architecture: Architecture) -> st.SearchStrategy[Variation]:
    return st.just({})


def _everywhere(subject: Subject) -> None:
    return None


@dataclass(frozen=True)
class Law:
    """What holds of every example.

    Attributes:
        holds: run the subject on the example; an error over its limit (0 where nothing is measured), or `LawBroken`.
        batches: what it is tried on.
        variations: what may be done with a batch.
        applies: raises `Unsupported` with the reason where it says nothing of a subject.
        once: whether it is of the subject alone, and one example says all.
        affords: how many times as many examples as others, where they cost less or more.
        by_oracle: whether the oracle can say more of an example on which it does not hold.
    """

    holds: Callable[[Subject, Example], float]
    batches: Batches = ANY
    variations: Callable[[Batch, Architecture], st.SearchStrategy[Variation]] = _unvaried
    applies: Callable[[Subject], None] = _everywhere
    once: bool = False
    by_oracle: bool = False
    affords: float = 1.0

    def examples(self, architecture: Architecture) -> st.SearchStrategy[Example]:
        """Batches, each with what is done with it."""
        return _drawn(self, architecture)

    def boundaries(self, architecture: Architecture) -> Sequence[st.SearchStrategy[Example]]:
        """The same of each length at which kernels and tables end, the longest first; none where one example says all."""
        return () if self.once else _at_boundaries(self, architecture)


# Made once each: Hypothesis looks into a strategy when it first meets it.
@lru_cache(maxsize=64)
def _drawn(law: Law, architecture: Architecture) -> st.SearchStrategy[Example]:
    return _examples(law, architecture, law.batches.drawn(architecture))


@lru_cache(maxsize=64)
def _at_boundaries(law: Law, architecture: Architecture) -> Sequence[st.SearchStrategy[Example]]:
    return [_examples(law, architecture, batches) for batches in law.batches.at_boundaries(architecture)]


@st.composite
def _examples(draw: st.DrawFn, law: Law, architecture: Architecture, batches: st.SearchStrategy[Batch]) -> Example:
    batch = draw(batches)
    return Example(batch, draw(law.variations(batch, architecture)))


def require_no_effect(subject: Subject, batch: Batch, changed: Batch, rows: Sequence[int] | None = None) -> float:
    """That the candidate makes of these rows of a changed batch (all, unless they are named) what it makes of the batch.

    Returns and raises as `require_agreement`.
    """
    rows = range(batch.size) if rows is None else rows
    return require_agreement(subject, run_of(subject, batch), run_of(subject, changed), RowPairs(rows, rows))


def run_of(subject: Subject, batch: Batch) -> Run:
    """The batch, run."""
    return Run(batch, subject.run(batch))
