"""Faults of masks, residuals and positions: each is the function that it describes, in decoders, in cross-attention, for masks with
other keys for each query, and where positions start at an offset."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from conformance import Architecture, check, golden_of
from conformance.benchmarks.detection.bert import Candidate, changed
from conformance.faults import BY_NAME, FaultContext
from conformance.faults.attention import softmax
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
