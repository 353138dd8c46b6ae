"""The sixth blind set: each mistake that changes a judged activation is found and placed."""

import pytest

from conformance.benchmarks.detection.blind.score import outcomes
from conformance.benchmarks.detection.blind.sixth import MISTAKES
from conformance.benchmarks.detection.blind.sixth.named import RIGHT

pytestmark = pytest.mark.usefixtures("one_thread")


def test_there_are_sixty_mistakes_and_each_has_its_accepted_names() -> None:
    assert len(MISTAKES) == 60
    assert list(RIGHT) == list(MISTAKES)
    assert all(mistake.hoped for mistake in MISTAKES.values())


def test_all_that_change_a_judged_activation_are_detected_and_placed() -> None:
    found = list(outcomes("tiny", "float32", MISTAKES.values(), RIGHT))
    assert len(found) == 60
    assert all(one.detected and one.placed and not one.misplaced for one in found)
