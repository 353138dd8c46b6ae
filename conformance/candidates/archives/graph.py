"""The computation of an exported program as a graph: named values, and the operations between them.

TorchScript, torch.export and ONNX name their operations differently. Here each operation is mapped to one of a few kinds, as far
as is needed to locate the activations of a BERT.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

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
