"""The fourth blind set: mistakes that had no name, or too general a one, when they were written are found, placed and named."""

import pytest

from conformance.benchmarks.detection.blind.fourth import MISTAKES
from conformance.benchmarks.detection.blind.fourth.named import RIGHT
from conformance.benchmarks.detection.blind.score import Outcome, outcomes

pytestmark = pytest.mark.usefixtures("one_thread")

MENDED = (
    "positions run on through the batch",
    "shards of words without their mask",
    "keys reshaped, not transposed",
    "attention within the segment",
    "softmax by blocks without rescaling",
    "bias added again by the fused norm",
    "GELU without the sign",
    "fused projection by rows",
    "four bits for a matrix",
    "nibbles exchanged",
)


def test_there_are_eighty_mistakes_and_each_has_its_accepted_names() -> None:
    assert len(MISTAKES) == 80
    assert list(RIGHT) == list(MISTAKES)
    assert all(mistake.hoped for mistake in MISTAKES.values())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_mistakes_that_once_had_no_name_or_too_general_a_one_are_placed_and_named(dtype: str) -> None:
    for found in outcomes("tiny", dtype, [MISTAKES[name] for name in MENDED], RIGHT):
        assert found == Outcome("tiny", dtype, found.mistake, True, True, False, "right")
