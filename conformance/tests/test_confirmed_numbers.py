"""What a pass confirms of a number holds at the step where the number is least visible."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from conformance import Result, check, load_golden
from conformance.errors import DependencyMissingError
from conformance.faults import BY_NAME
from conformance.judge import failing_activation
from conformance.judge.evidence import FilterResult
from conformance.judge.fault_directions import direction
from conformance.judge.local_error import judge_locally
from conformance.judge.observation import Observation
from conformance.numerics.arithmetic import hypotheses
from conformance.numerics.formats import FORMATS
from conformance.results.records import Sensitivity
from conformance.results.to_records import excludes
from conformance.tests.planted_mistakes import Planted
from conformance.tests.test_blocks_of_rows import ALPHA, correct, network_of, observations

LEAST = "cls.predictions.transform.LayerNorm"  # the norm of `tiny` whose inputs have the largest variance


def _numbers(dtype: str) -> Iterator[tuple[Observation, FilterResult]]:
    """Yield each number that is confirmed at a step of the second layer of `tiny`, as its filter, with the step."""
    network = network_of("tiny", dtype)
    for one in observations(network, correct(network, dtype)):
        local = judge_locally(one, hypotheses(dtype), ALPHA)[0][0] if one.activation.layer == 1 else None
        for found in local.filters if local else ():
            if found.confirmed and BY_NAME[found.name].parameter.quantity and math.isfinite(found.confirmed.deviation):  # type: ignore[union-attr]
                yield one, found


def _passes(one: Observation, found: FilterResult, times: float, dtype: str) -> bool:
    """Return whether the step passes if its number deviates, at this step alone, by a multiple of what is confirmed."""
    assert found.confirmed
    wrong = direction(BY_NAME[found.name], found.step, one.whole.segment, FORMATS[dtype])
    faulty = wrong.applied(found.confirmed.right + times * found.confirmed.deviation)
    assert faulty is not None
    actual: Any = FORMATS[dtype].stored(faulty.value)
    return any(local.passes for local in judge_locally(replace(one, actual=actual), hypotheses(dtype), ALPHA)[0])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_deviation_beyond_what_is_confirmed_fails_at_any_one_step_and_a_tenth_of_it_passes(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failing_activation, "_explained", lambda _, found, *rest: tuple(one.local for one in found))
    names = set()
    for one, found in _numbers(dtype):
        assert not _passes(one, found, 1.5, dtype), (found.name, one.name)
        assert _passes(one, found, 0.1, dtype), (found.name, one.name)
        names.add(found.name)
    assert {"epsilon", "scale-missing", "softmax-temperature", "mask-constant", "gelu-argument", "residual-scaled"} <= names


def _confirmed(result: Result, name: str) -> Sensitivity:
    assert result.conforms
    return next(s for s in excludes(result.verdicts) if s.fault == name)


def _epsilon(path: str, value: float) -> Planted:
    def plant(model: Any) -> None:
        model.get_submodule(path).eps = value

    return Planted(plant)


def test_the_deviation_of_epsilon_is_that_of_the_least_sensitive_norm() -> None:
    found = _confirmed(check(Planted(), "tiny"), "epsilon")
    assert found.at == LEAST
    assert found.smallest
    assert [v.activation for v in check(_epsilon(LEAST, 1.5 * found.smallest), "tiny").origins] == [LEAST]
    assert check(_epsilon(LEAST, 0.1 * found.smallest), "tiny").conforms


def test_an_epsilon_that_one_norm_of_a_real_network_hides_is_within_what_a_pass_confirms() -> None:
    try:
        assert load_golden("minilm").checkpoint
    except DependencyMissingError as why:
        pytest.skip(str(why))
    found = _confirmed(check(_epsilon("bert.encoder.layer.3.output.LayerNorm", 1e-7), "minilm"), "epsilon")
    assert found.smallest
    assert found.smallest > 1e-7


def test_a_number_is_not_confirmed_if_the_usual_mistake_would_be_hidden_at_one_step() -> None:
    found = _confirmed(check(Planted(), "tiny", dtype="bfloat16"), "epsilon")
    assert (found.at, found.smallest) == (LEAST, None)
    assert 0 < found.separable < found.places
    assert np.isfinite(found.expected_z)
