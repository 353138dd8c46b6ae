"""The gradient of the word embeddings is judged on the rows that the batch looks up, with the verdict on the whole gradient."""

from typing import Any

import numpy as np
import pytest

from conformance import load_golden
from conformance.judge.global_error import global_error
from conformance.judge.local_error import judge_locally
from conformance.judge.looked_up_rows import LookedUpRows
from conformance.judge.observation import Observation
from conformance.numerics.arithmetic import hypotheses
from conformance.numerics.formats import Array
from conformance.oracle import Network
from conformance.tests.judged_gradients import Changed, judged

NAME = "bert.embeddings.word_embeddings.weight.grad"
SIGMA = np.array(1e-7)  # of the whole gradient


def _network(source: str) -> Network:
    golden = load_golden("tiny")
    return Network(golden.checkpoint.architecture, golden.checkpoint.weights, golden.batches["padded"], source=source)


def _observation(network: Network, name: str, error: Array | float = 0.0) -> Observation:
    """Return the observation of a gradient in float32 whose captured parents are the oracle's, rounded to float32."""
    captured: dict[str, Any] = {n: value.astype(np.float32) for n, value in network.walk()}
    step = network.step(name, *(captured[p].astype(np.float64) for p in network.table[name].parents))
    actual: Any = captured.pop(name)
    actual[...] = step.value + error
    return Observation(network, name, actual, captured, {n: np.zeros_like(v) for n, v in captured.items()})


@pytest.mark.parametrize("size", [0.0, 1e-3])
def test_the_judgement_of_the_rows_is_that_of_the_whole_gradient(size: float) -> None:
    network = _network("classifier.loss")
    row = int(network.batch.input_ids[0, 2])
    error = np.zeros((network.architecture.vocab_size, network.architecture.hidden_size))
    error[row, 5] = size
    whole = _observation(network, NAME, error)
    rows = LookedUpRows.of(whole)
    assert rows is not None
    assert rows.rows.tolist() == np.unique(network.batch.input_ids).tolist()
    assert 0 < len(rows.rows) < len(whole.actual)
    legal = hypotheses("float32")
    expected, *_ = judge_locally(whole, legal, 1e-3)
    actual, *_ = rows.in_whole(judge_locally(rows.observation, legal, 1e-3))
    assert actual.passes == expected.passes == (size == 0.0)
    assert actual.error == expected.error
    assert actual.error.index[0] in rows.rows
    assert actual.rms_threshold == expected.rms_threshold
    assert actual.max_threshold < expected.max_threshold  # Fewer elements are judged.
    assert actual.nll == pytest.approx(expected.nll)
    assert [f.name for f in actual.filters] == [f.name for f in expected.filters]
    of_rows, of_whole = rows.global_error(SIGMA), global_error(whole, SIGMA)
    np.testing.assert_array_equal(of_rows.error, of_whole.error)
    assert of_rows.sums.index == of_whole.sums.index
    assert of_rows.sums.rms == pytest.approx(of_whole.sums.rms)  # Sigma is pooled over the rows that have an error.


def test_a_gradient_at_a_row_that_is_not_looked_up_fails_there() -> None:
    unread = next(i for i in range(96) if i not in load_golden("tiny").batches["padded"].input_ids)

    def plant(model: Any) -> None:
        def spoil(gradient: Any) -> Any:
            gradient = gradient.clone()
            gradient[unread, 3] = 1e-6
            return gradient

        model["bert"].embeddings.word_embeddings.weight.register_hook(spoil)

    result = judged(Changed(plant), source="classifier.loss")
    assert [v.activation for v in result.failures] == [NAME]
    local = result.failures[0].local
    assert local is not None
    assert local.error.index == (unread, 3)
