"""The mapping from a module's tensor to the activations that it contains."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from conformance.errors import RegistrationError


@dataclass(frozen=True)
class OutputMap:
    """The activations that a module's tensor contains, and the function that computes them from the tensor.

    Attributes:
        names: names of the activations.
        function: maps the tensor to one tensor in the activation's layout for each name.

    Example:
        A module that returns (sequence, batch, feature):

        >>> OutputMap("encoder.layer.{layer}.output.LayerNorm", lambda x: x.transpose(0, 1)).names
        'encoder.layer.{layer}.output.LayerNorm'

    """

    names: str | tuple[str, ...]
    function: Callable[[torch.Tensor], Any]

    def show(self, tensor: torch.Tensor) -> list[tuple[str, Any]]:
        """Return the activations in a tensor as pairs of name and tensor.

        Raises:
            RegistrationError: the function returns a different number of tensors than there are names.
        """
        made = self.function(tensor)
        parts = [made] if isinstance(made, torch.Tensor) else list(made)
        if len(parts) != len(self.names):
            raise RegistrationError(f"{', '.join(self.names)}: {len(parts)} tensors are shown for {len(self.names)} names")
        return list(zip(self.names, parts, strict=True))

    @classmethod
    def of(cls, value: "str | tuple[str, ...] | OutputMap") -> "OutputMap":
        """Return the map for one name (the tensor itself) or several (equal parts of its last axis, as in a fused product)."""
        if isinstance(value, OutputMap):
            return cls((value.names,), value.function) if isinstance(value.names, str) else value
        if isinstance(value, str):
            return cls((value,), lambda t: (t,))
        return cls(value, lambda t: t.chunk(len(value), -1))
