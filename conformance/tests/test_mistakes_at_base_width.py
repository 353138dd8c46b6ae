"""Mistakes in a network of base width, on a batch that has fewer rows than the network has features."""

import pytest

from conformance import check
from conformance.benchmarks.detection.bert import Candidate
from conformance.benchmarks.detection.mistakes import MISTAKES

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("inputs-clipped", "float32"),  # The limit clips fewer than one input in a thousand.
        ("norm-over-positions", "bfloat16"),  # Each operation rounds, which those of the correct norms do not.
    ],
)
def test_a_mistake_is_named_at_its_step(name: str, dtype: str) -> None:
    result = check(Candidate((MISTAKES[name].at(0),)), "wide", dtype=dtype)
    (origin,) = result.origins
    assert origin.local
    assert {fault.name for fault in origin.local.named} == {name}
