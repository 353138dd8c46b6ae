"""A TorchScript archive, without its Python source: its graph is read, and the values in question become outputs.

Python's hooks never fire inside an archive, which C++ runs. So a copy of the graph, all calls inlined, gives every value that is an
activation as a further output. The archive's own outputs are taken from a run of the archive as it is.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from conformance.activations import table
from conformance.archives.graph import Constant, Graph, Node, kind_of
from conformance.archives.inputs import fields_of
from conformance.archives.locate import Locations, located
from conformance.archives.observed import activations, by_order, outputs_by_shape
from conformance.archives.parameters import reason_against, recognised
from conformance.architecture import Architecture
from conformance.checkpoint import Checkpoint
from conformance.errors import CandidateError
from conformance.numerics.formats import Array, format_named


@dataclass(frozen=True)
class TorchScriptArchive:
    """An archive that `torch.jit.save` wrote. Loading it runs its code: give one that you trust.

    Attributes:
        path: the file.
        inputs: which of a batch's arrays its inputs are, in order, where their names do not say.
    """

    path: Path | str
    inputs: Sequence[str] = ()

    @property
    def name(self) -> str:
        """What results call it."""
        return Path(self.path).name

    def supports(self, architecture: Architecture, device: str, dtype: str) -> str | None:
        """Why not, where its tensors are of another format, or not those of such a network."""
        module = _loaded(self.path, "cpu")
        own = (_constant(n, t) for n, t in (*module.named_parameters(), *module.named_buffers()) if t.is_floating_point())
        return reason_against([*own, *_constants(module.inlined_graph, module).values()], architecture, dtype)

    def prepare(self, checkpoint: Checkpoint, device: str, dtype: str) -> Callable[[Any], Iterator[tuple[str, Any]]]:
        """A runner; `CandidateError` where its inputs cannot be told apart."""
        module = _loaded(self.path, device)
        return _Observed(module, checkpoint, dtype, self.inputs).run


def _loaded(path: Path | str, device: str) -> Any:
    try:
        return torch.jit.load(str(path), map_location=device)
    except (RuntimeError, ValueError, OSError) as error:
        raise CandidateError(f"{path} is no TorchScript archive that can be loaded: {str(error).splitlines()[0]}") from error


class _Observed:
    """A loaded archive, and the graph that shows what goes on in it."""

    def __init__(self, module: Any, checkpoint: Checkpoint, dtype: str, inputs: Sequence[str]) -> None:
        self._module, self._architecture = module, checkpoint.architecture
        arguments = module._c._get_method("forward").schema.arguments[1:]
        needed = [a for a in arguments if not a.has_default_value() or _known(a.name)] if not inputs else arguments[: len(inputs)]
        self._fields = dict(zip([a.name for a in needed], fields_of([a.name for a in needed], inputs), strict=True))
        self._defaults = {a.name: a.default_value for a in arguments if a.has_default_value()}
        self._order = [a.name for a in arguments]
        graph = _specialised(module, set(self._fields))
        constants = _constants(graph, module)
        neutral = Graph(list(_nodes(graph)), constants)
        found = located(neutral, recognised(constants, checkpoint, format_named(dtype)), self._architecture)
        self._locations, self._promoted, self._names = _promoted(graph, found)

    def run(self, batch: Any) -> Iterator[tuple[str, Any]]:
        """Interior activations as the graph shows them, outputs as the archive gives them."""
        given = batch.filled()
        keywords = {name: getattr(given, field) for name, field in self._fields.items()}
        size, length = given.input_ids.shape
        with torch.no_grad():
            own = self._module(**keywords)
            declared = {k: v for k, v in own.items() if k in table(self._architecture)} if isinstance(own, Mapping) else {}
            if declared:
                return iter(declared.items())
            arguments = [keywords.get(n, self._defaults.get(n)) for n in self._order]
            shown, *inner = self._promoted(self._module._c, *arguments)
        values = dict(zip(self._names, inner, strict=True))
        for mine, theirs in zip(_flat(shown), _flat(own), strict=True):
            values = {n: theirs if v is mine else v for n, v in values.items()}
        found = dict(activations(self._locations, values, self._architecture, size, length))
        found |= dict(outputs_by_shape(list(_flat(own)), found, self._architecture, size, length))
        return by_order(found, self._architecture)


def _known(name: str) -> bool:
    try:
        fields_of(["input_ids", name])
    except CandidateError:
        return name == "input_ids"
    return True


def _flat(outputs: Any) -> Iterator[torch.Tensor]:
    """The tensors of an output, in order."""
    if isinstance(outputs, torch.Tensor):
        yield outputs
    elif isinstance(outputs, Mapping):
        yield from (t for part in outputs.values() for t in _flat(part))
    elif isinstance(outputs, tuple | list):
        yield from (t for part in outputs for t in _flat(part))


def _constant(name: str, tensor: torch.Tensor) -> Constant:
    return Constant(name, tuple(tensor.shape), partial(_float64, tensor), str(tensor.dtype).removeprefix("torch."))


def _float64(tensor: torch.Tensor) -> Array:
    return tensor.detach().double().cpu().numpy()  # type: ignore[no-any-return]


def _specialised(module: Any, given: set[str]) -> Any:
    """A copy of the graph, calls inlined, in which what is known before a run is a constant: flags, and which inputs are given."""
    graph = module.inlined_graph.copy()
    for value, argument in zip(graph.inputs(), module._c._get_method("forward").schema.arguments, strict=True):
        if argument.name in given:
            value.setType(torch._C.TensorType.get())
        elif argument.has_default_value():
            value.replaceAllUsesWith(_inserted(graph, next(iter(graph.nodes())), argument.default_value))
    attributes = _attributes(graph, module)
    for node in list(graph.findAllNodes("prim::GetAttr")):
        found = attributes.get(node.output().debugName())
        if isinstance(found, bool | int | float):
            node.output().replaceAllUsesWith(_inserted(graph, node, found))
    torch._C._jit_pass_peephole(graph)
    torch._C._jit_pass_constant_propagation(graph)
    torch._C._jit_pass_dce(graph)
    return graph


def _inserted(graph: Any, before: Any, value: Any) -> Any:
    """A constant that stands before a node."""
    with graph.insert_point_guard(before):
        return graph.insertConstant(value)


def _attributes(graph: Any, module: Any) -> dict[str, Any]:
    """What each attribute that the graph reads is."""
    found: dict[str, Any] = {next(iter(graph.inputs())).debugName(): module}
    for node in graph.findAllNodes("prim::GetAttr"):
        owner = found.get(node.input().debugName())
        if owner is not None:
            found[node.output().debugName()] = getattr(owner, node.s("name"))
    return found


def _paths(graph: Any) -> dict[str, str]:
    """The dotted name of each attribute that the graph reads."""
    found = {next(iter(graph.inputs())).debugName(): ""}
    for node in graph.findAllNodes("prim::GetAttr"):
        if node.input().debugName() in found:
            found[node.output().debugName()] = f"{found[node.input().debugName()]}.{node.s('name')}".strip(".")
    return found


def _constants(graph: Any, module: Any) -> dict[str, Constant]:
    """The floating-point tensors that the graph reads, by value name: attributes under their names, and nameless constants."""
    paths = _paths(graph)
    tensors = {value: (paths[value], found) for value, found in _attributes(graph, module).items()}
    for node in graph.findAllNodes("prim::Constant"):
        tensors[node.output().debugName()] = ("", node.output().toIValue())
    return {v: _constant(n, t) for v, (n, t) in tensors.items() if isinstance(t, torch.Tensor) and t.is_floating_point()}


def _nodes(graph: Any) -> Iterator[Node]:
    """The operations on tensors that are not inside a branch or a loop: what is inside cannot be shown."""
    for node in graph.nodes():
        kind = kind_of(node.kind().split("::")[-1])
        inputs, outputs = ([v.debugName() for v in vs if _is_tensor(v)] for vs in (node.inputs(), node.outputs()))
        if outputs and not node.kind().startswith("prim::"):
            yield Node(kind, tuple(inputs), tuple(outputs))


def _is_tensor(value: Any) -> bool:
    return bool(value.type().isSubtypeOf(torch._C.TensorType.get()))


def _promoted(graph: Any, locations: Locations) -> tuple[Locations, Callable[..., Any], list[str]]:
    """The graph as a function that gives, after its own output, the values that may be activations, and their names."""
    values = {v.debugName(): v for node in graph.nodes() for v in node.outputs()}
    names = list(dict.fromkeys(name for candidates in locations.values() for name in candidates if name in values))
    own = list(graph.outputs())
    together = graph.create("prim::TupleConstruct", [*own, *(values[n] for n in names)], 1)
    together.output().setType(torch._C.TupleType([v.type() for v in (*own, *(values[n] for n in names))]))
    graph.appendNode(together)
    for _ in own:
        graph.eraseOutput(0)
    graph.registerOutput(together.output())
    return locations, torch._C._create_function_from_graph("observed", graph), names
