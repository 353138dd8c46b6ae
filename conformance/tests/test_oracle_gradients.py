"""The oracle's gradients agree with float64 autograd through Hugging Face's network and with finite differences."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from conformance import Checkpoint, load_golden
from conformance.errors import UsageError
from conformance.implementations.hugging_face import HuggingFace, taps
from conformance.implementations.hugging_face_losses import losses
from conformance.model.activations import parameter_shapes
from conformance.model.batch import IGNORED_LABEL, Batch
from conformance.model.gradients import SUFFIX, is_gradient
from conformance.numerics.formats import Array
from conformance.oracle import Network
from conformance.oracle.gradients.norm import NormBackward

LOSSES = ("cls.predictions.loss", "cls.seq_relationship.loss", "cls.loss", "classifier.loss")
GOLDEN = load_golden("tiny")
BATCH = GOLDEN.batches["padded"]


@dataclass(frozen=True)
class Gradients:
    """Gradients with respect to activations and to parameters, by name."""

    activations: Mapping[str, Array]
    parameters: Mapping[str, Array]


def _gradients(network: Network, source: str) -> Gradients:
    """Return the oracle's gradients."""
    walked = replace(network, source=source).walk()
    found = {name.removesuffix(SUFFIX): value for name, value in walked if is_gradient(name)}
    parameters = parameter_shapes(network.architecture)
    return Gradients(
        {name: value for name, value in found.items() if name not in parameters},
        {name: value for name, value in found.items() if name in parameters},
    )


def _network(golden: Any, batch: Batch) -> Network:
    return Network(golden.checkpoint.architecture, golden.checkpoint.weights, batch)


@contextmanager
def _retained(model: Any) -> Iterator[dict[str, torch.Tensor]]:
    """Register hooks that keep the outputs of modules by activation name, and retain their gradients."""
    kept: dict[str, torch.Tensor] = {}

    def keep(name: str, _: Any, __: Any, output: torch.Tensor) -> None:
        if output.requires_grad:
            output.retain_grad()
            kept[name] = output

    modules = dict(model.named_modules())
    handles = [
        modules[tap.path].register_forward_hook(partial(keep, name))
        for name, tap in taps(model).items()
        if tap.what == "output" and tap.element == 0
    ]
    try:
        yield kept
    finally:
        for handle in handles:
            handle.remove()


def _autograd(checkpoint: Checkpoint, batch: Batch, loss: str) -> Gradients:
    """Return the gradients of torch's autograd through Hugging Face's modules in float64."""
    model, given = HuggingFace("eager").module(checkpoint, "cpu", "float64"), batch.on("cpu")
    # Otherwise torch zeroes the gradient of token 0, even where it is attended to.
    model["bert"].embeddings.word_embeddings.padding_idx = None
    with torch.enable_grad(), _retained(model) as kept:
        logits = model(given.input_ids, given.attention_mask, given.token_type_ids)
        losses(logits, given)[loss].backward()
    activations = {name: value.grad.numpy() for name, value in kept.items() if value.grad is not None}
    parameters = {name: p.grad.numpy() for name, p in model.named_parameters() if p.grad is not None}
    return Gradients(activations, parameters)


def _require_equal(actual: Mapping[str, Array], expected: Mapping[str, Array], names: Any) -> None:
    """Assert equality up to rounding. The gradient of a key's bias is 0, as a sum of terms that cancel."""
    scale = max(float(np.abs(expected[name]).max()) for name in names)
    for name in names:
        np.testing.assert_allclose(actual[name], expected[name], rtol=1e-9, atol=1e-13 * scale, err_msg=name)


@pytest.mark.landing(golden=["tiny", "odd-width"])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("golden", ["tiny", "tanh", "odd-width", "narrow-heads"])
def test_gradients_equal_those_of_float64_autograd(golden: str, loss: str) -> None:
    loaded = load_golden(golden)
    batch = next(iter(loaded.batches.values()))
    found = _gradients(_network(loaded, batch), loss)
    expected = _autograd(loaded.checkpoint, batch, loss)
    assert set(expected.parameters) <= set(found.parameters)
    _require_equal(found.parameters, expected.parameters, expected.parameters)
    assert expected.activations.keys() <= found.activations.keys()
    ours = dict(found.activations)
    # Hugging Face's position ids have one row for all sequences, so its gradient is summed over them.
    ours["embeddings.position_embeddings"] = ours["embeddings.position_embeddings"].sum(0, keepdims=True)
    _require_equal(ours, expected.activations, expected.activations)


