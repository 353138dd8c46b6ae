"""The fifth blind set: each mistake that changes a judged activation is found and placed."""

import pytest

from conformance.benchmarks.detection.blind.fifth import MISTAKES
from conformance.benchmarks.detection.blind.fifth.named import RIGHT
from conformance.benchmarks.detection.blind.score import outcomes

pytestmark = pytest.mark.usefixtures("one_thread")

# Differs only where the first token is padding, whose results are not judged.
OF_PADDING = "pooler of the first attended token"


def test_there_are_sixty_mistakes_and_each_has_its_accepted_names() -> None:
    assert len(MISTAKES) == 60
    assert list(RIGHT) == list(MISTAKES)
    assert all(mistake.hoped for mistake in MISTAKES.values())


def test_all_that_change_a_judged_activation_are_detected_and_placed() -> None:
    found = list(outcomes("tiny", "float32", MISTAKES.values(), RIGHT))
    assert len(found) == 60
    assert {one.mistake for one in found if not (one.detected and one.placed)} == {OF_PADDING}
    assert not any(one.misplaced for one in found)
