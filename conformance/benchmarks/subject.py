"""The network of base size that the costs are measured on, and the candidate that is measured: Hugging Face's BERT."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from conformance.implementations.hugging_face import HuggingFace, run
from conformance.judge import cache
from conformance.judge.depth import Depth
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


def network(layers: int, size: int = BATCH, length: int = LENGTH, **settings: Any) -> tuple[Checkpoint, Batch]:
    """Return a network of base width with random weights, and a batch in which every other row is half padding.

    Args:
        layers: number of hidden layers.
        size: number of rows of the batch.
        length: number of tokens of a row.
        settings: further settings of the architecture.
    """
    architecture = Architecture(
        **{"vocab_size": 30522, **settings},
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
    mask = np.ones((size, length), np.int64)
    mask[1::2, length // 2 :] = 0
    ids = rng.integers(1, architecture.vocab_size, mask.shape)  # 0 is padding, whose gradient some candidates omit
    return Checkpoint(architecture, weights), Batch(ids, np.zeros_like(ids), mask)


class Subject:
    """A candidate built from a checkpoint, with a batch and the operations to be measured."""

    def __init__(self, checkpoint: Checkpoint, batch: Batch, attention: str = "eager", dtype: str = "float32") -> None:
        """Build the candidate; the time for this is not measured."""
        self.batch = batch.on("cpu")
        self.model = HuggingFace(attention).module(checkpoint, dtype=dtype)
        self._checkpoint, self._batch, self._dtype = checkpoint, batch, dtype
        self._weights = rounded_weights(checkpoint, dtype)

    @property
    def bert(self) -> Any:
        """Hugging Face's `BertModel`."""
        return self.model["bert"]

    def plain(self) -> None:
        """Run a forward pass."""
        import torch

        b = self.batch
        with torch.no_grad():
            self.bert(b.input_ids, attention_mask=b.attention_mask, token_type_ids=b.token_type_ids)

    def activations(self) -> Iterator[tuple[str, Any]]:
        """Yield every activation that the suite observes, copied, in the order of computation."""
        return run(self.model, self.batch)

    def hooks(self) -> None:
        """Run a forward pass that copies every activation."""
        for _ in self.activations():
            pass

    def assert_close(self) -> None:
        """Compare every activation with that of a second pass."""
        import torch

        expected = dict(self.activations())
        for name, value in self.activations():
            torch.testing.assert_close(value, expected[name])

    def verdicts(self, depth: Depth = "full") -> list[Verdict]:
        """Return the verdicts of a judged run, in the order of computation."""
        network = Network(self._checkpoint.architecture, self._weights, self._batch)
        sigma = cache.cached_sigma(network, representative_hypothesis(self._dtype).arithmetic, self._checkpoint)
        return list(select_arithmetic(Judge(network, self._dtype, depth=depth, sigma=sigma).judge(self.activations())))

    def judged(self, depth: Depth = "full") -> None:
        """Run a judged pass.

        Raises:
            SystemExit: the candidate, which is correct, fails, or nothing is judged.
        """
        verdicts = self.verdicts(depth)
        failed = [v.activation for v in verdicts if v.outcome == "fail"]
        if failed or not any(v.outcome == "pass" for v in verdicts):
            raise SystemExit(f"false alarms: {failed}")
