"""A law, and what a search makes of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from hypothesis import strategies as st

from conformance.checks.search.strategies import batches
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
        in_its_process: whether it looks into the candidate's module, or sets or reads its process's settings, so that it is
            evaluated there, and what it finds is that process's word. The others compare values, and are evaluated by the judge.
    """

    holds: Callable[[Subject, Example], float]
    batches: Callable[[Architecture], st.SearchStrategy[Batch]] = batches
    variations: Callable[[Batch, Architecture], st.SearchStrategy[Variation]] = _unvaried
    applies: Callable[[Subject], None] = _everywhere
    once: bool = False
    by_oracle: bool = False
    in_its_process: bool = False
    affords: float = 1.0

    def examples(self, architecture: Architecture) -> st.SearchStrategy[Example]:
        """Batches, each with what is done with it."""
        return _examples(self, architecture)


@lru_cache(maxsize=64)
def _batches(law: Law, architecture: Architecture) -> st.SearchStrategy[Batch]:
    """Made once: Hypothesis looks into a strategy when it first meets it."""
    return law.batches(architecture)


@st.composite
def _examples(draw: st.DrawFn, law: Law, architecture: Architecture) -> Example:
    batch = draw(_batches(law, architecture))
    return Example(batch, draw(law.variations(batch, architecture)))


def run_of(subject: Subject, batch: Batch) -> Run:
    """The batch, run."""
    return Run(batch, subject.run(batch))
