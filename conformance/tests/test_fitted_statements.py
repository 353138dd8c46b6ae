"""What the judge states of a fitted fault, its name, its numbers and the places, is what the array shows."""

from typing import Any

import pytest
import torch
from torch import Tensor

from conformance import check
from conformance.benchmarks.detection.blind.port import OPERATIONS, Mistake, Operation
from conformance.report.finding_sentences import findings_of
from conformance.results.result import NamedFinding

pytestmark = pytest.mark.usefixtures("one_thread")


def _with(golden: Any = "tiny", **operations: Operation) -> tuple[NamedFinding, ...]:
    """Return the findings of a candidate with other operations in the first layer and outside of the layers."""
    return findings_of(check(Mistake("", "", "", "first", (), "", operations), golden))


def _biased(bias: Tensor) -> tuple[NamedFinding, ...]:
    """Return the findings of a candidate that adds a bias to the scores."""
    return _with(scores=lambda port, layer, query, key: OPERATIONS["scores"](port, layer, query, key) + bias)


HEADS, POSITIONS = torch.arange(4.0)[:, None, None], torch.arange(16.0)
DISTANCES = POSITIONS[:, None] - POSITIONS


@pytest.mark.parametrize("bias", [torch.tensor(0.5), 0.3 * HEADS], ids=["one for all", "one for each head"])
def test_an_offset_of_the_scores_that_is_equal_at_all_distances_is_no_bias_by_distance(bias: Tensor) -> None:
    assert [found.name for found in _biased(bias)] == [None]


@pytest.mark.parametrize(
    "bias", [torch.sin(DISTANCES), 0.3 * HEADS + 1e-4 * torch.sin(DISTANCES), (HEADS == 2) * torch.sin(DISTANCES)],
    ids=["one for all heads", "besides one for each head", "in one head"],
)  # fmt: skip
def test_a_bias_by_distance_has_its_name(bias: Tensor) -> None:
    assert [found.name for found in _biased(bias)] == ["scores-bias-by-distance"]
