"""What a module's tensor shows: which activations, and how they are brought to their layout."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from conformance.errors import RegistrationError


@dataclass(frozen=True)
class OutputMap:
    """What a module's tensor shows: activations, after `function` has brought it to their layout (one tensor a name).

    Example:
        A module that returns (sequence, batch, feature):

        >>> OutputMap("encoder.layer.{layer}.output.LayerNorm", lambda x: x.transpose(0, 1)).names
        'encoder.layer.{layer}.output.LayerNorm'

    """

    names: str | tuple[str, ...]
    function: Callable[[torch.Tensor], Any]

    def show(self, tensor: torch.Tensor) -> list[tuple[str, Any]]:
        """What is seen in a tensor, by name; `RegistrationError` where the function gives another number of tensors."""
        made = self.function(tensor)
        parts = [made] if isinstance(made, torch.Tensor) else list(made)
        if len(parts) != len(self.names):
            raise RegistrationError(f"{', '.join(self.names)}: {len(parts)} tensors are shown for {len(self.names)} names")
        return list(zip(self.names, parts, strict=True))

    @classmethod
    def of(cls, value: "str | tuple[str, ...] | OutputMap") -> "OutputMap":
        """One name: the tensor itself. Several: equal parts of its last axis, as of a fused product."""
        if isinstance(value, OutputMap):
            return cls((value.names,), value.function) if isinstance(value.names, str) else value
        if isinstance(value, str):
            return cls((value,), lambda t: (t,))
        return cls(value, lambda t: t.chunk(len(value), -1))
