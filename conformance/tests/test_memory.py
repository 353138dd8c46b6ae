"""Memory of a judgement: its arrays are freed when it ends, without the collector of cyclic garbage.

Python collects cycles by the number of objects, not by their size; with torch imported, hundreds of megabytes of arrays would wait.
"""

import gc
from collections.abc import Sequence
from typing import Any

import pytest

from conformance import check
from conformance.benchmarks.detection.bert import Candidate
from conformance.benchmarks.detection.mistakes import MISTAKES
from conformance.judge.observation import Block, Observation
from conformance.judge.segment import Segment
from conformance.oracle import Network, Step

HOLDERS = {Observation, Block, Segment, Network, Step}


@pytest.mark.parametrize(("mistakes", "outcome"), [((), "pass"), (("epsilon",), "fail")])
def test_a_judgement_leaves_no_cycle_that_holds_an_array(mistakes: Sequence[str], outcome: str) -> None:
    """Prove it on `wide`, whose activations are large enough to be probed on a few rows first."""
    candidate = Candidate([MISTAKES[name].at(0) for name in mistakes])
    gc.collect()
    known = {id(holder) for holder in _holders()}
    gc.disable()
    try:
        assert check(candidate, "wide").outcome == outcome
        left = [holder for holder in _holders() if id(holder) not in known]
    finally:
        gc.enable()
    assert not left


def _holders() -> list[Any]:
    return [found for found in gc.get_objects() if set(type(found).__mro__) & HOLDERS]
