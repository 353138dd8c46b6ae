"""The common interface of all kinds of exported programs."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch

from conformance.candidates.archives.graph import Constant, Graph
from conformance.numerics.formats import Array


class Program(Protocol):
    """The protocol of a loaded exported program.

    Attributes:
        fields: the batch's array for each of its inputs, in order.
        graph: its graph.
        outputs: names of its output values, in order.
        labels: key of each output value, if the program returns a mapping.
        device: the torch device that it runs on.
    """

    @property
    def fields(self) -> Sequence[str]: ...  # noqa: D102
    @property
    def graph(self) -> Graph: ...  # noqa: D102
    @property
    def outputs(self) -> Sequence[str]: ...  # noqa: D102
    @property
    def labels(self) -> Mapping[str, str]: ...  # noqa: D102
    @property
    def device(self) -> str: ...  # noqa: D102

    def run(self, arrays: Sequence[torch.Tensor]) -> Sequence[Any]:
        """Run the unmodified program and return its outputs."""

    def watch(self, arrays: Sequence[torch.Tensor], values: Sequence[str]) -> Mapping[str, Any]:
        """Run the program once and return those of `values` that it computes, by name."""


def constant(name: str, tensor: torch.Tensor) -> Constant:
    """Return a torch tensor stored in a program as a `Constant`."""
    return Constant(name, tuple(tensor.shape), partial(_float64, tensor), str(tensor.dtype).removeprefix("torch."))


def _float64(tensor: torch.Tensor) -> Array:
    return np.asarray(tensor.detach().double().cpu().numpy())
