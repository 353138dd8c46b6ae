"""What every kind of exported program is read into."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch

from conformance.archives.graph import Graph


class Program(Protocol):
    """An exported program, loaded.

    Attributes:
        fields: which of a batch's arrays its inputs are, in order.
        graph: what it computes.
        outputs: the values that it gives, in order.
        labels: what it calls them, by value, where it gives a mapping.
    """

    @property
    def fields(self) -> Sequence[str]: ...  # noqa: D102
    @property
    def graph(self) -> Graph: ...  # noqa: D102
    @property
    def outputs(self) -> Sequence[str]: ...  # noqa: D102
    @property
    def labels(self) -> Mapping[str, str]: ...  # noqa: D102

    def run(self, arrays: Sequence[torch.Tensor]) -> Sequence[Any]:
        """Its outputs, the program as it is."""

    def watch(self, arrays: Sequence[torch.Tensor], values: Sequence[str]) -> Mapping[str, Any]:
        """Those of `values` that it computes, all in one run."""
