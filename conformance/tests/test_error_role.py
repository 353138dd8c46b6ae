"""The role of a passing step: whether it enlarges or reduces the error that arrives, beyond what random errors would do."""

import numpy as np
import pytest

from conformance import load_golden
from conformance.judge.global_error import error_role
from conformance.judge.observation import Observation
from conformance.numerics.arithmetic import hypotheses
from conformance.numerics.formats import Array
from conformance.oracle import Network

GOLDEN = load_golden("tiny")
PARENT, NAME = "embeddings.LayerNorm", "encoder.layer.0.attention.self.query"
WEIGHT = f"bert.{NAME}.weight"


def _role(direction: Array | None) -> str | None:
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
    return error_role(observation, errors, hypotheses("float32")[0], 1e-8)


@pytest.mark.parametrize(
    ("direction", "role"),
    [
        pytest.param(None, None, id="random"),
        pytest.param(np.array([1.0, 0.0]), "amplifier", id="along the weight"),
        pytest.param(np.array([1e-3, 1.0]), "attenuator", id="across the weight"),
    ],
)
def test_a_step_amplifies_errors_along_its_weight_and_attenuates_those_across_it(direction: Array | None, role: str | None) -> None:
    assert _role(direction) == role
