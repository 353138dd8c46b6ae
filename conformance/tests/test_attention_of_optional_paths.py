"""Relative positions and pruned heads: a mistake in them is named, and pruning heads gives the result of masking them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from conformance import Architecture, Checkpoint, check, golden_of, load_golden
from conformance.errors import UnsupportedArchitectureError
from conformance.implementations.inner_workings import inner_workings
from conformance.judge.observation import Observation
from conformance.numerics.arithmetic import hypotheses
from conformance.oracle import Network
from conformance.tests.optional_paths import RELATIVE, broken, in_attention, named

pytestmark = pytest.mark.usefixtures("one_thread")


def _distances(f: Callable[[Tensor, int], Tensor]) -> Callable[[Any], None]:
    """Return a change that looks up the rows f(i − j, P − 1) of the 2P − 1 rows."""

    def change(attention: Any) -> None:
        right, longest = attention.distance_embedding.forward, attention.longest
        attention.distance_embedding.forward = lambda rows: right((f(rows - longest, longest) + longest).clamp(0, 2 * longest))

    return change


def _einsum(monkeypatch: pytest.MonkeyPatch, of: str, f: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
    """Return a change that applies f to the result and operands of one term of the scores, in every layer."""
    usual = torch.einsum

    def changed(equation: str, x: Tensor, rows: Tensor) -> Tensor:
        return f(usual(equation, x, rows), x, rows) if equation == of else usual(equation, x, rows)

    monkeypatch.setattr(torch, "einsum", changed)


OF_QUERIES, OF_KEYS = "bhld,lrd->bhlr", "bhrd,lrd->bhlr"


@pytest.mark.landing(golden="relative-key-query")
@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("distance-sign", lambda d, _: -d),
        ("distance-absolute", lambda d, _: d.abs()),
        ("distance-clipped", lambda d, _: d.clamp(-16, 16)),
        ("distance-offset", lambda d, _: d + 1),
        ("distance-from-zero", lambda d, longest: d % (2 * longest + 1) - longest),
    ],
)
@pytest.mark.parametrize("golden", RELATIVE)
def test_wrong_look_ups_of_distances_are_named(golden: str, name: str, wrong: Callable[[Tensor, int], Tensor]) -> None:
    named(in_attention(_distances(wrong), layer=1), golden, name, layer=1)


WRONG_TERMS: list[tuple[str, str, Callable[[Tensor, Tensor, Tensor], Tensor]]] = [
    ("distance-query-missing", OF_QUERIES, lambda y, x, rows: 0.0 * y),
    ("distance-key-missing", OF_KEYS, lambda y, x, rows: 0.0 * y),
    ("distance-query-transposed", OF_QUERIES, lambda y, x, rows: y.transpose(-1, -2)),
    ("distance-key-transposed", OF_KEYS, lambda y, x, rows: y.transpose(-1, -2)),
    ("distance-unscaled", OF_QUERIES, lambda y, x, rows: y * x.shape[-1] ** 0.5),
    ("distance-unscaled", OF_KEYS, lambda y, x, rows: y * x.shape[-1] ** 0.5),
]


@pytest.mark.parametrize(("name", "of", "wrong"), WRONG_TERMS)
def test_wrong_distance_terms_are_named(
    monkeypatch: pytest.MonkeyPatch, name: str, of: str, wrong: Callable[[Tensor, Tensor, Tensor], Tensor]
) -> None:
    _einsum(monkeypatch, of, wrong)
    _require_named(inner_workings, name)


def _require_named(candidate: Any, name: str) -> None:
    result = check(candidate, "relative-key-query")
    assert [v.activation.rpartition(".")[2] for v in result.origins] == ["probs", "probs"]
    assert name in {finding.name for finding in result.findings}, str(result)


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


@pytest.mark.parametrize(
    ("name", "of", "other"), [("distance-of-keys", OF_QUERIES, "key"), ("distance-of-queries", OF_KEYS, "query")]
)
def test_distances_multiplied_by_the_other_operand_are_named(
    monkeypatch: pytest.MonkeyPatch, name: str, of: str, other: str
) -> None:
    projected, usual = list[Tensor](), torch.einsum

    def kept(bert: Any) -> None:
        for layer in bert.encoder.layer:
            getattr(layer.attention.self, other).register_forward_hook(lambda _module, _inputs, y: projected.append(y))

    def wrong(_: Tensor, x: Tensor, rows: Tensor) -> Tensor:
        return usual(of, projected[-1].unflatten(-1, (x.shape[1], -1)).transpose(1, 2), rows)

    _einsum(monkeypatch, of, wrong)
    _require_named(broken(kept), name)
