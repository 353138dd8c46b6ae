"""A diagnosis in progress: the exactness of values reused from another network, and of what a part of the batch refutes."""

from functools import cache
from typing import Any

import numpy as np

from conformance.diagnosis.black_box import BlackBox, BlackBoxSegment
from conformance.diagnosis.explanations import BlackBoxCase
from conformance.diagnosis.outputs import resolved
from conformance.diagnosis.problem import PrintedProblem
from conformance.diagnosis.tables import OutputTable
from conformance.judge.search.fault_sets import VERIFIED
from conformance.judge.search.placements import EVERYWHERE, SINGLE, placements, with_faults
from conformance.numerics.formats import format_named
from conformance.tests.test_diagnose import BATCH, CHECKPOINT, _hidden, _model, _text


@cache
def _two_faults() -> dict[str, Any]:
    return {"last_hidden_state": _text(_hidden(_model(hidden_act="relu"), attention_mask=None))}


def test_values_taken_from_a_network_with_some_of_the_faults_are_exact() -> None:
    known = resolved({"last_hidden_state": OutputTable(np.zeros((BATCH.size, BATCH.length, 32)))}, CHECKPOINT.architecture, BATCH)
    right = BlackBoxSegment(BlackBox(CHECKPOINT.architecture, CHECKPOINT.weights, BATCH, known), format_named("float32"))
    every = placements(right)
    everywhere = {s.fault.name: s for s in reversed(every) if s.reach == EVERYWHERE}
    base = [everywhere["epsilon"], everywhere["gelu-variant"]]
    like = with_faults(right, base, right.storage)
    assert like.is_effective
    shared = 0
    for placement in [s for s in every if not s.fault.after_failure and s.reach in (EVERYWHERE, SINGLE)]:
        alone, taken = (with_faults(right, [*base, placement], right.storage, known) for known in (None, like))
        assert alone.effective == {name: keys for name, keys in taken.effective.items() if keys or name in alone.effective}
        assert np.array_equal(alone.segment.value, taken.segment.value, equal_nan=True)
        assert alone.changed == taken.changed
        shared += any(taken.segment.steps[n] is like.segment.steps[n] for n in like.changed)
    assert shared


def test_a_hypothesis_refuted_on_part_of_the_batch_is_refuted_on_all_of_it() -> None:
    known = resolved({name: OutputTable(part) for name, part in _two_faults().items()}, CHECKPOINT.architecture, BATCH)
    network = BlackBox(CHECKPOINT.architecture, CHECKPOINT.weights, BATCH, known)
    case = BlackBoxCase(CHECKPOINT, network, "float32")
    problem = PrintedProblem(case.arithmetics[0])
    part = problem.part(())
    assert part.weights.size < problem.weights.size
    tried = [fit for placement in case.right.placements if (fit := part.evaluate([placement]))]
    nearest = sorted(tried, key=lambda fit: fit.distance)[:VERIFIED]
    refuted = [fit for fit in nearest if part.fit_unless_refuted(fit, problem, own=True) is None]
    assert refuted
    assert not any(problem.judge(problem.fit_on_whole(fit), own=True).explains for fit in refuted)
