"""The oracle's gradients, and those stored beside a golden, agree with float64 autograd; alterations are noticed."""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from conformance import Checkpoint, Golden, load_golden
from conformance.errors import FixtureError
from conformance.goldens.manifest import DEFAULT_GOLDENS, GRADIENTS, MANIFEST, ManifestEntry, fixtures_directory, of_entry
from conformance.implementations.demystified import demystified
from conformance.implementations.hugging_face import HuggingFace, hf_eager, taps
from conformance.implementations.hugging_face_losses import losses
from conformance.judge.verify_goldens import verify
from conformance.model.activations import parameter_shapes
from conformance.model.batch import IGNORED_LABEL, Batch
from conformance.model.checkpoint import content_digest
from conformance.model.gradients import SUFFIX, grad, is_gradient
from conformance.numerics.formats import Array
from conformance.oracle import Network
from conformance.oracle.gradients.norm import NormBackward

LOSSES = ("cls.predictions.loss", "cls.seq_relationship.loss", "cls.loss", "classifier.loss")
GOLDEN = load_golden("tiny")
BATCH = GOLDEN.batches["padded"]


Gradients = tuple[Mapping[str, Array], Mapping[str, Array]]  # with respect to activations, and to parameters, by name


def _gradients(golden: Golden, batch: Batch, source: str) -> Gradients:
    """Return the oracle's gradients."""
    a = golden.checkpoint.architecture
    walked = Network(a, golden.checkpoint.weights, batch, source=source).walk()
    every, parameters = {name.removesuffix(SUFFIX): value for name, value in walked if is_gradient(name)}, parameter_shapes(a)
    activations = {name: value for name, value in every.items() if name not in parameters}
    return activations, {name: value for name, value in every.items() if name in parameters}


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
    return activations, {name: p.grad.numpy() for name, p in model.named_parameters() if p.grad is not None}


def _require_equal(actual: Mapping[str, Array], expected: Mapping[str, Array]) -> None:
    """Assert equality up to rounding. The gradient of a key's bias is 0, as a sum of terms that cancel."""
    assert expected.keys() <= actual.keys()
    scale = max(float(np.abs(value).max()) for value in expected.values())
    for name, value in expected.items():
        np.testing.assert_allclose(actual[name], value, rtol=1e-9, atol=1e-13 * scale, err_msg=name)


@pytest.mark.landing(golden=["tiny", "odd-width"])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("golden", ["tiny", "tanh", "odd-width", "narrow-heads"])
def test_gradients_equal_those_of_float64_autograd(golden: str, loss: str) -> None:
    loaded = load_golden(golden)
    batch = next(iter(loaded.batches.values()))
    activations, parameters = _gradients(loaded, batch, loss)
    of_activations, of_parameters = _autograd(loaded.checkpoint, batch, loss)
    _require_equal(parameters, of_parameters)
    # Hugging Face's position ids have one row for all sequences, so its gradient is summed over them.
    positions = activations["embeddings.position_embeddings"].sum(0, keepdims=True)
    _require_equal({**activations, "embeddings.position_embeddings": positions}, of_activations)


@given(st.data())
def test_gradients_with_any_labels_equal_those_of_float64_autograd(data: st.DataObject) -> None:
    """Labels: with ignored positions, a single label, the same label everywhere, and labels at attended positions only."""
    attended = np.argwhere(BATCH.mask)
    chosen = data.draw(st.lists(st.sampled_from(range(len(attended))), min_size=1, max_size=len(attended), unique=True))
    labels = np.full(BATCH.input_ids.shape, IGNORED_LABEL)
    for i in chosen:
        labels[tuple(attended[i])] = data.draw(st.integers(0, GOLDEN.checkpoint.architecture.vocab_size - 1))
    first = BATCH.mask[:, 0]  # The label of a sentence depends on its first token.
    sentences = np.where(first, data.draw(st.lists(st.integers(0, 1), min_size=BATCH.size, max_size=BATCH.size)), IGNORED_LABEL)
    batch = replace(BATCH, labels=labels, next_sentence_label=sentences)
    _require_equal(_gradients(GOLDEN, batch, "cls.loss")[1], _autograd(GOLDEN.checkpoint, batch, "cls.loss")[1])


