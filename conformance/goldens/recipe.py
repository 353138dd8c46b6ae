"""A recipe: what a golden is made from, on any machine, bit for bit."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

from conformance.goldens.discriminating import HIDDEN, weights
from conformance.model.architecture import Architecture
from conformance.model.batch import Batch
from conformance.model.checkpoint import Checkpoint, read_only
from conformance.model.digest import content_digest
from conformance.model.gradients import grad

SEED = 20_260_101
_GRADIENTS = tuple(grad(end) for end in ("weight", "bias", "LayerNorm"))  # ends of the names of those that are stored


def keeps_gradient(name: str) -> bool:
    """Whether a gradient is stored, where any of that golden are: those of parameters, and of what a norm gives."""
    return name.endswith(_GRADIENTS)


class Recipe(Protocol):
    """Makes a golden's network and its batches."""

    @property
    def name(self) -> str:
        """What users type."""

    @property
    def about(self) -> str:
        """What it is for: the first sentence stands alone in a list."""

    @property
    def version(self) -> int:
        """Changes when the meaning of a verdict may."""

    @property
    def source(self) -> str:
        """Where the weights come from, for people."""

    @property
    def folder(self) -> Path | None:
        """Where its tokenizer lies; None where it has none."""

    def weights_digest(self) -> str:
        """SHA-256 of the weights."""

    def checkpoint(self) -> Checkpoint:
        """Architecture and weights; `DependencyMissingError` where they need what is not installed."""

    def batches(self) -> Mapping[str, Batch]:
        """The inputs, by name."""

    def keeps(self, activation: str) -> bool:
        """Whether that activation's true values are stored."""

    def __hash__(self) -> int:
        """Of what is verified once."""


@dataclass(frozen=True)
class Generated:
    """A network of discriminating weights and batches, both from Philox integers.

    Attributes:
        about: what it is for.
        make_batches: the batches from a seed.
        hidden: deviation of a hidden state.
        kept: ends of the names of the activations that are stored.
    """

    name: str
    about: str
    architecture: Architecture
    make_batches: Callable[[int], Mapping[str, Batch]]
    version: int = 1
    seed: int = SEED
    hidden: float = HIDDEN
    kept: tuple[str, ...] = ("",)

    @property
    def source(self) -> str:
        """The seed."""
        return f"seed {self.seed}"

    @property
    def folder(self) -> None:
        """Its tokens are numbers alone."""
        return None

    @cached_property
    def _checkpoint(self) -> Checkpoint:
        return Checkpoint(self.architecture, read_only(weights(self.seed, self.architecture, self.hidden)))

    def checkpoint(self) -> Checkpoint:
        """Generated once."""
        return self._checkpoint

    def weights_digest(self) -> str:
        """Of the content."""
        return content_digest(self._checkpoint.weights)

    def batches(self) -> Mapping[str, Batch]:
        """From the seed."""
        return self.make_batches(self.seed)

    def keeps(self, activation: str) -> bool:
        """By the end of its name."""
        return activation.endswith(self.kept)
