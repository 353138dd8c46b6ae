"""The form in which every kind of exported program is read."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch

from conformance.candidates.archives.graph import Constant, Graph
from conformance.numerics.formats import Array


class Program(Protocol):
    """An exported program, loaded.

    Attributes:
        fields: which of a batch's arrays its inputs are, in order.
        graph: what it computes.
        outputs: the values that it gives, in order.
        labels: what it calls them, by value, where it gives a mapping.
        device: where it runs.
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
        """Its outputs, the program as it is."""

    def watch(self, arrays: Sequence[torch.Tensor], values: Sequence[str]) -> Mapping[str, Any]:
        """Those of `values` that it computes, all in one run."""


def constant(name: str, tensor: torch.Tensor) -> Constant:
    """A tensor that a program holds."""
    return Constant(name, tuple(tensor.shape), partial(_float64, tensor), str(tensor.dtype).removeprefix("torch."))


def _float64(tensor: torch.Tensor) -> Array:
    return np.asarray(tensor.detach().double().cpu().numpy())
