"""Laws, the strategies that draw their examples, and helpers that compare two runs."""

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


@dataclass(frozen=True)
class Law:
    """A property that holds for every example.

    Attributes:
        holds: runs the subject on an example and returns the largest ratio of an error to its limit (0 if nothing is measured), or
            raises `LawBroken`.
        batches: the batches on which the law is tested.
        variations: strategy for the parameters of what the law does with a batch.
        applies: raises `Unsupported` with the reason if the law does not apply to a subject.
        once: whether the law depends on the subject only, so that one example suffices.
        by_oracle: whether an example on which the law fails is also judged by the oracle.
        affords: factor on the planned number of examples, for examples that cost less or more than usual.
    """

    holds: Callable[[Subject, Example], float]
    batches: Batches = ANY
    variations: Callable[[Batch, Architecture], st.SearchStrategy[Variation]] = lambda batch, architecture: st.just({})
    applies: Callable[[Subject], None] = lambda subject: None
    once: bool = False
    by_oracle: bool = False
    affords: float = 1.0

    def examples(self, architecture: Architecture) -> st.SearchStrategy[Example]:
        """Return a strategy for examples: a batch and the parameters of its variation."""
        return _drawn(self, architecture)

    def boundaries(self, architecture: Architecture) -> Sequence[st.SearchStrategy[Example]]:
        """Return one strategy per boundary length of kernels and tables, longest first; none if one example suffices."""
        return () if self.once else _at_boundaries(self, architecture)


# Cached because Hypothesis analyses each new strategy object at its first use.
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
    """Require that a change of the batch does not change the candidate's results on these rows (by default, on all rows).

    Return values and errors are those of `require_agreement`.
    """
    rows = range(batch.size) if rows is None else rows
    return require_agreement(subject, run_of(subject, batch), run_of(subject, changed), RowPairs(rows, rows))


def run_of(subject: Subject, batch: Batch) -> Run:
    """Run the subject on a batch and return the run."""
    return Run(batch, subject.run(batch))
