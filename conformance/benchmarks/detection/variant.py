"""Correct variants: candidates that compute in unusual ways, with the architectures and formats in which they are correct."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import Tensor

from conformance.benchmarks.detection.batching import Arrangement, as_given
from conformance.benchmarks.detection.bert import Bert, Candidate
from conformance.benchmarks.detection.planted.plant import DTYPES, Suits, always
from conformance.benchmarks.detection.rewritten.places import Every
from conformance.model.activations import last_hidden
from conformance.model.architecture import Architecture
from conformance.model.batch import TorchBatch
from conformance.model.checkpoint import Checkpoint

Change = Callable[[Bert], None]
HALVES_AND_FLOAT32 = ("float32", "bfloat16", "float16")
HALVES = ("bfloat16", "float16")
WIDE = ("float64", "float32")


@dataclass(frozen=True)
class Variant(Candidate):
    """A correct candidate.

    Attributes:
        arranged: arrangement in which it runs its batch.
        last_only: whether only the last hidden state is shown.
        dtypes: formats in which it is correct.
        suits: whether it shows any activation of an architecture.
    """

    arranged: Arrangement = as_given
    last_only: bool = False
    dtypes: tuple[str, ...] = DTYPES
    suits: Suits = always

    def in_layer(self, index: int) -> "Variant | None":
        """Return the variant with its changes in one encoder layer alone; None if they are not all changes of single modules."""
        if not self.plants or not all(isinstance(change, Every) for change in self.plants):
            return None
        return replace(self, plants=[partial(_in_layer, change, index) for change in self.plants if isinstance(change, Every)])

    def supports(self, architecture: Architecture, device: str, dtype: str) -> str | None:
        """Return why the variant cannot be judged in this case, or None."""
        if not self.suits(architecture):
            return "what it shows, this architecture does not have"
        return None if dtype in self.dtypes else f"what it computes is no correct {dtype}"

    def prepare(self, checkpoint: Checkpoint, device: str, dtype: str) -> Callable[[TorchBatch], Mapping[str, Tensor]]:
        """Return a runner of the candidate with its batch arranged."""
        model = self.build(checkpoint, device, dtype)
        run = self.arranged(model, self.runner(model, dtype))
        if not self.last_only:
            return run
        last = last_hidden(checkpoint.architecture)
        return lambda batch: {last: run(batch)[last]}


def _in_layer(change: Every[Any], index: int, model: Bert) -> None:
    change(model.layer(index))


def changed(*changes: Change, dtypes: tuple[str, ...] = DTYPES) -> Variant:
    """Return a variant whose module is changed by `changes` and which shows every activation."""
    return Variant(changes, dtypes=dtypes)
