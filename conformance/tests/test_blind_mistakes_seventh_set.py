"""The seventh blind set: mistakes that had no name, or a wrong one, when they were written are placed and named."""

import pytest

from conformance import check
from conformance.benchmarks.detection.bert import Candidate
from conformance.benchmarks.detection.blind.score import Outcome, outcomes
from conformance.benchmarks.detection.blind.seventh import MISTAKES
from conformance.benchmarks.detection.blind.seventh.named import RIGHT
from conformance.benchmarks.detection.planted import PLANTS

pytestmark = pytest.mark.usefixtures("one_thread")

MENDED = (
    "online softmax without rescaling",
    "ranks averaged",
    "rows and heads mixed",
    "four greatest probabilities",
    "bias of the first rank",
    "chunks in one buffer",
    "no sum over the ranks",
    "pooler reads a weighted mean",
    "pooled output of unit length",
    "pooled twice",
    "keys and values in float8",
    "two of four weights",
    "probabilities in 256 steps",
    "prefix of the first row",
    "block of another row",
)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_mistakes_that_once_had_no_name_or_a_wrong_one_are_placed_and_named(dtype: str) -> None:
    for found in outcomes("tiny", dtype, [MISTAKES[name] for name in MENDED], RIGHT):
        assert found == Outcome("tiny", dtype, found.mistake, True, True, False, "right")


def test_masked_scores_at_the_lowest_score_are_a_constant_in_their_place() -> None:
    (finding,) = check(MISTAKES["mask saturates"], dtype="float32").findings
    assert (finding.name, finding.others) == ("mask-filled", ())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_levels_of_probabilities_are_those_of_the_candidate(dtype: str) -> None:
    (finding,) = check(MISTAKES["probabilities in 256 steps"], dtype=dtype).findings
    assert "multiples of 1/256" in finding.sentence


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_variance_with_idle_lanes_is_no_other_epsilon(dtype: str) -> None:
    candidate = Candidate((PLANTS["norm-idle-lanes"].at(0),))
    (finding,) = check(candidate, "position-offset", dtype=dtype).findings
    assert (finding.name, finding.others) == ("norm-idle-lanes", ())
