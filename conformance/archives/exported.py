"""A program that `torch.export.save` wrote: its graph of ATen operations is interpreted one by one, and its values handed over."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from conformance.archives.graph import Constant, Graph, Node, kind_of
from conformance.archives.inputs import fields_of
from conformance.archives.locate import located
from conformance.archives.observed import activations, by_order, outputs_by_shape
from conformance.archives.parameters import reason_against, recognised
from conformance.architecture import Architecture
from conformance.checkpoint import Checkpoint
from conformance.errors import CandidateError
from conformance.numerics.formats import Array, format_named


@dataclass(frozen=True)
class ExportedProgramArchive:
    """A `.pt2` file.

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
        """Why not, where its tensors are of another format or network, or lie elsewhere."""
        constants = _constants(_loaded(self.path))
        if torch.device(device).type != "cpu":
            return "it is run where it was exported, on the CPU"
        return reason_against(constants.values(), architecture, dtype)

    def prepare(self, checkpoint: Checkpoint, device: str, dtype: str) -> Callable[[Any], Iterator[tuple[str, Any]]]:
        """A runner; `CandidateError` where its inputs cannot be told apart."""
        program = _loaded(self.path)
        fields = fields_of(list(program.graph_signature.user_inputs), self.inputs)
        constants = _constants(program)
        graph = Graph(list(_nodes(program)), constants)
        locations = located(graph, recognised(constants, checkpoint, format_named(dtype)), checkpoint.architecture)
        wanted = {name for candidates in locations.values() for name in candidates}
        module = program.module()

        def run(batch: Any) -> Iterator[tuple[str, Any]]:
            """Interior activations as the graph is interpreted, outputs as the program gives them."""
            given = batch.filled()
            arrays = [getattr(given, field) for field in fields]
            size, length = given.input_ids.shape
            architecture = checkpoint.architecture
            with torch.no_grad():
                values = _interpreted(program, arrays, wanted)
                own = [t for t in torch.utils._pytree.tree_leaves(_called(module, program, arrays)) if isinstance(t, torch.Tensor)]
            values |= dict(zip(program.graph_signature.user_outputs, own, strict=False))
            found = dict(activations(locations, values, architecture, size, length))
            found |= dict(outputs_by_shape(own, found, architecture, size, length))
            return by_order(found, architecture)

        return run


def _loaded(path: Path | str) -> Any:
    try:
        return torch.export.load(path)
    except Exception as error:  # what a damaged archive raises is many things
        raise CandidateError(f"{path} is no exported program that can be loaded: {error}") from error


def _called(module: Any, program: Any, arrays: Sequence[torch.Tensor]) -> Any:
    """The program as its user calls it, by position and by keyword as it was exported."""
    args, kwargs = torch.utils._pytree.tree_unflatten(list(arrays), program.call_spec.in_spec)
    return module(*args, **kwargs)


def _interpreted(program: Any, arrays: Sequence[torch.Tensor], wanted: set[str]) -> dict[str, torch.Tensor]:
    """The wanted values of a run of the graph."""
    found: dict[str, torch.Tensor] = {}

    class Watching(torch.fx.Interpreter):
        def run_node(self, n: torch.fx.Node) -> Any:
            value = super().run_node(n)
            if n.name in wanted and isinstance(value, torch.Tensor):
                found[n.name] = value.clone()  # a later operation may write into it
            return value

    given = iter(arrays)
    held = _tensors(program)
    placeholders = [n for n in program.graph.nodes if n.op == "placeholder"]
    Watching(program.graph_module).run(*(held[n.name] if n.name in held else next(given) for n in placeholders))
    return found


def _tensors(program: Any) -> dict[str, torch.Tensor]:
    """What the program holds, by the placeholder that stands for it."""
    signature, everything = program.graph_signature, {**program.state_dict, **program.constants}
    names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers, **signature.inputs_to_lifted_tensor_constants}
    return {placeholder: everything[name] for placeholder, name in names.items()}


def _constants(program: Any) -> dict[str, Constant]:
    signature = program.graph_signature
    names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers, **signature.inputs_to_lifted_tensor_constants}
    return {
        value: Constant(names[value], tuple(t.shape), partial(_float64, t), str(t.dtype).removeprefix("torch."))
        for value, t in _tensors(program).items()
        if t.is_floating_point()
    }


def _float64(tensor: torch.Tensor) -> Array:
    return tensor.detach().double().numpy()  # type: ignore[no-any-return]


def _nodes(program: Any) -> Iterator[Node]:
    for node in program.graph.nodes:
        if node.op == "call_function":
            name = getattr(node.target, "__name__", str(node.target)).split(".")[0]
            if name == "getitem":
                name = "same" if node.args[1] == 0 else name  # the first of what a norm or a dropout gives
            yield Node(kind_of(name), tuple(n.name for n in node.all_input_nodes), (node.name,))
