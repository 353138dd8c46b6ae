"""Checks beside the judgement of activations have a share of the run's false-alarm probability, and no more."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from conformance.checks.check import Request
from conformance.checks.moments import moments, watched
from conformance.errors import CandidateError
from conformance.goldens.custom_golden import golden_of
from conformance.goldens.golden import load_golden
from conformance.implementations.making_bert import making_bert
from conformance.numerics.function_error_bounds import table_bounds
from conformance.numerics.thresholds import FALSE_ALARM, FALSE_ALARM_TEXT, max_threshold, sidak_share
from conformance.oracle import Network

TINY = load_golden("tiny")
RUNS = 10**6
BATCH = TINY.batches["padded"]
NORM = "encoder.layer.0.output.LayerNorm"
NETWORK = Network(TINY.checkpoint.architecture, TINY.checkpoint.weights, BATCH)


def _shifted(by: float) -> Iterator[tuple[str, np.ndarray]]:
    """Return the oracle's values with the mean of one LayerNorm's result shifted by the given amount."""
    gamma = TINY.checkpoint.weights[f"bert.{NORM}.weight"]
    for name, value in NETWORK.walk():
        yield name, (value + by * gamma if name == NORM else value).astype(np.float32)


def _is_caught(by: float, calls: int) -> bool:
    try:
        list(watched(NETWORK, _shifted(by), dtype="float32", device="cpu", functions=table_bounds(), calls=calls))
    except CandidateError as error:
        return "has mean" in str(error)
    return False


def _smallest_caught(calls: int) -> float:
    caught, missed = 1e-4, 0.0
    while caught - missed > 1e-3 * caught:
        middle = (caught + missed) / 2
        caught, missed = (middle, missed) if _is_caught(middle, calls) else (caught, middle)
    return caught


def test_moments_divide_the_false_alarm_probability_among_calls_and_norms() -> None:
    norms, tests = 5, 2 * int(BATCH.mask.sum())
    alone, among_many = (_smallest_caught(calls) for calls in (1, RUNS))
    expected = max_threshold(tests, sidak_share(RUNS * norms)) / max_threshold(tests, sidak_share(norms))
    assert among_many / alone == pytest.approx(expected, rel=0.05)


def test_the_check_of_moments_counts_as_one_of_the_runs_calls_for_every_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[int]()

    def noted(network: object, stream: Any, *, calls: int, **_: object) -> Any:
        seen.append(calls)
        return stream

    monkeypatch.setattr("conformance.checks.moments.watched", noted)
    moments.run(Request.of(making_bert, golden_of("two", TINY.checkpoint, {"a": BATCH, "b": BATCH}), check="moments", runs=7))
    assert seen == [14, 14]


def test_the_false_alarm_probability_is_rendered_exactly() -> None:
    assert float(FALSE_ALARM_TEXT) == FALSE_ALARM
