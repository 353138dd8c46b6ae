"""The distribution of a residual: the histogram counts every judged element, and the strips show where an error is."""

import math

import numpy as np
import pytest

from conformance import check
from conformance.judge.error_distribution import REACH, STEP, ErrorDistribution, distribution_of
from conformance.model.activation import ATTENTION, HIDDEN, Activation
from conformance.tests.planted_mistakes import Planted, epsilon

SHAPE, HEADS, HEAD_SIZE = (2, 5, 12), 3, 4
QUERY = Activation("encoder.layer.0.attention.self.query", "linear", (), HIDDEN, 12, "")


def _spread(scaled: np.ndarray, row: Activation = QUERY, judged: np.ndarray | None = None) -> ErrorDistribution:
    judged = np.ones(scaled.shape, bool) if judged is None else judged
    return distribution_of(row, scaled, judged, "sigma", HEAD_SIZE, fails=True)


def _hot(found: ErrorDistribution) -> dict[str, list[int]]:
    return {s.axis: [i for i, v in enumerate(s.values) if v > 1.0] for s in found.strips}


def test_a_strip_shows_the_row_position_feature_and_head_that_is_wrong() -> None:
    scaled = np.zeros(SHAPE)
    scaled[1, 3, 9] = 100.0
    found = _spread(scaled)
    assert _hot(found) == {"batch row": [1], "position": [3], "feature": [9], "head": [2]}
    assert [(r, i) for r, row in enumerate(found.tokens) for i, v in enumerate(row) if v] == [(1, 3)]


def test_the_head_of_attention_probabilities_is_an_axis_of_its_own() -> None:
    scaled = np.zeros((2, HEADS, 4, 4))
    scaled[:, 1, 2, :] = 50.0
    found = _spread(scaled, Activation("encoder.layer.0.attention.self.probs", "probs", (), ATTENTION, 0, ""))
    assert _hot(found) == {"batch row": [0, 1], "head": [1], "query": [2], "key": [0, 1, 2, 3]}
    assert [len(row) for row in found.tokens] == [4, 4]


def test_elements_that_are_not_judged_are_neither_counted_nor_shown() -> None:
    scaled, judged = np.full(SHAPE, 2.0), np.ones(SHAPE, bool)
    scaled[0, 4], judged[0, 4] = 1e9, False
    judged[1, 4] = False
    found = _spread(scaled, judged=judged)
    assert sum(found.counts) == judged.sum()
    assert found.counts[-1] == 0
    position = next(s for s in found.strips if s.axis == "position")
    assert position.values[:4] == (2.0, 2.0, 2.0, 2.0)
    assert math.isnan(position.values[4])


@pytest.mark.parametrize(("value", "index"), [(-REACH - 1.0, 0), (-REACH, 1), (0.1, 13), (REACH - 0.1, -2), (REACH, -1)])
def test_each_residual_is_counted_in_its_bin(value: float, index: int) -> None:
    counts = _spread(np.full(SHAPE, value)).counts
    assert len(counts) == 2 * REACH / STEP + 2
    assert counts[index] == np.prod(SHAPE)


def test_values_that_are_not_finite_are_counted_in_the_last_bin_and_do_not_end_the_judgement() -> None:
    scaled = np.zeros(SHAPE)
    scaled[0, 0, :4] = (np.nan, np.inf, -np.inf, 1e300)
    found = _spread(scaled)
    assert (found.counts[0], found.counts[-1]) == (1, 3)
    assert all(math.isfinite(v) for s in found.strips for v in s.values)


def test_strips_are_shown_only_where_a_step_fails_and_the_other_histograms_are_within_the_noise() -> None:
    of_local = {v.activation: v.local.distribution for v in check(Planted(epsilon(0))).verdicts if v.local and v.local.distribution}
    wrong = "encoder.layer.0.attention.output.LayerNorm"
    assert len(of_local) > 30
    assert {name for name, d in of_local.items() if d.strips or d.tokens} == {wrong}
    assert all(d.counts[0] == d.counts[-1] == 0 for name, d in of_local.items() if name != wrong)
