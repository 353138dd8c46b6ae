"""Reduced precision allows errors of its own size, so that a result within them is no evidence for it."""

from typing import Any

import numpy as np
import pytest

from conformance import Architecture, Batch, Checkpoint, Golden, check, golden_of
from conformance.model.activations import parameter_shapes
from conformance.numerics.formats import Array
from conformance.oracle import Network
from conformance.oracle.step import Step

HIDDEN = ("pooler.dense", "pooler.activation")
REDUCED = ("precision-", "result-", "weights-")


def _golden(rows: int) -> Golden:
    """Return a network of one layer and a classifier with three labels."""
    a = Architecture(50, 32, 1, 2, 64, max_position_embeddings=16, heads=("classification",), num_labels=3, layer_norm_eps=1e-5)
    rng = np.random.default_rng(1)
    weights = {}
    for name, shape in parameter_shapes(a).items():
        normal = rng.standard_normal(shape).astype(np.float32).astype(np.float64)
        weights[name] = 1.0 + 0.25 * normal if name.endswith("LayerNorm.weight") else 0.25 * normal
    ids = rng.integers(1, a.vocab_size, (rows, 8))
    return golden_of("one", Checkpoint(a, weights), {"one": Batch(ids, np.zeros_like(ids), np.ones_like(ids))})


def _names(golden: Golden, changed: Any) -> set[str]:
    """Return the names that are reported for a correct network with a changed pooler, which is not exposed."""
    network = Network(golden.checkpoint.architecture, golden.checkpoint.weights, golden.batches["one"])
    values: dict[str, Array] = {}
    for name, row in network.table.items():
        step = network.step(name, *(values[p] for p in row.parents))
        values[name] = np.asarray(changed(step) if name == "pooler.dense" else step.value, np.float32).astype(np.float64)
    seen = {name: value.astype(np.float32) for name, value in values.items() if name not in HIDDEN}
    found = check(lambda *_: lambda _: dict(seen), golden).findings
    return {name for finding in found for name in (finding.name, *finding.others) if name}


def _with_wrong_weights(step: Step) -> Array:
    weight = step.site.parameters["weight"]
    wrong = weight * (1.0 + 0.003 * np.random.default_rng(5).standard_normal(weight.shape))
    return step.value + step.parents[0][:, 0] @ (wrong - weight).T


@pytest.mark.parametrize("rows", [1, 16])
def test_wrong_weights_are_not_called_reduced_precision(rows: int) -> None:
    assert not [name for name in _names(_golden(rows), _with_wrong_weights) if name.startswith(REDUCED)]
