"""A step whose result is zero everywhere has a verdict, whatever numbers a mistake would need for it."""

import numpy as np
import pytest

from conformance import Architecture, Batch, Checkpoint, check, golden_of
from conformance.model.activations import parameter_shapes
from conformance.numerics.formats import Array
from conformance.oracle import Network

NORM = "cls.predictions.transform.LayerNorm"


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_a_norm_whose_result_is_zero_fails_without_an_error_of_the_search() -> None:
    # Only an infinite epsilon would give it.
    a = Architecture(7, 4, 1, 2, 3, max_position_embeddings=4, heads=("masked_lm",))
    rng = np.random.default_rng(0)
    weights = {}
    for name, shape in parameter_shapes(a).items():
        normal = 0.3 * rng.standard_normal(shape).astype(np.float32).astype(np.float64)
        weights[name] = 1.0 + normal if name.endswith("LayerNorm.weight") else normal
    one = np.ones((1, 1), np.int64)
    batch = Batch(3 * one, 0 * one, one)
    network, values = Network(a, weights, batch), dict[str, Array]()
    for name, row in network.table.items():
        value = network.step(name, *(values[p] for p in row.parents)).value
        values[name] = (0.0 if name == NORM else 1.0) * np.asarray(value, np.float32).astype(np.float64)
    seen = {n: v.astype(np.float32) for n, v in values.items() if not network.table[n].is_internal}
    result = check(lambda *_: lambda _: dict(seen), golden_of("one", Checkpoint(a, weights), {"one": batch}))
    assert (result.outcome, [v.activation for v in result.origins]) == ("fail", [NORM])
