"""The blind benchmark: the port that carries the mistakes is correct without them, and several mistakes are found, placed and
named."""

import pytest

from conformance import check, load_golden
from conformance.benchmarks.detection.blind.first import MISTAKES
from conformance.benchmarks.detection.blind.first.named import RIGHT
from conformance.benchmarks.detection.blind.port import Mistake
from conformance.benchmarks.detection.blind.score import Outcome, origins, outcome, outcomes, table

pytestmark = pytest.mark.usefixtures("one_thread")

CORRECT = Mistake("none", "nothing is wrong", "", "all", (), "")
HELD = (
    "kernel viewed, not transposed",
    "output projection of the layer before",
    "positions restart with the segment",
    "norm over the sequence too",
    "mask after softmax",
    "one head of values",
    "keys of the layer before",
    "next sentence without pooler",
    "heads read the layer before",
)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_without_a_mistake_the_port_conforms(dtype: str) -> None:
    result = check(CORRECT, dtype=dtype)
    assert result.conforms, str(result)


def test_there_are_sixty_mistakes_and_each_has_its_accepted_names() -> None:
    assert len(MISTAKES) == 60
    assert list(RIGHT) == list(MISTAKES)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_mistakes_that_once_had_no_name_or_a_wrong_one_are_placed_and_named(dtype: str) -> None:
    for found in outcomes("tiny", dtype, [MISTAKES[name] for name in HELD], RIGHT):
        assert found == Outcome("tiny", dtype, found.mistake, True, True, False, "right")


def test_a_norm_without_mean_written_by_hand_in_bfloat16_has_one_name_where_copies_are_hidden() -> None:
    (found,) = outcomes("wide", "bfloat16", [MISTAKES["RMSNorm"]], RIGHT)
    assert (found.placed, found.naming) == (True, "right")


def test_a_name_of_another_mistake_counts_as_wrong_and_a_missed_origin_as_not_placed() -> None:
    mistake = MISTAKES["causal"]
    result, architecture = check(MISTAKES["softmax over queries"]), load_golden("tiny").checkpoint.architecture
    found = outcome(mistake, result, origins(mistake, architecture), RIGHT[mistake.name])
    assert (found.detected, found.placed, found.naming) == (True, False, "wrong")
    assert "- tiny, float32: not placed exactly: causal" in table([found])
    assert "| tiny | float32 | 1 | 1 | 0 | 0 | 0 | 0 | 1 |" in table([found])