def test_positions_that_are_masked_or_reach_no_loss_have_zero_gradient() -> None:
    activations, parameters = _gradients(GOLDEN, BATCH, "cls.seq_relationship.loss")
    assert "cls.predictions.decoder" not in activations
    assert "cls.predictions.bias" not in parameters
    assert not activations["encoder.layer.1.output.LayerNorm"][:, 1:].any()  # The pooler reads the first token.
    assert not activations["encoder.layer.0.attention.self.key"][~BATCH.mask].any()
    absent = sorted(set(range(GOLDEN.checkpoint.architecture.vocab_size)) - set(BATCH.input_ids.ravel().tolist()))
    assert not parameters["bert.embeddings.word_embeddings.weight"][absent].any()


CANDIDATES = {"tiny": hf_eager, "sinusoidal": demystified}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A copy of the goldens' folder, to be damaged."""
    shutil.copytree(fixtures_directory(), tmp_path / "fixtures")
    return tmp_path / "fixtures"


def _rewritten(home: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Replace the file of `tiny`'s gradients, with correct digests."""
    file, manifest = home / f"tiny{GRADIENTS}", home / MANIFEST
    arrays = load_file(file)
    change(arrays)
    save_file(arrays, file)
    said = json.loads(manifest.read_text("utf-8"))
    entry = said["goldens"]["tiny"]
    entry["gradients_digest"] = content_digest(arrays)
    of = ManifestEntry(**entry)
    entry["digest"] = of_entry(of.version, of.architecture, of.batches, of.weights_digest, of.stored_digest, of.gradients_digest)
    manifest.write_text(json.dumps(said), "utf-8")


@pytest.mark.parametrize("name", DEFAULT_GOLDENS)
def test_every_parameter_has_a_gradient_from_at_least_one_source(name: str) -> None:
    golden = load_golden(name)
    for by_source in golden.gradients.values():
        found = {of for gradients in by_source.values() for of in gradients}
        assert {grad(of) for of in parameter_shapes(golden.checkpoint.architecture)} <= found


@pytest.mark.parametrize("name", DEFAULT_GOLDENS)
def test_they_equal_those_of_autograd_in_float64(name: str) -> None:
    golden = load_golden(name)
    runner: Any = CANDIDATES[name].prepare(golden.checkpoint, "cpu", "float64")
    compared = 0
    for batch, by_source in golden.gradients.items():
        for source, stored in by_source.items():
            autograd = dict(runner.gradients(golden.batches[batch].on("cpu"), source, torch.ones((), dtype=torch.float64)))
            for of in stored.keys() & autograd.keys():
                compared += 1
                # 50,000 ULP of float64. A key bias's gradient is 0 up to rounding: 10 u √96 · 0.05, for 96 terms of up to 0.05.
                room = 1e-11 * max(np.abs(stored[of]).max(), 1e-3)
                np.testing.assert_allclose(autograd[of].numpy(), stored[of], rtol=0.0, atol=room, err_msg=of)
    assert compared > 40


def test_an_altered_missing_or_exchanged_file_is_an_error(home: Path) -> None:
    file = home / f"tiny{GRADIENTS}"
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(FixtureError, match="it was altered"):
        load_golden("tiny", home).gradients  # noqa: B018 -- it is read when it is asked for
    for damage in (lambda: None, file.unlink, lambda: shutil.copy(home / f"sinusoidal{GRADIENTS}", file)):
        damage()
        assert [(v.part, v.outcome) for v in verify("tiny", home)][-1] == ("gradients", "fail")


def test_a_gradient_that_differs_by_more_than_rounding_or_is_missing_is_noticed(home: Path) -> None:
    name = "gradient/padded/cls.loss/bert.encoder.layer.0.attention.self.query.weight.grad"
    _rewritten(home, lambda arrays: arrays.update({name: arrays[name] * (1.0 + 1e-12)}))
    last = verify("tiny", home)[-1]
    assert (last.part, last.outcome) == ("gradients", "fail")
    assert "query.weight.grad of padded, from cls.loss, regenerates differently" in last.reason
    _rewritten(home, lambda arrays: arrays.pop("gradient/padded/cls.loss/bert.pooler.dense.weight.grad"))
    assert "is not what is kept of the table" in verify("tiny", home)[-1].reason


def test_autograd_detects_a_wrong_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    def detached_mean(self: NormBackward) -> Array:
        """LayerNorm whose mean is treated as a constant."""
        z, r, g = self.norm.normal, self.norm.inverse, self.site.parameters["weight"] * self.parents[0]
        return np.asarray(r * (g - z * (z * g).mean(-1, keepdims=True)))

    monkeypatch.setattr(NormBackward, "value", property(detached_mean))
    with pytest.raises(AssertionError):
        test_gradients_equal_those_of_float64_autograd("tiny", "cls.loss")
