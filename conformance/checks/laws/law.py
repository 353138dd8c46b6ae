"""Laws: checks that search for a batch on which a property does not hold, and report the smallest such batch."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, ClassVar

from hypothesis import strategies as st

from conformance.candidates.torch_state import restore, settings_now
from conformance.checks.candidate_device import require_place
from conformance.checks.check import USUAL, Check, Request
from conformance.checks.contract import require_support
from conformance.checks.integrity import unaltered
from conformance.checks.judgement import check_values
from conformance.checks.search.agreement import RowPairs, require_agreement
from conformance.checks.search.find import Search
from conformance.checks.search.strategies import ANY, ROWS, Batches
from conformance.checks.search.subject import Subject, static_shape
from conformance.errors import CandidateCrash, CandidateEnded, CandidateTimeout, RegistrationError
from conformance.goldens.custom_golden import fits, golden_of
from conformance.judge.evidence import Verdict
from conformance.model.architecture import Architecture
from conformance.model.batch import Batch
from conformance.model.checkpoint import Checkpoint
from conformance.numerics.formats import format_named
from conformance.numerics.memo import IdentityKey
from conformance.results.example import Example, LawBroken, Run
from conformance.results.outcomes import Outcome
from conformance.results.result import Counterexample, Result, Searched
from conformance.results.termination import Termination, run_guarded

Variation = Mapping[str, Any]
MASKS = ("bool", "uint8", "int32", "float32")  # dtypes of a mask in addition to int64, that of a batch
COMPARISONS = max(ROWS, len(MASKS))  # the most comparisons per example: each row with the whole batch, or each dtype with int64

_FIRST = Batch.of({"input_ids": [[0]], "token_type_ids": [[0]], "attention_mask": [[1]]})


@dataclass(frozen=True)
class Law(Check):
    """A property that holds for every example.

    Its function runs a subject on an example and returns the largest ratio of an error to its limit (0 if nothing is measured), or
    raises `LawBroken`.

    Attributes:
        batches: the batches on which the law is tested.
        variations: strategy for the parameters of what the law does with a batch.
        applies: raises `Unsupported` with the reason if the law does not apply to a subject.
        once: whether the law depends on the subject only, so that one example suffices.
        by_oracle: whether an example on which the law fails is also judged by the oracle.
        affords: factor on the planned number of examples, for examples that cost less or more than usual.
    """

    batches: Batches = ANY
    variations: Callable[[Batch, Architecture], st.SearchStrategy[Variation]] = lambda batch, architecture: st.just({})
    applies: Callable[[Subject], None] = lambda subject: None
    once: bool = False
    by_oracle: bool = False
    affords: float = 1.0
    searches: ClassVar[bool] = True
    inputs: ClassVar[str] = "batches that Hypothesis draws, shrunk to the smallest that fails"

    def examples(self, architecture: Architecture) -> st.SearchStrategy[Example]:
        """Return a strategy for examples: a batch and the parameters of its variation."""
        return _drawn(self, architecture)

    def boundaries(self, architecture: Architecture) -> Sequence[st.SearchStrategy[Example]]:
        """Return one strategy per boundary length of kernels and tables, longest first; none if one example suffices."""
        return () if self.once else _at_boundaries(self, architecture)

    def run(self, request: Request) -> Result:
        """Search for an example on which the law does not hold and return the result; no exception is raised."""
        search = Search()

        def judged() -> Termination:
            with unaltered(request.golden, request.candidate):
                return _searched(self, request, search)

        termination = run_guarded(judged)
        if termination.outcome not in ("pass", "fail", "skip"):
            _prepared.cache_clear()  # The process in which the candidate was prepared may have ended.
        verdicts = _verdicts(request, search) if self.by_oracle and termination.outcome != "error" else ()
        return termination.result(
            request.case,
            executed=termination.outcome in ("pass", "fail", "crash") and search.tried > 0,
            verdicts=verdicts,
            by_values=any(v.outcome == "fail" for v in verdicts),
            sizes=search.sizes,
            searched=Searched(search.tried, search.worst, request.plan.seed is not None),
            counterexample=_counterexample(search),
        )


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


def _searched(law: Law, request: Request, search: Search) -> Termination:
    case = request.case
    format_named(case.dtype)
    require_place(request.candidate, case.device)
    require_support(request.candidate, request.golden, case.device, case.dtype)
    tests = request.runs * max(request.plan.examples, request.plan.shared, 1) * COMPARISONS
    subject = replace(_subject(request), name=case.implementation, tests=tests)
    law.applies(subject)
    examples = min(request.plan.examples, 1) if law.once else math.ceil(law.affords * request.plan.examples)
    plan = replace(request.plan, examples=examples)
    architecture = subject.checkpoint.architecture
    given = [example for example in request.examples if fits(example.batch, architecture)]
    boundaries = law.boundaries(architecture)[: request.plan.examples // 2]
    search.run(partial(law.function, subject), law.examples(architecture), plan, given, boundaries)
    if search.failure is None:
        return Termination("pass")
    if isinstance(search.failure, CandidateEnded | CandidateTimeout | RegistrationError):
        raise search.failure
    size = static_shape(subject, request.golden.batches)
    outcome: Outcome = "crash" if isinstance(search.failure, CandidateCrash) else "fail"
    how_often = "" if search.repeatable else "; when run again it did not fail: it depends on what was called before"
    return Termination(outcome, f"{size}{search.failure}{how_often}", 1)


def _verdicts(request: Request, search: Search) -> tuple[Verdict, ...]:
    """Return the verdicts of a full judgement of the counterexample; none if there is no counterexample."""
    if search.example is None:
        return ()
    golden = golden_of(request.golden.name, request.golden.checkpoint, {"generated": search.example.batch})
    return check_values(replace(request.on(golden), plan=USUAL, require=())).verdicts


def _counterexample(search: Search) -> Counterexample | None:
    if search.example is None or search.failure is None:
        return None
    if isinstance(search.failure, LawBroken):
        return Counterexample(search.example, {f"run-{i}": run for i, run in enumerate(search.failure.runs, 1)}, search.failure)
    batch = search.failure.batch  # the failing batch, which the law may have derived from the example's batch
    runs = {"run-1": Run(batch, {})} if batch else {}
    return Counterexample(search.example, runs, crashes=isinstance(search.failure, CandidateCrash))


def _subject(request: Request) -> Subject:
    """Return the subject, prepared once for successive laws, and restore the settings that its preparation left."""
    case = request.case
    key = (IdentityKey(request.candidate), IdentityKey(request.golden.checkpoint), case.device, case.dtype)
    subject, settings = _prepared(*key)
    restore(settings)
    return subject


@lru_cache(maxsize=1)
def _prepared(
    candidate: IdentityKey[Any], checkpoint: IdentityKey[Checkpoint], device: str, dtype: str
) -> tuple[Subject, list[Any]]:
    """Prepare a subject and call it once, since a first call may load, compile and allocate; return the settings too."""
    subject = Subject.prepared(candidate.value, checkpoint.value, device, dtype)
    settings = settings_now()
    with suppress(CandidateEnded):  # the search will report the same failure with its example
        subject.answers(_FIRST)
    return subject, settings


def require_no_effect(subject: Subject, batch: Batch, changed: Batch, rows: Sequence[int] | None = None) -> float:
    """Require that a change of the batch does not change the candidate's results on these rows (by default, on all rows).

    Return values and errors are those of `require_agreement`.
    """
    rows = range(batch.size) if rows is None else rows
    return require_agreement(subject, run_of(subject, batch), run_of(subject, changed), RowPairs(rows, rows))


def run_of(subject: Subject, batch: Batch) -> Run:
    """Run the subject on a batch and return the run."""
    return Run(batch, subject.run(batch))
