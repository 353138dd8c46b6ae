"""The mapping from a module's tensor to the activations that it contains."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from conformance.errors import CandidateError, RegistrationError
from conformance.model.batch import TorchBatch


@dataclass(frozen=True)
class OutputMap:
    """The activations that a module's tensor contains, and the function that computes them from the tensor.

    Attributes:
        names: names of the activations.
        function: maps the tensor to one tensor in the activation's layout for each name.
        packed: whether the tensor has one row for each real token, (tokens, …), without padding; `function` is then given
            (B, S, …), with zeros at padding.

    Example:
        A module that returns (sequence, batch, feature):

        >>> OutputMap("encoder.layer.{layer}.output.LayerNorm", lambda x: x.transpose(0, 1)).names
        'encoder.layer.{layer}.output.LayerNorm'

    """

    names: str | tuple[str, ...]
    function: Callable[[torch.Tensor], Any] = lambda x: x
    packed: bool = False

    def show(self, tensor: torch.Tensor, batch: TorchBatch | None = None) -> list[tuple[str, Any]]:
        """Return the activations in a tensor of the pass on a batch, as pairs of name and tensor.

        Raises:
            CandidateError: the tensor is to be packed, and has another number of rows than the batch has real tokens.
            RegistrationError: the function returns a different number of tensors than there are names.
        """
        made = self.function(self._unpacked(tensor, batch) if self.packed and batch is not None else tensor)
        parts = [made] if isinstance(made, torch.Tensor) else list(made)
        if len(parts) != len(self.names):
            raise RegistrationError(f"{', '.join(self.names)}: {len(parts)} tensors are shown for {len(self.names)} names")
        return list(zip(self.names, parts, strict=True))

    def _unpacked(self, tensor: torch.Tensor, batch: TorchBatch) -> torch.Tensor:
        real = (torch.ones_like(batch.input_ids) if batch.attention_mask is None else batch.attention_mask) != 0
        tokens, rows = int(real.sum()), tensor[0] if tensor.shape[0] == 1 and tensor.ndim > 2 else tensor
        if len(rows) != tokens:
            raise CandidateError(
                f"{', '.join(self.names)}: {len(rows)} rows, expected one for each of the {tokens} real tokens of the batch"
            )
        found = rows.new_zeros(*real.shape, *rows.shape[1:])
        found[real.to(rows.device)] = rows
        return found

    @classmethod
    def of(cls, value: "str | tuple[str, ...] | OutputMap") -> "OutputMap":
        """Return the map for one name (the tensor itself) or several (equal parts of its last axis, as in a fused product)."""
        if isinstance(value, OutputMap):
            return replace(value, names=(value.names,)) if isinstance(value.names, str) else value
        if isinstance(value, str):
            return cls((value,), lambda t: (t,))
        return cls(value, lambda t: t.chunk(len(value), -1))
