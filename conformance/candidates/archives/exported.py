"""Programs written by `torch.export.save`: their ATen operations are interpreted one by one, and the requested values are kept."""

import os
import pickle
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import torch
from torch.export.graph_signature import InputKind, TensorArgument
from torch.utils import _pytree as pytree

from conformance.candidates.archives.graph import Graph, Node, constant, fields_of, kind_of
from conformance.errors import CandidateError

_TENSORS_ALONE = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"  # read by torch.load


def opened(path: Path, device: str, inputs: Sequence[str]) -> "Exported | str":
    """Return the program in a file, or the reason why it cannot run on a device.

    Raises:
        CandidateError: it cannot be loaded, has pickled objects other than tensors, or its inputs cannot be distinguished.
    """
    if torch.device(device).type != "cpu":
        return "an exported program runs where it was exported; here that is the CPU"
    try:
        file = path.stat()
        program = deepcopy(_loaded(path.absolute(), (file.st_dev, file.st_ino, file.st_size, file.st_mtime_ns, file.st_ctime_ns)))
    except pickle.UnpicklingError as error:
        raise CandidateError(f"{path} has pickled objects other than tensors, which are not loaded: that could run code") from error
    except Exception as error:  # a damaged archive raises various exceptions
        raise CandidateError(f"{path} is no exported program that can be loaded: {error}") from error
    return Exported(program, inputs)


# A check opens a program several times, and torch takes 40 times as long to read one as to copy it. A copy has its own tensors, so
# that nothing that a run changes is in the next copy.
@lru_cache(maxsize=1)
def _loaded(path: Path, version: tuple[int, ...]) -> Any:
    """Return the program in a file of that version, which must not be altered."""
    with _no_pickled_code():
        return torch.export.load(path)


@contextmanager
def _no_pickled_code() -> Iterator[None]:
    """Restrict torch.load to tensors, since torch.export.load falls back to an unrestricted load that can run pickled code."""
    before = os.environ.get(_TENSORS_ALONE)
    os.environ[_TENSORS_ALONE] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_TENSORS_ALONE]
        else:
            os.environ[_TENSORS_ALONE] = before


class Exported:
    """A loaded exported program."""

    device = "cpu"

    def __init__(self, program: Any, inputs: Sequence[str]) -> None:
        """Store a loaded program; `inputs` gives the batch's array for each of its inputs if their names are not recognized."""
        self._program = program
        self._specs = program.graph_signature.input_specs
        self._taken = [spec.arg.name for spec in self._specs if _is_given(spec)]
        self.fields = fields_of(self._taken, inputs)

    @cached_property
    def graph(self) -> Graph:
        """The graph of ATen operations."""
        constants = {value: constant(name, t) for value, (name, t) in self._held.items() if t.is_floating_point()}
        return Graph(list(_nodes(self._program)), constants)

    @property
    def outputs(self) -> Sequence[str]:
        """The value names of the tensors that the program returns, in order."""
        return [spec.arg.name for spec in self._program.graph_signature.output_specs if _is_tensor(spec)]

    @cached_property
    def labels(self) -> Mapping[str, str]:
        """The key of each output value, if the program returns a mapping."""
        names = [spec.arg.name for spec in self._program.graph_signature.output_specs]
        returned = pytree.tree_unflatten(names, self._program.call_spec.out_spec)
        return {v: k for k, v in returned.items() if isinstance(v, str)} if isinstance(returned, Mapping) else {}

    @cached_property
    def _held(self) -> Mapping[str, tuple[str, torch.Tensor]]:
        """The name and the tensor of each parameter, buffer and constant of the program, by its placeholder."""
        everything = {**self._program.state_dict, **self._program.constants}
        return {spec.arg.name: (spec.target, everything[spec.target]) for spec in self._specs if spec.target in everything}

    @cached_property
    def _module(self) -> Any:
        # Without guards, which only compare the inputs with those of the export: for Hugging Face's BERT, saved and loaded, they
        # raise an AttributeError for any input (observed with torch 2.13).
        return self._program.module(check_guards=False)

    def _given(self, arrays: Sequence[torch.Tensor]) -> dict[str, Any]:
        """Return the user inputs by placeholder: arrays in the formats of the export, and the values of non-tensor inputs."""
        placeholders = {n.name: n for n in self._program.graph.nodes if n.op == "placeholder"}
        given: dict[str, Any] = {s.arg.name: getattr(s.arg, "value", None) for s in self._specs if s.kind == InputKind.USER_INPUT}
        for name, array in zip(self._taken, arrays, strict=True):
            example = placeholders[name].meta.get("val")
            given[name] = array if example is None else array.to(example.dtype)
        return given

    def run(self, arrays: Sequence[torch.Tensor]) -> Sequence[Any]:
        """Run the unmodified program and return its outputs."""
        args, kwargs = pytree.tree_unflatten(list(self._given(arrays).values()), self._program.call_spec.in_spec)
        with torch.no_grad():
            return [t for t in pytree.tree_leaves(self._module(*args, **kwargs)) if isinstance(t, torch.Tensor)]

    def watch(self, arrays: Sequence[torch.Tensor], values: Sequence[str]) -> Mapping[str, Any]:
        """Interpret the program and return the requested values by name."""
        wanted, found = set(values), {}

        class Watching(torch.fx.Interpreter):
            def run_node(self, n: torch.fx.Node) -> Any:
                value = super().run_node(n)
                if n.name in wanted and isinstance(value, torch.Tensor):
                    found[n.name] = value.clone()  # a later operation may modify it in place
                return value

        given = self._given(arrays)
        with torch.no_grad():
            Watching(self._program.graph_module).run(
                *(self._held[s.arg.name][1] if s.arg.name in self._held else given[s.arg.name] for s in self._specs)
            )
        return found


def _is_given(spec: Any) -> bool:
    return spec.kind == InputKind.USER_INPUT and isinstance(spec.arg, TensorArgument)


def _is_tensor(spec: Any) -> bool:
    return isinstance(spec.arg, TensorArgument)


def _nodes(program: Any) -> Iterator[Node]:
    """Yield the operations; the outputs of an operation with several are named after the `getitem` nodes that select them."""
    for node in program.graph.nodes:
        if node.op == "call_function" and _name(node) != "getitem":
            parts = {user.args[1]: user.name for user in node.users if _name(user) == "getitem"}
            outputs = tuple(parts.get(i, f"{node.name}.{i}") for i in range(max(parts) + 1)) if parts else (node.name,)
            yield Node(kind_of(_name(node)), tuple(n.name for n in node.all_input_nodes), outputs)


def _name(node: Any) -> str:
    return str(getattr(node.target, "__name__", node.target)).split(".")[0]
