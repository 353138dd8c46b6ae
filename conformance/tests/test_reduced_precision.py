"""Errors that computing in a narrower format would leave, where steps are hidden: when they are called so and when not."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from conformance import Architecture, Batch, Checkpoint, Golden, Result, check, golden_of, load_golden, trace
from conformance.benchmarks.detection.bert import Candidate
from conformance.benchmarks.detection.mistakes import MISTAKES
from conformance.faults.precision import TF32_BITS
from conformance.model.activations import parameter_shapes
from conformance.numerics.formats import Array
from conformance.oracle import Network

LAST = f"encoder.layer.{load_golden('tiny').checkpoint.architecture.num_hidden_layers - 1}.output.LayerNorm"
POOLER = "bert.pooler.dense.weight"
SAID = "as much as computing in {} would leave"


def _last_state(computed_in: str, change: Callable[[Array], Array] = lambda x: x) -> Any:
    """Return a candidate that exposes Hugging Face's last hidden state, computed in that format and converted to float32."""
    state = trace("hf-sdpa", "tiny", dtype=computed_in).activations["padded"][LAST]
    return lambda checkpoint, device, dtype: lambda _: {LAST: change(np.asarray(state, np.float32))}


@pytest.mark.parametrize(("dtype", "other"), [("bfloat16", "float16"), ("float16", "bfloat16")])
def test_the_format_whose_rounding_explains_the_residual_is_reported(dtype: str, other: str) -> None:
    rendered = " ".join(str(check(_last_state(dtype), "tiny")).split())
    assert SAID.format(dtype) in rendered
    assert SAID.format(other) not in rendered


@pytest.mark.parametrize("times", [1e-2, 30.0])
def test_noise_of_another_size_is_not_attributed_to_a_format(times: float) -> None:
    def noisy(x: Array) -> Array:
        noise = np.random.default_rng(0).standard_normal(x.shape)
        return (x * (1.0 + times * 2.0**-8 * noise)).astype(np.float32)

    result = check(_last_state("float32", noisy), "tiny")
    assert result.outcome == "fail"
    assert "would leave: RMS" not in str(result)


def _one_layer(rows: int) -> Golden:
    """Return a network of one layer and a classifier with three labels."""
    a = Architecture(50, 32, 1, 2, 64, max_position_embeddings=16, heads=("classification",), num_labels=3, layer_norm_eps=1e-5)
    rng = np.random.default_rng(1)
    weights = {}
    for name, shape in parameter_shapes(a).items():
        normal = rng.standard_normal(shape).astype(np.float32).astype(np.float64)
        weights[name] = 1.0 + 0.25 * normal if name.endswith("LayerNorm.weight") else 0.25 * normal
    ids = rng.integers(1, a.vocab_size, (rows, 8))
    return golden_of("one", Checkpoint(a, weights), {"one": Batch(ids, np.zeros_like(ids), np.ones_like(ids))})


@pytest.mark.parametrize("rows", [1, 16])
def test_wrong_weights_are_not_called_reduced_precision(rows: int) -> None:
    """The pooler, which is not exposed, has weights that are off by 0.3 %."""
    golden = _one_layer(rows)
    network, values = Network(golden.checkpoint.architecture, golden.checkpoint.weights, golden.batches["one"]), dict[str, Array]()
    weight = network.weights[POOLER]
    off = weight * (1.0 + 0.003 * np.random.default_rng(5).standard_normal(weight.shape))
    wrong = replace(network, weights={**network.weights, POOLER: off})
    for name, row in network.table.items():
        step = (wrong if name == "pooler.dense" else network).step(name, *(values[p] for p in row.parents))
        values[name] = np.asarray(step.value, np.float32).astype(np.float64)
    hidden = ("pooler.dense", "pooler.activation")
    exposed = {name: value.astype(np.float32) for name, value in values.items() if name not in hidden}
    findings = check(lambda *_: lambda _: dict(exposed), golden).findings
    assert findings
    names = [name for finding in findings for name in (finding.name, *finding.others) if name]
    assert not [name for name in names if name.startswith(("precision-", "result-", "weights-"))]


# Runs of correct candidates under other settings of the machine, and reduced precision, which is recognised as such.

GOLDEN = "tiny"
NOISE = re.compile(r"as large as rounding to ([\d.]+) significant bits would leave$")
NARROWER = re.compile(r"^as much as computing in b?float16 would leave")


def is_of_reduced_precision(result: Result) -> bool:
    """Return whether each origin is named so, or described as noise of as few bits or as large as a half format's."""
    for origin in result.origins:
        names = [fault.name for fault in origin.local.named] if origin.local else []
        bits = [float(noise[1]) for sentence in origin.residual_description if (noise := NOISE.search(sentence))]
        described = any(count <= TF32_BITS for count in bits) or any(map(NARROWER.match, origin.residual_description))
        if not (all(name.startswith("precision-") for name in names) if names else described):
            return False
    return result.outcome == "fail"


class Hidden:
    """A candidate that shows only its last layer's output."""

    def __init__(self, candidate: Candidate) -> None:
        self.candidate = candidate

    def prepare(self, checkpoint: Checkpoint, device: str, dtype: str) -> Any:
        runner = self.candidate.prepare(checkpoint, device, dtype)
        return lambda batch: {name: x for name, x in dict(runner(batch)).items() if name == "encoder.layer.1.output.LayerNorm"}


@pytest.mark.parametrize(("plant", "reduced"), [("precision-bfloat16", True), ("gelu-variant", False), ("epsilon", False)])
def test_noise_of_hidden_products_is_recognised_as_reduced_precision_and_a_mistake_is_not(plant: str, reduced: bool) -> None:
    result = check(Hidden(Candidate([MISTAKES[plant].at(layer) for layer in range(2)])), GOLDEN, dtype="float32")
    assert (result.outcome, is_of_reduced_precision(result)) == ("fail", reduced)
