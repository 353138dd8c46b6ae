"""TorchScript archives, without their source: the requested values are made outputs of a copy of the graph with calls inlined."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import torch

from conformance.candidates.archives.graph import Constant, Graph, Node, constant, fields_of, is_field, kind_of
from conformance.candidates.arrays import tensors_in
from conformance.errors import CandidateError

# Of a file that torch.save wrote, torch says that the checkpoint is corrupted, since an archive has a further record.
_NO_PROGRAM = (
    "it has no program, like a state dict or a module that torch.save writes; save one with torch.jit.save, or give the module "
    "itself, as package.module:object"
)


def opened(path: Path, device: str, inputs: Sequence[str]) -> "TorchScript":
    """Return the archive in a file; raise `CandidateError` if it cannot be loaded or its inputs cannot be distinguished."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # users of archives know that TorchScript is deprecated
            module = torch.jit.load(str(path), map_location=device)  # type: ignore[no-untyped-call]
    except (RuntimeError, ValueError, OSError) as error:
        why = _NO_PROGRAM if "constants.pkl" in str(error) else str(error).splitlines()[0]
        raise CandidateError(f"{path} is no TorchScript archive that can be loaded: {why}") from error
    return TorchScript(module, device, inputs)


class TorchScript:
    """A loaded TorchScript archive."""

    def __init__(self, module: Any, device: str, inputs: Sequence[str]) -> None:
        """Store a loaded archive; `inputs` gives the batch's arrays for its first arguments if their names are not recognized."""
        self._module, self.device = module, device
        self._arguments = module._c._get_method("forward").schema.arguments[1:]
        if inputs:
            needed = sum(not a.has_default_value() for a in self._arguments)
            self._taken = [a.name for a in self._arguments[: max(len(inputs), needed)]]
        else:
            self._taken = [a.name for a in self._arguments if is_field(a.name) or not a.has_default_value()]
        self.fields = fields_of(self._taken, inputs)
        self._graph = self._specialised()
        self._promoted = lru_cache(maxsize=2)(self._promoting)

    @cached_property
    def graph(self) -> Graph:
        """The graph of the operations outside branches and loops; values inside these cannot be made outputs."""
        return Graph(list(_nodes(self._graph)), self._constants())

    @cached_property
    def outputs(self) -> Sequence[str]:
        """The value names of the tensors that the archive returns, in order."""
        return [name for value in self._graph.outputs() for name, _ in _leaves(value)]

    @cached_property
    def labels(self) -> Mapping[str, str]:
        """The key of each output value, if the archive returns a mapping."""
        return {name: label for value in self._graph.outputs() for name, label in _leaves(value) if label}

    def run(self, arrays: Sequence[torch.Tensor]) -> Sequence[Any]:
        """Run the unmodified archive and return its outputs."""
        with torch.no_grad():
            return list(tensors_in(self._module(**dict(zip(self._taken, arrays, strict=True)))))

    def watch(self, arrays: Sequence[torch.Tensor], values: Sequence[str]) -> Mapping[str, Any]:
        """Run a copy of the graph that has these values as outputs, and return them by name."""
        given = dict(zip(self._taken, arrays, strict=True))
        names, function = self._promoted(tuple(values))
        with torch.no_grad():
            made = function(self._module._c, *(given.get(a.name, a.default_value) for a in self._arguments))
        return dict(zip(names, made if len(names) > 1 else (made,), strict=True))

    def _promoting(self, wanted: tuple[str, ...]) -> tuple[list[str], Any]:
        """Return those of `wanted` that exist, and a function made of the graph that returns them."""
        graph = self._graph.copy()  # its values have other names, in the same order
        values = {own.debugName(): v for own, v in zip(_values(self._graph), _values(graph), strict=True) if _is_tensor(v)}
        names = [name for name in wanted if name in values]
        for _ in list(graph.outputs()):
            graph.eraseOutput(0)
        for name in names:
            graph.registerOutput(_cloned(graph, values[name]))
        if len(names) > 1:
            graph.makeMultiOutputIntoTuple()
        return names, torch._C._create_function_from_graph("observed", graph)

    def _specialised(self) -> Any:
        """Return a copy of the graph with the values known before a run as constants: flags, and defaults of inputs not given."""
        graph = self._module.inlined_graph.copy()
        _, *inputs = graph.inputs()
        for value, argument in zip(inputs, self._arguments, strict=True):
            if argument.name in self._taken:
                value.setType(torch._C.TensorType.get())
            else:
                value.replaceAllUsesWith(_inserted(graph, next(iter(graph.nodes())), argument.default_value))
        read = self._attributes(graph)
        for node in list(graph.findAllNodes("prim::GetAttr")):
            _, found = read.get(node.output().debugName(), ("", None))
            if isinstance(found, bool | int | float):
                node.output().replaceAllUsesWith(_inserted(graph, node, found))
        torch._C._jit_pass_peephole(graph)
        torch._C._jit_pass_constant_propagation(graph)
        torch._C._jit_pass_lower_all_tuples(graph)
        torch._C._jit_pass_dce(graph)
        return graph

    def _attributes(self, graph: Any) -> dict[str, tuple[str, Any]]:
        """Return the path and the value of each attribute that the graph reads, by value name."""
        found: dict[str, tuple[str, Any]] = {next(iter(graph.inputs())).debugName(): ("", self._module)}
        for node in graph.findAllNodes("prim::GetAttr"):
            if node.input().debugName() in found:
                path, owner = found[node.input().debugName()]
                name = node.s("name")
                found[node.output().debugName()] = (f"{path}.{name}".strip("."), getattr(owner, name))
        return found

    def _constants(self) -> dict[str, Constant]:
        """Return the floating-point tensors that the graph reads: attributes with their names, and constants without a name."""
        tensors = self._attributes(self._graph)
        for node in self._graph.findAllNodes("prim::Constant"):
            tensors[node.output().debugName()] = ("", node.output().toIValue())
        return {
            value: constant(name, t)
            for value, (name, t) in tensors.items()
            if isinstance(t, torch.Tensor) and t.is_floating_point()
        }


