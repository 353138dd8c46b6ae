"""Gradients at elements on which no result depends: those of padding, of masked keys and of masked encoder states."""

from collections.abc import Iterator

import numpy as np
import pytest

from conformance import load_golden
from conformance.judge.judge import Judge
from conformance.model.activation import attended_keys
from conformance.numerics.formats import Array
from conformance.oracle import Network

MASKED = [
    ("tiny", "encoder.layer.0.attention.self.key.grad", "padded positions"),
    ("tiny", "encoder.layer.0.attention.self.scores.grad", "padded queries or masked keys"),
    ("decoder", "encoder.layer.0.attention.self.scores.grad", "padded queries or masked keys"),
    ("cross-attention", "encoder.layer.1.crossattention.self.key.grad", "masked encoder states"),
]


def _network(golden: str) -> Network:
    loaded = load_golden(golden)
    batch = next(iter(loaded.batches.values()))
    return Network(loaded.checkpoint.architecture, loaded.checkpoint.weights, batch, source="cls.predictions.loss")


def _failed(network: Network, name: str, error: Array) -> dict[str, str]:
    """Return the reasons of the failures if `error` is added to an activation before all later ones are computed from it."""

    def shown() -> Iterator[tuple[str, Array]]:
        values = dict[str, Array]()
        for each, row in network.table.items():
            values[each] = network.step(each, *(values[parent] for parent in row.parents)).value
            if each == name:
                values[each] = values[each] + error
            if not row.is_internal:
                yield each, values[each]

    judged = Judge(network, "float64", depth="screen").judge(shown())
    return {verdict.activation: verdict.reason for verdict, _ in judged if verdict.outcome == "fail"}


@pytest.mark.parametrize(("golden", "name", "what"), MASKED)
def test_a_gradient_where_something_is_masked_fails_even_if_all_later_gradients_are_computed_from_it(
    golden: str, name: str, what: str
) -> None:
    network = _network(golden)
    row, batch = network.table[name], network.batch
    if "key" in row.axes:
        masked = ~attended_keys(row, batch)[:, None]
    else:
        masked = ~(batch.states_mask if "state" in row.axes else batch.mask)[:, :, None]
    shape = row.shape(batch.size, batch.length, network.architecture.num_attention_heads, batch.states_length)
    error = np.where(np.broadcast_to(masked, shape), 0.25, 0.0)
    assert _failed(network, name, error) == {name: f"{what} have a gradient, up to 0.25, where they must have none"}


def test_the_gradient_of_a_probability_at_a_masked_key_may_be_nonzero() -> None:
    network, name = _network("decoder"), "encoder.layer.0.attention.self.probs.grad"
    values = dict(network.walk())
    assert values[name][:, :, 0, 1:].any()
    assert _failed(network, name, np.zeros_like(values[name])) == {}
