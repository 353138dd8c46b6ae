"""A program that `torch.export.save` wrote: its graph of ATen operations is interpreted one by one, and its values are kept."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from conformance.archives.graph import Constant, Graph, Node, kind_of
from conformance.archives.inputs import fields_of
from conformance.errors import CandidateError


def opened(path: Path, device: str, inputs: Sequence[str]) -> "Exported | str":
    """The program in a file, or why it cannot run there; `CandidateError` as for any archive."""
    if torch.device(device).type != "cpu":
        return "an exported program runs where it was exported; here that is the CPU"
    try:
        program = torch.export.load(path)
    except Exception as error:  # what a damaged archive raises is many things
        raise CandidateError(f"{path} is no exported program that can be loaded: {error}") from error
    return Exported(program, inputs)


class Exported:
    """A loaded program."""

    def __init__(self, program: Any, inputs: Sequence[str]) -> None:
        """`inputs` are the arrays that it takes, where its inputs' names do not say which they are."""
        self._program = program
        self.fields = fields_of(list(program.graph_signature.user_inputs), inputs)

    @cached_property
    def graph(self) -> Graph:
        """ATen's operations."""
        constants = {
            value: Constant(name, tuple(t.shape), partial(_float64, t), str(t.dtype).removeprefix("torch."))
            for value, (name, t) in self._held.items()
            if t.is_floating_point()
        }
        return Graph(list(_nodes(self._program)), constants)

    @property
    def outputs(self) -> Sequence[str]:
        """The tensors of what it returns, in order."""
        return [str(name) for name in self._program.graph_signature.user_outputs]

    @cached_property
    def labels(self) -> Mapping[str, str]:
        """The keys of a mapping that it returns."""
        spec = self._program.call_spec.out_spec
        returned = pytree.tree_unflatten(self.outputs, spec)
        return {v: k for k, v in returned.items() if isinstance(v, str)} if isinstance(returned, Mapping) else {}

    @cached_property
    def _held(self) -> Mapping[str, tuple[str, torch.Tensor]]:
        """The tensors that it holds, by the placeholder that stands for each, with their names."""
        signature, everything = self._program.graph_signature, {**self._program.state_dict, **self._program.constants}
        names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers, **signature.inputs_to_lifted_tensor_constants}
        return {placeholder: (name, everything[name]) for placeholder, name in names.items()}

    @cached_property
    def _module(self) -> Any:
        # Its guards check the inputs' sizes against those it was exported for; what it computes does not need them, and those of
        # a loaded program refer to inputs that are None (torch 2.13).
        return self._program.module(check_guards=False)

    def run(self, arrays: Sequence[torch.Tensor]) -> Sequence[Any]:
        """The program as it is."""
        args, kwargs = pytree.tree_unflatten(list(arrays), self._program.call_spec.in_spec)
        with torch.no_grad():
            return [t for t in pytree.tree_leaves(self._module(*args, **kwargs)) if isinstance(t, torch.Tensor)]

    def watch(self, arrays: Sequence[torch.Tensor], values: Sequence[str]) -> Mapping[str, Any]:
        """Interpreted."""
        wanted, found = set(values), {}

        class Watching(torch.fx.Interpreter):
            def run_node(self, n: torch.fx.Node) -> Any:
                value = super().run_node(n)
                if n.name in wanted and isinstance(value, torch.Tensor):
                    found[n.name] = value.clone()  # a later operation may write into it
                return value

        given = iter(arrays)
        placeholders = [n.name for n in self._program.graph.nodes if n.op == "placeholder"]
        with torch.no_grad():
            Watching(self._program.graph_module).run(*(self._held[n][1] if n in self._held else next(given) for n in placeholders))
        return found


def _float64(tensor: torch.Tensor) -> Any:
    return tensor.detach().double().numpy()


def _nodes(program: Any) -> Iterator[Node]:
    for node in program.graph.nodes:
        if node.op == "call_function":
            name = getattr(node.target, "__name__", str(node.target)).split(".")[0]
            if name == "getitem":
                name = "same" if node.args[1] == 0 else name  # the first of what a norm or a dropout gives
            yield Node(kind_of(name), tuple(n.name for n in node.all_input_nodes), (node.name,))