@given(st.data())
def test_gradients_with_any_labels_equal_those_of_float64_autograd(data: st.DataObject) -> None:
    """Labels: with ignored positions, a single label, the same label everywhere, and labels at attended positions only."""
    shown = np.argwhere(BATCH.mask)
    chosen = data.draw(st.lists(st.sampled_from(range(len(shown))), min_size=1, max_size=len(shown), unique=True))
    labels = np.full(BATCH.input_ids.shape, IGNORED_LABEL)
    for i in chosen:
        labels[tuple(shown[i])] = data.draw(st.integers(0, GOLDEN.checkpoint.architecture.vocab_size - 1))
    first = BATCH.mask[:, 0]  # The label of a sentence depends on its first token.
    sentences = np.where(first, data.draw(st.lists(st.integers(0, 1), min_size=BATCH.size, max_size=BATCH.size)), IGNORED_LABEL)
    batch = replace(BATCH, labels=labels, next_sentence_label=sentences)
    found = _gradients(_network(GOLDEN, batch), "cls.loss")
    expected = _autograd(GOLDEN.checkpoint, batch, "cls.loss")
    _require_equal(found.parameters, expected.parameters, expected.parameters)


@pytest.mark.parametrize("golden", ["tiny", "sinusoidal"])
@pytest.mark.parametrize("seed", range(3))
def test_gradients_equal_finite_differences(golden: str, seed: int) -> None:
    """Compare Σ g·e with the fourth-order central difference of the loss along a random direction e of all parameters."""
    loaded, draw = load_golden(golden), np.random.default_rng(seed)
    network = _network(loaded, next(iter(loaded.batches.values())))
    found = _gradients(network, "cls.loss")
    direction = {
        name: draw.standard_normal(g.shape) * float(loaded.checkpoint.weights[name].std() + 0.01)
        for name, g in found.parameters.items()
    }
    slope = sum(float((g * direction[name]).sum()) for name, g in found.parameters.items())
    assert slope == pytest.approx(_slope(network, direction), rel=1e-7)


def _slope(network: Network, direction: Mapping[str, Array], step: float = 1e-3) -> float:
    def loss(by: float) -> float:
        weights = {n: w + by * direction[n] if n in direction else w for n, w in network.weights.items()}
        return float(dict(replace(network, weights=weights).walk())["cls.loss"])

    near, far = (loss(k * step) - loss(-k * step) for k in (1, 2))
    return (8.0 * near - far) / (12.0 * step)


def test_both_references_detect_a_wrong_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    def detached_mean(self: NormBackward) -> Array:
        """LayerNorm whose mean is treated as a constant."""
        z, r, g = self.norm.normal, self.norm.inverse, self.site.parameters["weight"] * self.parents[0]
        return np.asarray(r * (g - z * (z * g).mean(-1, keepdims=True)))

    monkeypatch.setattr(NormBackward, "value", property(detached_mean))
    with pytest.raises(AssertionError):
        test_gradients_equal_those_of_float64_autograd("tiny", "cls.loss")
    with pytest.raises(AssertionError):
        test_gradients_equal_finite_differences("tiny", 0)


def test_there_is_no_loss_where_every_label_is_ignored() -> None:
    batch = Batch.of({**BATCH.arrays(), "labels": np.full(BATCH.input_ids.shape, IGNORED_LABEL)})
    network = _network(GOLDEN, batch)
    with pytest.raises(UsageError, match="cls.loss, which this batch .* its losses: cls.seq_relationship.loss, classifier.loss"):
        _gradients(network, "cls.loss")


def test_positions_that_are_masked_or_reach_no_loss_have_zero_gradient() -> None:
    found = _gradients(_network(GOLDEN, BATCH), "cls.seq_relationship.loss")
    assert "cls.predictions.decoder" not in found.activations
    assert "cls.predictions.bias" not in found.parameters
    last = GOLDEN.checkpoint.architecture.num_hidden_layers - 1
    hidden = found.activations[f"encoder.layer.{last}.output.LayerNorm"]
    assert not hidden[:, 1:].any()  # The pooler reads the first token.
    keys = found.activations["encoder.layer.0.attention.self.key"]
    assert not keys[~BATCH.mask].any()
    absent = sorted(set(range(GOLDEN.checkpoint.architecture.vocab_size)) - set(BATCH.input_ids.ravel().tolist()))
    assert not found.parameters["bert.embeddings.word_embeddings.weight"][absent].any()
