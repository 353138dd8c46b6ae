"""Pruning heads gives the result of masking them, and a mistake in pruned heads is found."""

from typing import Any

import numpy as np
import pytest
import torch

from conformance import Architecture, Checkpoint, check, golden_of, load_golden
from conformance.errors import UnsupportedArchitectureError
from conformance.implementations import inner_workings as walk
from conformance.implementations.inner_workings import BertConfig, inner_workings
from conformance.judge.observation import Observation
from conformance.numerics.arithmetic import hypotheses
from conformance.oracle import Network
from conformance.tests.optional_paths import broken

pytestmark = pytest.mark.usefixtures("one_thread")


def test_pruning_heads_after_loading_gives_the_result_of_a_head_mask() -> None:
    """The remaining parameters are those of the kept heads; with them the pruned architecture conforms."""
    golden = load_golden("tiny")
    pruned = ((0, (0, 2)), (1, (3,)))
    model: Any = inner_workings.module(golden.checkpoint, dtype="float64")
    batch, mask = golden.batches["padded"].on("cpu"), torch.ones(2, 4)
    for layer, heads in pruned:
        mask[layer, list(heads)] = 0.0
    masked = model(batch.input_ids, batch.attention_mask, batch.token_type_ids, mask).logits
    for layer, heads in pruned:
        model.bert.encoder.layer[layer].attention.prune_heads(heads)
    left = model(batch.input_ids, batch.attention_mask, batch.token_type_ids).logits
    torch.testing.assert_close(left, masked)
    weights = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    a = golden.checkpoint.architecture.with_(pruned_heads=pruned, heads=("classification",))
    result = check(inner_workings, golden_of("pruned", Checkpoint(a, weights), golden.batches))
    assert result.conforms, result


def test_another_heads_output_in_place_of_a_pruned_one_fails_at_the_output_projection() -> None:
    def rotated(bert: Any) -> None:
        attention = bert.encoder.layer[0].attention
        attention.self.register_forward_hook(lambda _, __, output: (output[0].roll(8, -1), output[1]))

    result = check(broken(rotated), "pruned-heads")
    assert [v.activation for v in result.origins] == ["encoder.layer.0.attention.self.context"]


def test_heads_that_do_not_exist_are_refused() -> None:
    attention = walk.BertAttention(BertConfig(hidden_size=8, num_attention_heads=2))
    with pytest.raises(ValueError, match=r"no heads \[2\] to prune; there are 2"):
        attention.prune_heads([0, 2])


@pytest.mark.parametrize("pruned", [{"0": [0, 4]}, {"0": 1}, {"0": ["a", 1]}, {"x": [1]}, {"0": [1], "00": [2]}, {"9" * 5000: [0]}])
def test_pruned_heads_that_do_not_exist_are_refused(pruned: dict[str, Any]) -> None:
    a = load_golden("tiny").checkpoint.architecture
    with pytest.raises(UnsupportedArchitectureError, match="pruned_heads (is|has)"):
        Architecture.from_config({**a.as_dict(), "pruned_heads": pruned})


@pytest.mark.parametrize(("name", "heads"), [("scores", 2), ("probs", 2), ("context", 1)])
def test_the_rows_of_a_layer_are_those_of_the_heads_that_it_has(name: str, heads: int) -> None:
    """Layer 0 of `pruned-heads` has 2 of 4 heads, so that each token has 2 rows of scores."""
    golden, name = load_golden("pruned-heads"), f"encoder.layer.0.attention.self.{name}"
    batch = golden.batches["padded"]
    network, (hypothesis, *_) = Network(golden.checkpoint.architecture, golden.checkpoint.weights, batch), hypotheses("float64")
    values = dict(network.walk())
    seen = Observation(network, name, values[name], {parent: values[parent] for parent in network.table[name].parents})
    hashes = np.arange(batch.mask.size, dtype=np.uint64).reshape(batch.mask.shape)  # no token repeats another
    assert seen.independent_rows(hypothesis, hashes).size == batch.mask.sum() * heads


def test_the_strip_of_heads_has_the_heads_that_the_layer_has() -> None:
    """The second of the two heads, each of 8 features, is doubled."""

    def doubled(_: Any, __: Any, output: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return output[0] * torch.arange(16).ge(8).add(1), *output[1:]

    candidate = broken(lambda bert: bert.encoder.layer[0].attention.self.register_forward_hook(doubled))
    (origin,) = check(candidate, "pruned-heads").origins
    assert origin.activation == "encoder.layer.0.attention.self.context"
    (strip,) = [strip for strip in origin.local.distribution.strips if strip.axis == "head"]
    assert (strip.size, [value > origin.local.rms_threshold for value in strip.values]) == (2, [False, True])
