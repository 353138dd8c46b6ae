"""Faults of masks, residuals and positions, and fitted masks: the functions that they describe: in decoders, in cross-attention,
for masks with other keys for each query, and where positions start at an offset."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from conformance import Architecture, check, golden_of
from conformance.benchmarks.detection.bert import Candidate, changed
from conformance.faults import BY_NAME, FaultContext
from conformance.faults.attention import keys_of, softmax
from conformance.faults.fitted import FITTED, Fit, FitData
from conformance.goldens.generated_weights import weights
from conformance.model.batch import Batch
from conformance.model.checkpoint import Checkpoint
from conformance.numerics.formats import FORMATS, Array, Mask
from conformance.oracle import Network, Step
from conformance.oracle.norm import Norm

ROWS, LENGTH, WIDTH = 2, 6, 12
SIZES: dict[str, Any] = {
    "vocab_size": 20,
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 16,
}
ENCODER = Architecture(**SIZES, max_position_embeddings=24)
DECODER = Architecture(**SIZES, max_position_embeddings=24, is_decoder=True, add_cross_attention=True)
PROBS = "encoder.layer.0.attention.self.probs"
PACKED = np.zeros((ROWS, LENGTH, LENGTH), np.int64)  # Two texts in each row, which do not attend to each other.
PACKED[0, :2, :2] = PACKED[0, 2:, 2:] = PACKED[1, :3, :3] = PACKED[1, 3:, 3:] = 1
PADDED = np.array([[1, 1, 1, 1, 0, 0], [0, 1, 1, 1, 1, 1]])
TYPES = np.array([[1, 1, 0, 1, 0, 1], [1, 0, 0, 1, 1, 1]])
EARLIER = np.tri(LENGTH, dtype=np.bool_)


def _network(architecture: Architecture, **arrays: Any) -> tuple[Network, dict[str, Array]]:
    """Return the network on a batch with these arrays, and its activations."""
    generator = np.random.default_rng(1)
    arrays.setdefault("input_ids", generator.integers(0, architecture.vocab_size, (ROWS, LENGTH)))
    if architecture.add_cross_attention:
        arrays["encoder_hidden_states"] = generator.normal(size=(ROWS, LENGTH, WIDTH))
    network = Network(architecture, weights(7, architecture), Batch.of(arrays))
    return network, dict(network.walk())


def _step(network: Network, values: dict[str, Array], name: str) -> Step:
    return network.step(name, *(values[parent] for parent in network.table[name].parents))


def _applied(fault: str, architecture: Architecture, name: str, **arrays: Any) -> tuple[Step, Step | None]:
    """Return the step `name` and the step with the fault."""
    network, values = _network(architecture, **arrays)
    step = _step(network, values, name)
    return step, BY_NAME[fault].applied(step, FaultContext(network, values, FORMATS["float32"]))


def _assert_attends(step: Step, wrong: Step | None, keys: Mask) -> None:
    """Assert that the probabilities are those over `keys`, (B, 1, Q, S); they are undefined for a query without a key."""
    assert wrong
    some = np.asarray(keys[:, 0].any(-1))
    actual, expected = (x.swapaxes(1, 2)[some] for x in (wrong.value, softmax(step.parents[0], keys)))
    np.testing.assert_allclose(actual, expected, atol=1e-12)


def _to_last(mask: Array) -> Array:
    return np.asarray(mask[..., ::-1].cumsum(-1)[..., ::-1] > 0)


CHANGES: dict[str, Callable[[Array], Array]] = {
    "mask-inverted": lambda mask: 1 - mask,
}


@pytest.mark.parametrize("architecture", [ENCODER, DECODER], ids=["encoder", "decoder"])
@pytest.mark.parametrize("mask", [PACKED, PADDED], ids=["packed", "padded"])
@pytest.mark.parametrize("fault", CHANGES)
def test_a_fault_changes_the_mask_alone_and_a_decoder_remains_causal(fault: str, mask: Array, architecture: Architecture) -> None:
    step, wrong = _applied(fault, architecture, PROBS, attention_mask=mask)
    keys: Mask = CHANGES[fault](mask if mask.ndim == 3 else mask[:, None]) > 0
    _assert_attends(step, wrong, keys[:, None] & (EARLIER if architecture.is_decoder else np.ones_like(EARLIER)))


@pytest.mark.parametrize("fault", ["mask-from-token-types", "mask-on-queries"])
def test_another_mask_of_a_decoder_lets_no_token_attend_to_a_later_one(fault: str) -> None:
    _, wrong = _applied(fault, DECODER, PROBS, attention_mask=PADDED, token_type_ids=TYPES)
    assert wrong
    some = wrong.value[:, :, 1:].copy()
    later = np.broadcast_to(~EARLIER[1:], some.shape)
    uniform = np.isclose(some, 1.0 / LENGTH).all(-1, keepdims=True)  # With no key left, all scores are equally low.
    assert not (some * later)[np.broadcast_to(~uniform, some.shape)].any()
    assert not uniform.all()


def test_an_inverted_mask_of_encoder_states_is_a_mistake_of_cross_attention_alone() -> None:
    name = "encoder.layer.0.crossattention.self.probs"
    _, wrong = _applied("mask-inverted", DECODER, name, attention_mask=PADDED)
    assert wrong is None
    step, wrong = _applied("mask-inverted", DECODER, name, attention_mask=PADDED, encoder_attention_mask=1 - PADDED)
    assert wrong
    np.testing.assert_allclose(wrong.value, softmax(step.parents[0], PADDED[:, None, None, :] > 0), atol=1e-12)


def test_pre_norm_has_the_parameters_of_the_norm_after_cross_attention_and_does_not_normalize_encoder_states() -> None:
    step, wrong = _applied("pre-norm", DECODER, "encoder.layer.0.crossattention.self.query")
    network, _ = _network(DECODER)
    site = network.site("encoder.layer.0.crossattention.output.LayerNorm")
    assert wrong
    np.testing.assert_array_equal(wrong.parents[0], Norm(site, step.parents[0]).value)
    assert _applied("pre-norm", DECODER, "encoder.layer.0.crossattention.self.key")[1] is None


@pytest.mark.parametrize(
    ("fault", "norm", "residual"),
    [
        ("residual-of-layer-before", "crossattention.output.LayerNorm", "attention.output.LayerNorm"),
        ("residual-of-layer-before", "output.LayerNorm", "crossattention.output.LayerNorm"),
        ("residual-not-updated", "attention.output.LayerNorm", "crossattention.output.LayerNorm"),
    ],
)
def test_an_earlier_residual_is_that_of_a_layer_with_cross_attention(fault: str, norm: str, residual: str) -> None:
    _, wrong = _applied(fault, DECODER, f"encoder.layer.1.{norm}")
    _, values = _network(DECODER)
    assert wrong
    np.testing.assert_array_equal(wrong.parents[1], values[f"encoder.layer.0.{residual}"])


def test_a_norm_after_cross_attention_has_its_sum_and_may_have_the_parameters_of_the_one_after_attention() -> None:
    network, values = _network(DECODER)
    _, wrong = _applied("residual-before-norm", DECODER, "encoder.layer.0.output.LayerNorm")
    assert wrong
    summed = network.table["encoder.layer.0.crossattention.output.LayerNorm"].parents
    np.testing.assert_array_equal(wrong.parents[1], sum(values[name] for name in summed))
    _, wrong = _applied("norm-shared", DECODER, "encoder.layer.0.crossattention.output.LayerNorm")
    assert wrong
    right = network.site("encoder.layer.0.attention.output.LayerNorm").parameters["weight"]
    np.testing.assert_array_equal(wrong.site.parameters["weight"], right)


def test_positions_counted_from_the_offset_are_correct_without_padding() -> None:
    fault, architecture = "positions-counted-by-mask", Architecture(**SIZES, max_position_embeddings=24, position_offset=2)
    step, wrong = _applied(fault, architecture, "embeddings.position_embeddings")
    assert wrong is None or (wrong.value == step.value).all()
    step, wrong = _applied(
        fault, architecture, "embeddings.position_embeddings", attention_mask=1 - _to_last(1 - PADDED), token_type_ids=TYPES
    )
    assert wrong
    assert (wrong.value != step.value).any()


def test_tokens_packed_to_the_left_are_not_looked_for_in_rows_of_one_vector_as_wide_as_the_text_is_long() -> None:
    architecture = Architecture(**SIZES, max_position_embeddings=24, heads=("classification",))
    mask = (np.arange(ROWS * WIDTH) >= 3).astype(np.int64).reshape(ROWS, WIDTH)
    batch = Batch.of({"input_ids": np.full((ROWS, WIDTH), 3), "attention_mask": mask})
    golden = golden_of("square", Checkpoint(architecture, weights(7, architecture)), {"square": batch})
    result = check(Candidate([changed("classes", "-right()")]), golden)
    assert result.outcome == "fail", result.reason
    assert [v.activation for v in result.origins] == ["classifier"]


# Fitted masks.

HEADS = ENCODER.num_attention_heads
POSITIONS = np.arange(LENGTH)
DISTANCE = np.abs(POSITIONS[:, None] - POSITIONS)
HEAD_KEYS = np.arange(2, 2 + HEADS)[:, None, None] != POSITIONS  # (h, 1, S): each head leaves out a key of its own.

of_networks = pytest.mark.parametrize("architecture", [ENCODER, DECODER], ids=["encoder", "decoder"])
of_masks = pytest.mark.parametrize("mask", [PACKED, PADDED], ids=["packed", "padded"])


def _right(architecture: Architecture, mask: Array) -> Step:
    return _step(*_network(architecture, attention_mask=mask), PROBS)


def _queries(step: Step) -> Mask:
    """Return the queries that are judged, (B, 1, S, 1)."""
    return step.site.batch.mask[:, None, :, None]


def _explaining(step: Step, keys: Mask) -> dict[str, Fit]:
    """Return the fits, by name or by how many masks there are, that have the softmax over these keys at every judged query.

    They are in the order of their trial.
    """
    actual = softmax(step.parents[0], np.broadcast_to(keys, step.value.shape))
    judged = np.broadcast_to(_queries(step), actual.shape)
    data = FitData(actual, judged, np.full(actual.shape, 1e-9), 7.0)
    tried = [(fault.name, fault.fit(step, data)) for fault in FITTED if fault.is_possible_at("probs", PROBS)]
    each = [(name, one) for name, fit in tried if fit for one in (*fit.simpler, fit)]
    found = {fit.parameter.partition(",")[0] if fit.parameter.startswith("one") else name: fit for name, fit in each}
    return {name: fit for name, fit in found.items() if np.allclose(fit.step.value[judged], actual[judged], atol=1e-12)}


@of_networks
@of_masks
def test_a_mask_for_each_head_is_fitted_beside_any_mask_and_in_a_decoder(architecture: Architecture, mask: Array) -> None:
    step = _right(architecture, mask)
    found = _explaining(step, keys_of(step) & HEAD_KEYS)
    changed = keys_of(step) & ~HEAD_KEYS & _queries(step)
    assert found["one for each head"].free == changed.any(2).sum()


@of_networks
@of_masks
def test_the_numbers_of_a_mask_for_each_query_are_the_keys_that_it_changes(architecture: Architecture, mask: Array) -> None:
    step = _right(architecture, mask)
    keys = keys_of(step) & (DISTANCE != 1)
    changed = np.broadcast_to(keys != keys_of(step), (*keys.shape[:2], LENGTH, LENGTH)) & _queries(step)
    assert _explaining(step, keys)["one for each query"].free == changed.sum()


@pytest.mark.parametrize(("mask", "free"), [(PACKED, PACKED[:, 0].size), (PADDED, (PADDED == 0).sum())], ids=["packed", "padded"])
def test_the_numbers_of_one_mask_for_all_queries_are_the_tokens_whose_mask_changes_what_is_attended_to(
    mask: Array, free: Any
) -> None:
    found = _explaining(_right(ENCODER, mask), np.ones((1, 1, 1, LENGTH), np.bool_))
    assert found["mask-other"].free == free
    assert found["mask-other"].free <= found["one for each query"].free


def test_equal_probabilities_are_those_of_a_query_without_keys_only_where_the_right_ones_differ() -> None:
    step = _right(ENCODER, np.ones((ROWS, LENGTH), np.int64))
    alike = step.replaced(parents=(np.zeros_like(step.parents[0]),))
    tried = [(other, _explaining(alike, other)["one for each query"].free) for other in (keys_of(alike), keys_of(alike) & EARLIER)]
    assert [free for _, free in tried] == [0, ROWS * (~EARLIER).sum()]


# Additive masks with the wrong sign, and inverted ones, are named by one name for every usual constant.

Constant = Callable[[torch.dtype], float]

CONSTANTS: dict[str, Constant] = {
    "10000": lambda _: 1e4,
    "1e9": lambda _: 1e9,
    "largest": lambda dtype: torch.finfo(dtype).max,
    "infinity": lambda _: math.inf,
}


EXPOSED: dict[str, Callable[[str], bool]] = {
    "all": lambda _: True,
    "without scores": lambda name: not name.endswith("self.scores"),
    "layers": lambda name: not name.startswith("encoder.") or (name.endswith("output.LayerNorm") and "attention" not in name),
}


def _candidate(added: Callable[[Tensor, Constant], Tensor], constant: str, exposed: str) -> Candidate:
    """Return a candidate that adds `added(mask, constant)`, (B, 1, 1, S), to the scores of every layer."""

    def softmax_of(scores: Tensor, mask: Tensor) -> Tensor:
        return torch.softmax(scores + added(mask[:, None, None, :].to(scores.dtype), CONSTANTS[constant]), -1)

    return Candidate([changed("probs", softmax_of)], EXPOSED[exposed])


def _wrong_sign(mask: Tensor, constant: Constant) -> Tensor:
    return (1.0 - mask) * constant(mask.dtype)


def _names(candidate: Candidate, golden: str, dtype: str) -> list[set[str]]:
    """Return the names of each finding, which are several if the result does not distinguish them."""
    result = check(candidate, golden, dtype=dtype)
    assert result.outcome == "fail", result.reason
    return [{name for name in (found.name, *found.others) if name} for found in result.findings]


@pytest.mark.parametrize(
    ("constant", "dtype", "exposed", "name"),
    [
        ("10000", "float32", "all", "mask-sign-10000"),
        ("10000", "float32", "layers", "mask-sign-10000"),
        ("1e9", "float32", "without scores", "mask-sign"),
        ("largest", "float32", "layers", "mask-sign"),
        ("10000", "bfloat16", "without scores", "mask-sign"),
        ("largest", "bfloat16", "all", "mask-sign"),
    ],
)
def test_a_mask_added_with_the_wrong_sign_has_one_name(constant: str, dtype: str, exposed: str, name: str) -> None:
    assert _names(_candidate(_wrong_sign, constant, exposed), "tiny", dtype) == [{name}]


# The faults are the functions that they describe.

UNPADDED_TOO = np.concatenate([np.ones((1, LENGTH), np.int64), PADDED[:1]])
LARGEST = float(np.finfo(np.float32).max)


@pytest.mark.parametrize(("name", "constant", "added"), [("mask-sign", LARGEST, 0), ("mask-inverted-lowest", -LARGEST, 1)])
def test_a_wrong_mask_is_the_softmax_of_the_sum_rounded_to_float32(name: str, constant: float, added: int) -> None:
    step, wrong = _applied(name, ENCODER, PROBS, attention_mask=UNPADDED_TOO)
    assert wrong
    scores, is_added = step.parents[0], np.broadcast_to(UNPADDED_TOO[:, None, None, :] == added, step.value.shape)
    summed = np.where(is_added, (scores + constant).astype(np.float32), scores)
    np.testing.assert_allclose(wrong.value, softmax(summed, np.ones_like(is_added)), atol=1e-12)


@pytest.mark.parametrize("name", ["mask-sign", "mask-sign-10000"])
def test_a_wrong_sign_lets_no_token_of_a_decoder_attend_to_a_later_one(name: str) -> None:
    step, wrong = _applied(name, DECODER, PROBS, attention_mask=PADDED)
    assert wrong
    assert not np.triu(wrong.value, 1).any()
    assert (wrong.value != step.value).any()