def _inserted(graph: Any, before: Any, value: Any) -> Any:
    """Insert a constant before a node and return its value."""
    with graph.insert_point_guard(before):
        return graph.insertConstant(value)


def _cloned(graph: Any, value: Any) -> Any:
    """Insert a copy of a value right after the value is computed, since a later operation may modify it in place."""
    clone = graph.create("aten::clone", [value, _inserted(graph, next(iter(graph.nodes())), None)], 1)
    clone.insertAfter(value.node())
    return clone.output()


def _nodes(graph: Any) -> Iterator[Node]:
    for node in graph.nodes():
        inputs, outputs = ([v.debugName() for v in vs if _is_tensor(v)] for vs in (node.inputs(), node.outputs()))
        if outputs and not node.kind().startswith("prim::"):
            yield Node(kind_of(node.kind().split("::")[-1]), tuple(inputs), tuple(outputs))


def _values(graph: Any) -> Iterator[Any]:
    return (value for node in graph.nodes() for value in node.outputs())


def _is_tensor(value: Any) -> bool:
    return bool(value.type().isSubtypeOf(torch._C.TensorType.get()))


def _leaves(value: Any, label: str = "") -> Iterator[tuple[str, str]]:
    """Yield the value name of each tensor in an output, with its key if the output is a mapping."""
    node = value.node()
    if _is_tensor(value):
        yield value.debugName(), label
    elif node.kind() == "prim::DictConstruct":
        parts = list(node.inputs())
        for key, part in zip(parts[::2], parts[1::2], strict=True):
            yield from _leaves(part, str(key.toIValue()))
    elif node.kind() in ("prim::TupleConstruct", "prim::ListConstruct"):
        for part in node.inputs():
            yield from _leaves(part)
