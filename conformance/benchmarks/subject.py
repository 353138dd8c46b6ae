"""The network of base size that costs are measured on, and the candidate that is measured: Hugging Face's BERT."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from conformance import golden_of
from conformance.checks.backward_passes import backward_passes_of
from conformance.checks.check import Request
from conformance.implementations.hugging_face import HuggingFace, run
from conformance.judge import Depth, cache
from conformance.judge.evidence import Verdict
from conformance.judge.judge import Judge
from conformance.judge.select_arithmetic import select_arithmetic
from conformance.model.activations import parameter_shapes
from conformance.model.architecture import Architecture
from conformance.model.batch import Batch
from conformance.model.checkpoint import Checkpoint, LazyWeights, rounded_weights
from conformance.numerics.arithmetic import representative_hypothesis
from conformance.oracle import Network

BATCH, LENGTH, LAYERS = 8, 128, 12


def network(layers: int, size: int = BATCH, **settings: Any) -> tuple[Checkpoint, Batch]:
    """Return a network of base width with random weights, and a batch in which every other row is half padding.

    Args:
        layers: number of hidden layers.
        size: number of rows of the batch.
        settings: further settings of the architecture.
    """
    architecture = Architecture(
        **settings,
        vocab_size=30522,
        hidden_size=768,
        num_hidden_layers=layers,
        num_attention_heads=12,
        intermediate_size=3072,
        max_position_embeddings=512,
    )
    rng = np.random.default_rng(0)
    stored: dict[str, Any] = {}
    for name, shape in parameter_shapes(architecture).items():
        normal = 0.04 * rng.standard_normal(shape, np.float32)
        stored[name] = normal + 1.0 if name.endswith("LayerNorm.weight") else normal
    weights = LazyWeights(stored, lambda name: np.asarray(stored[name], np.float64))
    mask = np.ones((size, LENGTH), np.int64)
    mask[1::2, LENGTH // 2 :] = 0
    ids = rng.integers(1, architecture.vocab_size, mask.shape)  # 0 is padding, whose gradient some candidates omit
    return Checkpoint(architecture, weights), Batch(ids, np.zeros_like(ids), mask)


class Subject:
    """A candidate's forward pass, with a batch; what is done here is not measured."""

    def __init__(self, layers: int, size: int = BATCH, dtype: str = "float32", device: str = "cpu") -> None:
        """Build the candidate on a device."""
        self._checkpoint, batch = network(layers, size)
        self._dtype, self._device, self._given = dtype, device, batch.on(device)
        self._model = HuggingFace("eager").module(self._checkpoint, device, dtype)
        self.network = Network(self._checkpoint.architecture, rounded_weights(self._checkpoint, dtype), batch)

    def plain(self) -> None:
        """Run a forward pass without hooks, and wait for it."""
        b = self._given
        with torch.no_grad():
            self._model["bert"](b.input_ids, attention_mask=b.attention_mask, token_type_ids=b.token_type_ids)
        torch.get_device_module(self._device).synchronize()

    def results(self) -> Iterator[tuple[str, Any]]:
        """Yield everything that the suite observes, copied, in the order of computation."""
        return run(self._model, self._given)

    def hooks(self) -> None:
        """Copy everything that the suite observes."""
        for _ in self.results():
            pass

    def assert_close(self) -> None:
        """Compare everything with that of a second pass."""
        expected = dict(self.results())
        for name, value in self.results():
            torch.testing.assert_close(value, expected[name])

    def verdicts(self, depth: Depth = "full", on: str | None = None) -> list[Verdict]:
        """Return the verdicts of a judged run, in the order of computation, that is computed on this device.

        Raises:
            SystemExit: the candidate, which is correct, fails, or nothing is judged.
        """
        arithmetic = representative_hypothesis(self._dtype, self._device).arithmetic
        sigma = cache.cached_sigma(self.network, arithmetic, self._checkpoint)
        judge = Judge(self.network, self._dtype, self._device, depth=depth, sigma=sigma, on=on)
        verdicts = list(select_arithmetic(judge.judge(self.results())))
        failed = [v.activation for v in verdicts if v.outcome == "fail"]
        if failed or not any(v.outcome == "pass" for v in verdicts):
            raise SystemExit(f"false alarms: {failed}")
        return verdicts


class Backward(Subject):
    """A candidate's forward and backward pass, from the loss of a classifier, in eval mode."""

    def __init__(self, layers: int) -> None:
        """Build the candidate."""
        self._checkpoint, inputs = network(layers, heads=("classification",), num_labels=2)
        batch = replace(inputs, class_labels=np.arange(inputs.size, dtype=np.int64) % 2)
        self._dtype, self._device, self._given = "float32", "cpu", batch.on("cpu")
        runner = HuggingFace("eager").prepare(self._checkpoint, self._device, self._dtype)
        self._model = cast(Any, runner.module)
        golden = golden_of("base", self._checkpoint, {"one": batch})
        (self._pass,) = backward_passes_of(runner, Request.of("hf-eager", golden))
        self.network = self._pass.network

    def plain(self) -> None:
        """Run a forward pass, the loss, and a backward pass to every parameter, without hooks."""
        b = self._given
        assert b.class_labels is not None
        self._model.requires_grad_(True)
        self._model.zero_grad()
        output = self._model["bert"](b.input_ids, attention_mask=b.attention_mask, token_type_ids=b.token_type_ids)
        torch.autograd.backward(cross_entropy(self._model["classifier"](output.pooler_output), b.class_labels))

    def results(self) -> Iterator[tuple[str, Any]]:
        """Yield every activation and gradient, copied."""
        return iter(self._pass.call())
