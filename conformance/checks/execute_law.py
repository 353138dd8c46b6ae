"""Checks that search for a batch on which a law does not hold and report the smallest such batch."""

import math
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

from conformance.candidates.torch_state import restore, settings_now
from conformance.checks.candidate_device import require_place
from conformance.checks.check import CheckRequest
from conformance.checks.check_values import check_values
from conformance.checks.contract import require_support
from conformance.checks.integrity import unaltered
from conformance.checks.laws.inputs import MASKS
from conformance.checks.laws.law import Law
from conformance.checks.search.find import SearchState, find_counterexample
from conformance.checks.search.strategies import ROWS
from conformance.checks.search.subject import Subject, static_shape
from conformance.errors import CandidateCrash, CandidateEnded, CandidateTimeout, RegistrationError
from conformance.goldens.custom_golden import fits, golden_of
from conformance.judge.evidence import Verdict
from conformance.model.batch import Batch
from conformance.model.checkpoint import Checkpoint
from conformance.numerics.formats import format_named
from conformance.numerics.memo import IdentityKey
from conformance.results.law_broken import LawBroken, Run
from conformance.results.outcomes import Outcome
from conformance.results.result import Counterexample, Result, Searched
from conformance.results.termination import Termination, run_guarded

COMPARISONS = max(ROWS, len(MASKS))  # the most comparisons per example: each row with the whole batch, or each dtype with int64

_FIRST = Batch.of({"input_ids": [[0]], "token_type_ids": [[0]], "attention_mask": [[1]]})


def execute(law: Law, request: CheckRequest) -> Result:
    """Search for an example on which the law does not hold and return the result; no exception is raised."""
    found = SearchState()

    def judged() -> Termination:
        with unaltered(request.golden, request.candidate):
            return _searched(law, request, found)

    termination = run_guarded(judged)
    if termination.outcome not in ("pass", "fail", "skip"):
        _prepared.cache_clear()  # The process in which the candidate was prepared may have ended.
    verdicts = _verdicts(request, found) if law.by_oracle and termination.outcome != "error" else ()
    return termination.result(
        request.case,
        executed=termination.outcome in ("pass", "fail", "crash") and found.tried > 0,
        verdicts=verdicts,
        by_values=any(v.outcome == "fail" for v in verdicts),
        sizes=found.sizes,
        searched=Searched(found.tried, found.worst, request.plan.seed is not None),
        counterexample=_counterexample(found),
    )


def _searched(law: Law, request: CheckRequest, found: SearchState) -> Termination:
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
    known = [example for example in request.known if fits(example.batch, architecture)]
    boundaries = law.boundaries(architecture)[: request.plan.examples // 2]
    find_counterexample(partial(law.holds, subject), law.examples(architecture), plan, found, known, str(case), boundaries)
    if found.failure is None:
        return Termination("pass")
    if isinstance(found.failure, CandidateEnded | CandidateTimeout | RegistrationError):
        raise found.failure
    size = static_shape(subject, request.golden.batches)
    outcome: Outcome = "crash" if isinstance(found.failure, CandidateCrash) else "fail"
    how_often = "" if found.repeatable else "; when run again it did not fail: it depends on what was called before"
    return Termination(outcome, f"{size}{found.failure}{how_often}", 1)


def _verdicts(request: CheckRequest, found: SearchState) -> tuple[Verdict, ...]:
    """Return the verdicts of a full judgement of the counterexample; none if there is no counterexample."""
    if found.example is None:
        return ()
    golden = golden_of(request.golden.name, request.golden.checkpoint, {"generated": found.example.batch})
    return check_values(request.candidate, golden, request.case.device, request.case.dtype, runs=request.runs).verdicts


def _counterexample(found: SearchState) -> Counterexample | None:
    if found.example is None or found.failure is None:
        return None
    if isinstance(found.failure, LawBroken):
        broken = found.failure
        runs = {f"run-{i}": run for i, run in enumerate(broken.runs, 1)}
        shown = (broken.place, broken.allowed, broken.watch, broken.script)
        return Counterexample(found.example, runs, *shown, raises=broken.raises, claim=broken.claim)
    batch = found.failure.batch  # the failing batch, which the law may have derived from the example's batch
    runs = {"run-1": Run(batch, {})} if batch else {}
    return Counterexample(found.example, runs, crashes=isinstance(found.failure, CandidateCrash))


def _subject(request: CheckRequest) -> Subject:
    """Return the subject, prepared once for successive laws, and restore the settings that its preparation left."""
    golden, case = request.golden, request.case
    key = (IdentityKey(request.candidate), IdentityKey(golden.checkpoint), case.device, case.dtype, golden.origin or golden.name)
    subject, settings = _prepared(*key)
    restore(settings)
    return subject


@lru_cache(maxsize=1)
def _prepared(
    candidate: IdentityKey[Any], checkpoint: IdentityKey[Checkpoint], device: str, dtype: str, golden: str
) -> tuple[Subject, list[Any]]:
    """Prepare a subject and call it once, since a first call may load, compile and allocate; return the settings too."""
    subject = Subject.prepared(candidate.value, checkpoint.value, device, dtype, golden)
    settings = settings_now()
    with suppress(CandidateEnded):  # the search will report the same failure with its example
        subject.answers(_FIRST)
    return subject, settings
