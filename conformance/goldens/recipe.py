"""Recipes, from which goldens are made bit for bit on any machine."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

from conformance.goldens.generated_weights import HIDDEN, weights
from conformance.model.activations import outputs
from conformance.model.architecture import Architecture
from conformance.model.batch import Batch
from conformance.model.checkpoint import Checkpoint, read_only
from conformance.model.digest import content_digest
from conformance.model.gradients import grad

SEED = 20_260_101
_GRADIENTS = tuple(grad(end) for end in ("weight", "bias", "LayerNorm"))  # suffixes of the names of stored gradients


def keeps_gradient(name: str) -> bool:
    """Return whether a gradient is stored, in goldens that store gradients: those of parameters and of LayerNorm results."""
    return name.endswith(_GRADIENTS)


class Recipe(Protocol):
    """The interface of a recipe, which makes a golden's network and batches."""

    @property
    def name(self) -> str:
        """The name that users type."""

    @property
    def about(self) -> str:
        """The purpose of the golden; lists show only the first sentence."""

    @property
    def version(self) -> int:
        """The version, which changes when the meaning of a verdict may change."""

    @property
    def source(self) -> str:
        """The origin of the weights, for display."""

    @property
    def folder(self) -> Path | None:
        """The folder of the tokenizer, or None if there is none."""

    def weights_digest(self) -> str:
        """Return the SHA-256 of the weights."""

    def checkpoint(self) -> Checkpoint:
        """Return architecture and weights; raises `DependencyMissingError` if they need a package that is not installed."""

    def batches(self) -> Mapping[str, Batch]:
        """Return the inputs by name."""

    def keeps(self, activation: str) -> bool:
        """Return whether the true values of an activation are stored."""

    def __hash__(self) -> int:
        """Return a hash, since verified networks are cached by recipe."""


@dataclass(frozen=True)
class Generated:
    """A recipe whose discriminating weights and batches are generated from Philox integers.

    Attributes:
        about: purpose of the golden.
        make_batches: function that makes the batches from a seed.
        hidden: standard deviation of a hidden state.
        is_complete: whether every activation is stored, or the outputs and losses alone: a wrong step of the oracle changes one
            of them, and the wheel has to carry the fixtures, so that `golden verify` verifies the same where it is installed.
    """

    name: str
    about: str
    architecture: Architecture
    make_batches: Callable[[int], Mapping[str, Batch]]
    version: int = 1
    seed: int = SEED
    hidden: float = HIDDEN
    is_complete: bool = False

    @property
    def source(self) -> str:
        """The seed, for display."""
        return f"seed {self.seed}"

    @property
    def folder(self) -> None:
        """None, since there is no tokenizer."""
        return None

    @cached_property
    def _checkpoint(self) -> Checkpoint:
        return Checkpoint(self.architecture, read_only(weights(self.seed, self.architecture, self.hidden)))

    def checkpoint(self) -> Checkpoint:
        """Return the checkpoint, which is generated once."""
        return self._checkpoint

    def weights_digest(self) -> str:
        """Return the content digest of the weights."""
        return content_digest(self._checkpoint.weights)

    def batches(self) -> Mapping[str, Batch]:
        """Return the batches made from the seed."""
        return self.make_batches(self.seed)

    def keeps(self, activation: str) -> bool:
        """Return whether an activation is stored; of logits for a whole vocabulary, the loss stands for them."""
        short = activation in outputs(self.architecture) and not activation.startswith("cls.predictions")
        return self.is_complete or short or activation.endswith("loss")
