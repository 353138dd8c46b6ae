"""Rounding errors of one run of a candidate, and the wrong steps of which they are not known.

The rounding errors of a step depend on its equation and on its inputs. Inputs are the candidate's own. If a step is wrong in both
of two runs that are compared, the candidate has another equation: that of the mistakes of the catalogue that explain the step in
one of the runs. If none does, its rounding errors are not known. A step that is wrong in one of the runs only has the equation of
a BERT: what the candidate computes in the other depends on what must have no effect.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from conformance.checks.search.identity_key import IdentityKey
from conformance.checks.search.subject import Subject
from conformance.judge.found_equations import FoundEquations, found_equations
from conformance.judge.propagated_sigma import CORRECT, Accumulated, accumulated
from conformance.judge.screen import screened
from conformance.model.gradients import ancestors
from conformance.numerics.arithmetic import hypotheses
from conformance.numerics.thresholds import sidak_share
from conformance.results.law_broken import Run


@dataclass(frozen=True, eq=False)
class WrongSteps:
    """The steps that are wrong in two runs.

    Attributes:
        both: names of the activations that are wrong in both runs for the candidate's own inputs to them.
        one: names of those that are wrong in one of the runs only.
        found: the mistakes that explain those of `both`.
    """

    both: frozenset[str]
    one: frozenset[str]
    found: FoundEquations


def wrong_steps(subject: Subject, first: Run, second: Run) -> WrongSteps:
    """Return the steps that are wrong in two runs of a subject."""
    return _wrong_steps(IdentityKey(subject), IdentityKey(first), IdentityKey(second))


@lru_cache(maxsize=1)
def _wrong_steps(subject: IdentityKey[Subject], first: IdentityKey[Run], second: IdentityKey[Run]) -> WrongSteps:
    in_first, in_second = _wrong(subject, first), _wrong(subject, second)
    both = in_first & in_second
    found = _found(subject, first, both) if both else CORRECT
    if found.unknown:
        found |= _found(subject, second, both)
    return WrongSteps(both, in_first ^ in_second, found)


@lru_cache(maxsize=2)
def _wrong(subject: IdentityKey[Subject], run: IdentityKey[Run]) -> frozenset[str]:
    asked, ran = subject.value, run.value
    found = screened(asked.network(ran.batch), ran.values, asked.dtype, asked.device, asked.tests, asked.functions)
    return frozenset(one.activation for one in found if one.excess > 1.0)


@lru_cache(maxsize=2)
def _found(subject: IdentityKey[Subject], run: IdentityKey[Run], wrong: frozenset[str]) -> FoundEquations:
    asked, ran = subject.value, run.value
    legal = hypotheses(asked.dtype, asked.device, asked.functions)
    alpha = sidak_share(asked.tests * max(len(ran.values), 1))
    return found_equations(asked.network(ran.batch), ran.values, wrong, legal, alpha)


def rounding(subject: Subject, run: Run, found: FoundEquations = CORRECT) -> Mapping[str, Accumulated]:
    """Return the accumulated rounding errors of each activation of a run under the widest legal arithmetic.

    Args:
        subject: the candidate.
        run: its run.
        found: the mistakes with which it computes its steps.
    """
    return _rounding(IdentityKey(subject), IdentityKey(run), IdentityKey(found))


# Cached for the next comparison with the same run: without and with mistakes.
@lru_cache(maxsize=2)
def _rounding(
    subject: IdentityKey[Subject], run: IdentityKey[Run], found: IdentityKey[FoundEquations]
) -> Mapping[str, Accumulated]:
    asked, ran = subject.value, run.value
    widest = hypotheses(asked.dtype, asked.device, asked.functions)[-1].arithmetic
    return accumulated(asked.network(ran.batch), widest, ran.values, found.value)


def unknown_before(subject: Subject, run: Run, name: str, found: FoundEquations) -> str:
    """Return the first step with an unknown equation among an activation and those it is computed from; empty if there is none."""
    rows = ancestors(subject.network(run.batch).table, name)
    return next((row.name for row in rows if row.name in found.unknown), "")
