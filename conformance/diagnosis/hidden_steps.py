"""Mistakes in the steps that a candidate hides, where several layers lie between one activation that it shows and the next.

A port that makes a mistake makes it in every layer. Where each layer is shown, each is a failure with a name; where none is, there
is one failure, of all of them together, and it is searched as the outputs of a closed system are: each fault wherever it can act,
in one kind of place, in one layer or at one place, and sets of two and three.
"""

import time
from collections.abc import Iterator

import numpy as np

from conformance.diagnosis.case import BlackBoxCase, numbers
from conformance.diagnosis.closed import BlackBox, Output
from conformance.diagnosis.fitting import Fit, estimates
from conformance.diagnosis.printed import Known
from conformance.diagnosis.rank import likeliest_arithmetic, ranked_trials
from conformance.diagnosis.search_budget import SearchBudget
from conformance.diagnosis.visible import Detectability
from conformance.judge.evidence import Explanation, FilterResult
from conformance.judge.filters import project
from conformance.judge.observation import Observation
from conformance.model.checkpoint import Checkpoint


def explain_hidden_steps(observation: Observation, dtype: str) -> tuple[Explanation, ...]:
    """The sets of faults that explain an activation and cannot be distinguished by it, the best first; none where none does."""
    network = observation.network
    block = observation.whole
    case = BlackBoxCase(
        Checkpoint(network.architecture, network.weights),
        BlackBox(
            network.architecture,
            network.weights,
            network.batch,
            (Output(observation.name, Known(block.actual, np.zeros(block.actual.shape))),),
            (),
            leaves=block.segment.leaves,
        ),
        dtype,
        None,
        SearchBudget(None, time.monotonic),
    )
    best = likeliest_arithmetic(case)
    trials = case.explained(best, Detectability((), (), ()))
    tied = (trial for trial, is_tied in ranked_trials(case, trials, best) if is_tied and trial.fit.placements)
    return tuple(
        Explanation(tuple(_faults(case, trial.fit)), numbers(trial.fit), trial.agreement.nll, not numbers(trial.fit))
        for trial in tied
    )


def _faults(case: BlackBoxCase, fit: Fit) -> Iterator[FilterResult]:
    """Each fault at each of its places, with the evidence of all of them together, the other faults in place."""
    values = estimates(case.problem, fit, case.base.hypothesis)
    with_all = case.problem.value(fit.placements)[0]
    for index, (placement, estimate) in enumerate(zip(fit.placements, values, strict=True)):
        others = case.problem.value([*fit.placements[:index], *fit.placements[index + 1 :]])[0]
        found = project(case.problem.actual - others, with_all - others, case.base.noise(0))
        if found is not None:
            for place in placement.places:
                own = FilterResult(placement.fault.name, place, found.amplitude, found.z, found.expected_z)
                yield own.as_detected(True, estimate)
