"""The common interface of exported programs: inputs, outputs, and a graph of named values and the operations between them.

TorchScript, torch.export and ONNX name their operations differently. Here each operation is mapped to one of a few kinds, as far
as is needed to locate the activations of a BERT. A program's inputs are identified with the arrays of a batch by name.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Protocol

import numpy as np
import torch

from conformance.errors import CandidateError
from conformance.numerics.formats import Array

SAME = ("same", "dropout")  # operations that return their first input (an active dropout is judged as such)
MOVED = ("reshape", "transpose")  # operations that change only the shape or the order of axes

_KINDS = {
    "product": "linear addmm matmul mm bmm Gemm MatMul FusedMatMul",
    "lookup": "embedding Gather index_select",
    "norm": "layer_norm native_layer_norm LayerNormalization SkipLayerNormalization EmbedLayerNormalization",
    "add": "add add_ Add",
    "softmax": "softmax _softmax _safe_softmax Softmax",
    "log_softmax": "log_softmax _log_softmax LogSoftmax",
    "tanh": "tanh tanh_ Tanh",
    "transpose": "t transpose permute numpy_T swapaxes Transpose",
    "reshape": "view reshape _unsafe_view expand flatten unflatten unsqueeze squeeze Reshape Unsqueeze Squeeze Flatten",
    "dropout": "dropout native_dropout feature_dropout Dropout",
    "same": "contiguous clone detach alias lift_fresh lift_fresh_copy _to_copy to type_as Identity Cast",
}
_KIND_OF = {name: kind for kind, names in _KINDS.items() for name in names.split()}
ALIASES: Mapping[str, Sequence[str]] = {
    "input_ids": ("ids", "tokens", "token_ids", "input", "inputs"),
    "attention_mask": ("mask", "input_mask", "attn_mask"),
    "token_type_ids": ("token_types", "segment_ids", "segments", "segment_label", "segment_info", "type_ids"),
}


def kind_of(operation: str) -> str:
    """Return the kind of an operation, given its name without namespace and overload; the name itself if it has no kind."""
    return _KIND_OF.get(operation, operation)


@dataclass(frozen=True)
class Node:
    """An operation: its kind, and the names of its input and output tensors."""

    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class Constant:
    """A tensor stored in the program.

    Attributes:
        name: name of the tensor in the program; empty if it has none.
        shape: shape of the tensor.
        load: returns the values in float64.
        format: name of the format in which it is stored.
    """

    name: str
    shape: tuple[int, ...]
    load: Callable[[], Array]
    format: str


@dataclass(frozen=True)
class Graph:
    """The graph of a program.

    Attributes:
        nodes: operations in the order of computation.
        constants: floating-point tensors stored in the program, by value name.
    """

    nodes: Sequence[Node]
    constants: Mapping[str, Constant]

    @cached_property
    def made_by(self) -> Mapping[str, Node]:
        """The node that computes each value."""
        return {value: node for node in self.nodes for value in node.outputs}

    @cached_property
    def taken_by(self) -> Mapping[str, Sequence[Node]]:
        """The nodes that have each value as an input."""
        found: defaultdict[str, list[Node]] = defaultdict(list)
        for node in self.nodes:
            for value in dict.fromkeys(node.inputs):
                found[value].append(node)
        return found

    def before(self, value: str, kinds: Sequence[str]) -> Iterator[str]:
        """Yield the value and the values from which it is computed by operations of these kinds only, the nearest first."""
        yield value
        while (node := self.made_by.get(value)) is not None and node.kind in kinds and node.inputs:
            value = node.inputs[0]
            yield value

    def after(self, value: str, kinds: Sequence[str]) -> Iterator[str]:
        """Yield the value and all values computed from it by operations of these kinds only, the nearest first."""
        waiting = [value]
        while waiting:
            value = waiting.pop(0)
            yield value
            waiting += [n.outputs[0] for n in self.taken_by.get(value, ()) if n.kind in kinds and n.inputs[:1] == (value,)]


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


def fields_of(names: Sequence[str], given: Sequence[str] = ()) -> list[str]:
    """Return the name of the batch's array for each input of a program.

    The array for each input, in order, is `given` if the names of the inputs are not recognized.

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
