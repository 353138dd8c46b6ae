"""The common interface of all kinds of exported programs.

A program's inputs are identified with the arrays of a batch by name.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch

from conformance.candidates.archives.graph import Constant, Graph
from conformance.errors import CandidateError
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


ALIASES: Mapping[str, Sequence[str]] = {
    "input_ids": ("ids", "tokens", "token_ids", "input", "inputs"),
    "attention_mask": ("mask", "input_mask", "attn_mask"),
    "token_type_ids": ("token_types", "segment_ids", "segments", "segment_label", "segment_info", "type_ids"),
}


def fields_of(names: Sequence[str], given: Sequence[str] = ()) -> list[str]:
    """Return the name of the batch's array for each input of a program.

    Args:
        names: names of the program's inputs.
        given: the array for each input, in order; needed if the names of the inputs are not recognized.

    Raises:
        CandidateError: a name is not recognized, an array is used twice, `input_ids` is missing, or the lengths differ.
    """
    if given and len(given) != len(names):
        raise CandidateError(
            f"{len(given)} inputs are named, {', '.join(given)}, and the program takes {len(names)}: {', '.join(names)}"
        )
    found = [_field(name) for name in given or names]
    unknown = [name for name, field in zip(names, found, strict=True) if field is None]
    if unknown:
        raise CandidateError(f"what is its input {', '.join(unknown)}? Name all in order: inputs=({', '.join(map(repr, ALIASES))})")
    fields = [field for field in found if field is not None]
    if len(set(fields)) < len(fields) or "input_ids" not in fields:
        raise CandidateError(
            f"its inputs {', '.join(names)} are taken as {', '.join(fields)}; each at most once, and input_ids is required"
        )
    return fields


def is_field(name: str) -> bool:
    """Return whether the name of an input identifies an array of a batch."""
    return _field(name) is not None


def _field(name: str) -> str | None:
    name = name.removeprefix("l_").split(".")[0].lower()
    return next((field for field, aliases in ALIASES.items() if name == field or name in aliases), None)
