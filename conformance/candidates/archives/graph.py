"""What an exported program computes, as a graph: values by name, and the operations between them.

TorchScript, torch.export and ONNX name their operations in three ways; here each is of one of a few kinds, as far as it takes to
find a BERT's activations.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from conformance.numerics.formats import Array

SAME = ("same", "dropout")  # what hands its first input on (a dropout that is active is judged as one)
MOVED = ("reshape", "transpose")  # what changes nothing but the shape

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


def kind_of(operation: str) -> str:
    """The kind of an operation, by its name without namespace and overload; its own name where it is of none."""
    return _KIND_OF.get(operation, operation)


@dataclass(frozen=True)
class Node:
    """One operation: its kind, and the names of the tensors that it takes and gives."""

    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class Constant:
    """A tensor that the program holds.

    Attributes:
        name: what the program calls it; empty where it has no name.
        load: its values in float64.
        format: that which it is held in.
    """

    name: str
    shape: tuple[int, ...]
    load: Callable[[], Array]
    format: str


@dataclass(frozen=True)
class Graph:
    """A program.

    Attributes:
        nodes: in the order of computation.
        constants: floating-point tensors that it holds, by value name.
    """

    nodes: Sequence[Node]
    constants: Mapping[str, Constant]

    @cached_property
    def made_by(self) -> Mapping[str, Node]:
        """The node that gives a value."""
        return {value: node for node in self.nodes for value in node.outputs}

    @cached_property
    def taken_by(self) -> Mapping[str, Sequence[Node]]:
        """The nodes that take a value."""
        found: defaultdict[str, list[Node]] = defaultdict(list)
        for node in self.nodes:
            for value in dict.fromkeys(node.inputs):
                found[value].append(node)
        return found

    def before(self, value: str, kinds: Sequence[str]) -> Iterator[str]:
        """The value, and those that it is made of by nothing but operations of these kinds, the nearest first."""
        yield value
        while (node := self.made_by.get(value)) is not None and node.kind in kinds and node.inputs:
            value = node.inputs[0]
            yield value

    def after(self, value: str, kinds: Sequence[str]) -> Iterator[str]:
        """The value, and all that are made of it by nothing but operations of these kinds, the nearest first."""
        waiting = [value]
        while waiting:
            value = waiting.pop(0)
            yield value
            waiting += [n.outputs[0] for n in self.taken_by.get(value, ()) if n.kind in kinds and n.inputs[:1] == (value,)]
