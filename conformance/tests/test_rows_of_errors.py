"""Rows of errors: the limits of their RMS, where a step enlarges or reduces them, and their histograms and strips."""

import math
from itertools import product
from typing import Any

import numpy as np
import pytest

from conformance import load_golden
from conformance.judge.global_error import error_role
from conformance.judge.judged_elements import Repeats
from conformance.judge.observation import Observation
from conformance.model.batch import Batch
from conformance.numerics.arithmetic import hypotheses
from conformance.numerics.formats import FORMATS
from conformance.numerics.thresholds import rms_threshold, smallest_rms
from conformance.oracle import Network

ALPHA, DRAWS = 1e-3, 100_000
# Numbers of elements of the rows; errors that a whole row shares have as many squares that are equal.
ROWS = {
    "equal": np.full(32, 7.0),
    "one text repeated as often as there are others": np.r_[np.ones(31), 32.0],
    "lengths from 3 to 128": np.linspace(3.0, 128.0, 8),
    "one row with nearly all": np.array([1.0, 1e6]),
}


def _rms(sizes: Any) -> Any:
    """Return the RMS of errors that are normal and equal within a row, for each draw."""
    squares = np.random.default_rng(0).standard_normal((DRAWS, len(sizes))) ** 2
    return np.sqrt(squares @ (sizes / sizes.sum()))


def test_errors_that_a_row_shares_exceed_the_limits_no_more_often_than_stated() -> None:
    most = ALPHA + 4.0 * math.sqrt(ALPHA / DRAWS)
    for sizes in ROWS.values():
        rms = _rms(sizes)
        assert np.mean(rms > rms_threshold(sizes, ALPHA)) < most
        assert np.mean(rms < smallest_rms(sizes, ALPHA)) < most


def test_equal_rows_have_the_limit_of_their_number() -> None:
    nearly = np.r_[np.full(5, 3.0), 3.0 + 1e-9]
    for limit, alpha in product((rms_threshold, smallest_rms), (1e-12, ALPHA)):
        assert limit(6, alpha) == limit(np.full(6, 3.0), alpha) == pytest.approx(limit(nearly, alpha), rel=1e-9)
        assert limit(1, alpha) == limit(np.zeros(0), alpha) == pytest.approx(limit(np.array([1.0, 1e-300]), alpha), rel=1e-9)


def test_rows_of_a_draw_are_one_row_with_all_their_elements() -> None:
    repeats = Repeats.of(np.array([[5, 6], [5, 7]]))
    assert repeats.merged(np.array([[3.0, 2.0], [3.0, 1.0]])).tolist() == [6.0, 2.0, 1.0]
    assert repeats.any_of(np.ones((2, 2, 4), np.bool_))
    assert not repeats.any_of(np.array([[True, True], [False, True]])[..., None])


def test_padding_and_repeated_texts_count_by_the_elements_that_they_have() -> None:
    """Three texts of 4, 4 and 2 tokens, of which the first two are equal, and all three have the same first token."""
    golden = load_golden("tiny")
    ids, mask = np.array([[1, 5, 6, 7], [1, 5, 6, 7], [1, 9, 0, 0]]), np.ones((3, 4), np.int64)
    mask[2, 2:] = 0
    a = golden.checkpoint.architecture
    network = Network(a, golden.checkpoint.weights, Batch(ids, np.zeros_like(ids), mask))
    values = dict(network.walk())

    def sizes(name: str) -> list[float]:
        seen = Observation(network, name, values[name], {parent: values[parent] for parent in network.table[name].parents})
        hypothesis = hypotheses("float64")[0]
        hashes = seen.whole.segment.hashes(FORMATS["float64"])
        return sorted(seen.independent_rows(hypothesis, hashes).tolist())

    heads, width = a.num_attention_heads, a.hidden_size
    assert sizes("encoder.layer.0.attention.self.query") == [width, 2 * width, 2 * width, 2 * width, 3 * width]
    assert sizes("encoder.layer.0.attention.self.scores") == [2] * 2 * heads + [8] * 4 * heads


GOLDEN = load_golden("tiny")
PARENT, NAME = "embeddings.LayerNorm", "encoder.layer.0.attention.self.query"
WEIGHT = f"bert.{NAME}.weight"


def _role(direction: tuple[float, float] | None) -> str | None:
    """Return the role of a projection W of rank one, where each token's error is this multiple of it, or random if it is None."""
    weights = dict(GOLDEN.checkpoint.weights)
    rng = np.random.default_rng(0)
    row = rng.standard_normal(weights[WEIGHT].shape[1])
    weights[WEIGHT] = np.outer(rng.standard_normal(len(weights[WEIGHT])), row)
    network = Network(GOLDEN.checkpoint.architecture, weights, GOLDEN.batches["padded"])
    values = dict(network.walk())
    if direction is None:
        error = rng.standard_normal(values[PARENT].shape)
    else:
        along = row / np.linalg.norm(row)
        across = np.roll(along, 1) - (np.roll(along, 1) @ along) * along
        error = np.broadcast_to(direction[0] * along + direction[1] * across, values[PARENT].shape)
    observation = Observation(network, NAME, values[NAME], {PARENT: values[PARENT]})
    errors = {PARENT: error.astype(np.float32), NAME: (error @ weights[WEIGHT].T).astype(np.float32)}
    return error_role(observation.whole, errors, hypotheses("float32")[0], 1e-8)


def test_a_step_amplifies_errors_along_its_weight_and_attenuates_those_across_it() -> None:
    assert [_role(direction) for direction in (None, (1.0, 0.0), (1e-3, 1.0))] == [None, "amplifier", "attenuator"]
