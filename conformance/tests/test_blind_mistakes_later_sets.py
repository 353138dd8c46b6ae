"""The later blind sets: accepted names, and each change of a judged activation is found and placed."""

from types import ModuleType

import pytest

from conformance.benchmarks.detection.blind import eighth, eleventh, fifth, ninth, seventh, sixth, tenth
from conformance.benchmarks.detection.blind.eighth import named as eighth_named
from conformance.benchmarks.detection.blind.eleventh import named as eleventh_named
from conformance.benchmarks.detection.blind.fifth import named as fifth_named
from conformance.benchmarks.detection.blind.ninth import named as ninth_named
from conformance.benchmarks.detection.blind.score import Outcome, outcomes
from conformance.benchmarks.detection.blind.seventh import named as seventh_named
from conformance.benchmarks.detection.blind.sixth import named as sixth_named
from conformance.benchmarks.detection.blind.tenth import named as tenth_named
from conformance.faults import BY_NAME
from conformance.faults.fitted import DESCRIPTIONS, FITTED

pytestmark = pytest.mark.usefixtures("one_thread")

SETS = {
    "fifth": (fifth.MISTAKES, fifth_named.RIGHT),
    "sixth": (sixth.MISTAKES, sixth_named.RIGHT),
    "seventh": (seventh.MISTAKES, seventh_named.RIGHT),
    "eighth": (eighth.MISTAKES, eighth_named.RIGHT),
    "ninth": (ninth.MISTAKES, ninth_named.RIGHT),
    "tenth": (tenth.MISTAKES, tenth_named.RIGHT),
    "eleventh": (eleventh.MISTAKES, eleventh_named.RIGHT),
}
# At one of their places they differ only where the first token is padding, whose results are not judged.
OF_PADDING = {
    "fifth": {"pooler of the first attended token"},
    "sixth": set[str](),
    "seventh": {"real tokens moved to the start"},
    "eighth": set[str](),
    "ninth": set[str](),
    "tenth": set[str](),
    "eleventh": set[str](),
}
# One of the seventh set occurs only at widths that are no power of 2.
CHANGING = {"fifth": 60, "sixth": 60, "seventh": 59, "eighth": 60, "ninth": 60, "tenth": 60, "eleventh": 60}


@pytest.mark.parametrize("name", SETS)
def test_there_are_sixty_mistakes_and_each_has_its_accepted_names(name: str) -> None:
    mistakes, right = SETS[name]
    assert len(mistakes) == 60
    assert list(right) == list(mistakes)
    assert all(mistake.hoped for mistake in mistakes.values())


@pytest.mark.parametrize("name", SETS)
def test_accepted_names_are_names_of_faults(name: str) -> None:
    _, right = SETS[name]
    assert {one for names in right.values() for one in names} <= {*BY_NAME, *(fitted.name for fitted in FITTED)}


@pytest.mark.parametrize(
    "named", [eighth_named, ninth_named, tenth_named, eleventh_named], ids=["eighth", "ninth", "tenth", "eleventh"]
)
def test_general_names_are_of_the_mistakes_of_their_set_and_not_among_the_exact_ones(named: ModuleType) -> None:
    exact, general = named.EXACT, named.GENERAL
    assert set(general) <= set(exact)
    assert not any(set(names) & set(exact[name]) for name, names in general.items())


@pytest.mark.parametrize("name", CHANGING)
def test_all_that_change_a_judged_activation_are_detected_and_placed(name: str) -> None:
    mistakes, right = SETS[name]
    found = list(outcomes("tiny", "float32", mistakes.values(), right))
    assert len(found) == CHANGING[name]
    assert {one.mistake for one in found if not (one.detected and one.placed)} == OF_PADDING[name]
    assert not any(one.misplaced for one in found)


@pytest.mark.parametrize("named", [tenth_named, eleventh_named], ids=["tenth", "eleventh"])
def test_accepted_descriptions_are_descriptions_of_mistakes_of_the_set_and_no_accepted_names(named: ModuleType) -> None:
    described = named.DESCRIBED
    assert set(described) <= set(named.RIGHT)
    assert {one for names in described.values() for one in names} <= DESCRIPTIONS
    assert not any(set(names) & set(named.RIGHT[name]) for name, names in described.items())


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, "float32") for name in (*tenth_named.ADDED, "nibbles swapped", "online softmax not rescaled")),
        *((name, "bfloat16") for name in (*tenth_named.ADDED, "standard deviation of n - 1", "rest after the last whole chunk")),
    ],
)
def test_mistakes_of_the_tenth_set_that_once_had_no_name_or_a_wrong_one_are_named(name: str, dtype: str) -> None:
    found = list(outcomes("tiny", dtype, [tenth.MISTAKES[name]], tenth_named.RIGHT))
    assert found == [Outcome("tiny", dtype, name, True, True, False, "right")]
    assert tenth_named.ADDED.get(name) not in tenth_named.AT_FIRST[name]
