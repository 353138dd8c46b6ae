"""A finding says which of its estimates contradict the reported one, and which positions, ids or elements are estimated."""

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from conformance import check
from conformance.faults.fitted.lookup_words import element_that_differs, read_instead
from conformance.report.finding_sentences import evidence
from conformance.report.findings import findings
from conformance.results.case import Case
from conformance.results.records import ActivationRecord, FaultRecord
from conformance.tests.planted_mistakes import Planted
from conformance.tests.sample_records import activation

CASE = Case("a", "b")


def _layer(number: int, estimate: float, deviation: float) -> ActivationRecord:
    step = f"encoder.layer.{number}.output.LayerNorm"
    return activation(CASE, step, 9.0, (FaultRecord("epsilon", step, 1.0, 50.0, "epsilon", estimate, deviation, 1e-12),))


def _evidence(*layers: ActivationRecord) -> str:
    (finding,) = findings(layers)
    return evidence(finding)


def test_estimates_that_contradict_each_other_are_given_with_their_steps() -> None:
    found = _evidence(_layer(0, 1e-5, 2e-8), _layer(1, 2e-5, 2e-6), _layer(2, 1.01e-5, 1e-7))
    assert found == (
        "epsilon: estimated epsilon = 1e-05 ± 2e-08, expected 1e-12; "
        "estimates that contradict it: 2e-05 ± 2e-06 at encoder.layer.1.output.LayerNorm"
    )


def test_many_contradicting_estimates_are_a_range() -> None:
    found = _evidence(_layer(0, 1e-5, 2e-8), *(_layer(n, (1.62 + n / 20) * 1e-5, 1.4e-6) for n in range(1, 7)))
    assert found.endswith("; 6 estimates contradict it: from 1.7e-05 ± 1e-06 to 2e-05 ± 1e-06")


def test_estimates_that_agree_within_their_errors_are_one() -> None:
    found = _evidence(_layer(0, 1e-5, 2e-8), _layer(1, 1.4e-5, 2e-6), _layer(2, 9.99e-6, 3e-8))
    assert found == "epsilon: estimated epsilon = 1e-05 ± 2e-08, expected 1e-12"


def _norm(number: int, outside: float, unbiased: float) -> ActivationRecord:
    """Return a norm whose error is explained by an epsilon outside the root, or by another with the unbiased deviation."""
    record = _layer(number, outside, 3e-5)
    (fault,) = record.faults
    fault = msgspec.structs.replace(fault, name="epsilon-outside-root", right=0.0)
    other = msgspec.structs.replace(fault, name="norm-unbiased-deviation", estimate=unbiased)
    return msgspec.structs.replace(record, faults=[fault], alternatives=[[other]])


def test_a_mistake_with_one_number_in_all_layers_is_preferred_to_one_with_another_in_each() -> None:
    (found,) = findings([_norm(0, 1.6e-3, 1.01e-3), _norm(1, 1.8e-3, 0.99e-3), _norm(2, 2.0e-3, 1.02e-3)])
    assert found.fault
    assert (found.fault.name, found.others) == ("norm-unbiased-deviation", ("epsilon-outside-root",))


def test_of_mistakes_that_explain_as_many_layers_all_layers_have_the_same() -> None:
    first, *others = [_norm(0, 1.6e-3, 1e-3), _norm(1, 1.6e-3, 1e-3), _norm(2, 1.6e-3, 1e-3)]
    exchanged = [msgspec.structs.replace(o, faults=o.alternatives[0], alternatives=[o.faults]) for o in others]
    (found,) = findings([first, *exchanged])
    assert found.fault
    assert (found.fault.name, found.others) == ("epsilon-outside-root", ("norm-unbiased-deviation",))


class _Positions(torch.nn.Module):
    """Position embeddings that are read at `moved` positions."""

    def __init__(self, inner: Any, moved: Callable[[Any], Any]) -> None:
        super().__init__()
        self.inner, self.moved = inner, moved

    def forward(self, positions: Any) -> Any:
        return self.inner(self.moved(positions))


def _moved(change: Callable[[Any], Any]) -> Planted:
    def plant(model: Any) -> None:
        embeddings = model["bert"].embeddings
        embeddings.position_embeddings = _Positions(embeddings.position_embeddings, change)

    return Planted(plant)


@pytest.mark.parametrize(
    ("change", "numbers"),
    [
        (lambda at: torch.where(at < 8, at + 3, at), "expected 0 to 7, estimated 3 to 10"),
        (lambda at: torch.where(at == 2, 5, torch.where(at == 5, 2, at)), "expected 2, estimated 5; expected 5, estimated 2"),
        (lambda at: torch.where(at == 0, 7, at), "expected 0, estimated 7"),
    ],
    ids=["half moved by three", "two exchanged", "the first"],
)
def test_wrong_positions_are_given_beside_the_expected_ones(change: Callable[[Any], Any], numbers: str) -> None:
    (found,) = check(_moved(change), "tiny").findings
    assert found.name == "positions-other"
    assert found.evidence.endswith(f", the positions: {numbers}")


def test_positions_that_are_all_moved_by_one_number_have_a_name() -> None:
    (found,) = check(_moved(lambda at: at + 3), "tiny").findings
    assert (found.name, found.is_description) == ("positions-offset", False)
    assert "the number 3 is added to all positions" in found.sentence


def test_runs_of_replaced_numbers_are_joined_and_the_first_of_many_are_given() -> None:
    expected, all_judged = np.arange(12), np.ones(12, bool)
    assert read_instead(expected[::-1], expected, all_judged) == ("expected 0 to 11, estimated 11 to", 0.0)
    assert read_instead(expected, expected, all_judged) == ("", 0.0)
    halved = read_instead(expected // 2 * 5, expected, all_judged)
    assert halved == ("11 are others, such as expected 1, estimated 0; expected 2, estimated 5; expected 3, estimated", 5.0)
    assert read_instead(np.array([9, 1]), np.array([0, 1]), np.array([False, True])) == ("", 0.0)


def test_a_number_that_is_replaced_at_some_places_only_is_given_at_the_first() -> None:
    found, expected = np.array([[1, 1, 0], [1, 0, 0]]), np.array([[1, 1, 1], [1, 1, 1]])
    assert read_instead(found, expected, np.ones((2, 3), bool)) == (
        "3 of 6 are others, the first at row 0, position 2: expected 1, estimated",
        0.0,
    )


def test_the_element_that_differs_most_is_given() -> None:
    assert element_that_differs(np.array([1.0, -3.5]), np.array([1.5, -2.0])) == ("element 1, expected -2, estimated", -3.5)
