"""ONNX models, run in ONNX Runtime: the requested values are made outputs of a copy of the graph."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from conformance.candidates.archives.graph import Constant, Graph, Node, fields_of, kind_of
from conformance.errors import CandidateError, DependencyMissingError

INSTALL = "pip install 'bert-conformance[onnx]'"


def opened(path: Path, device: str, inputs: Sequence[str]) -> "OnnxModel | str":
    """Return the model in a file, or the reason why it cannot run on a device.

    Raises:
        CandidateError: the model cannot be loaded, or its inputs cannot be distinguished.
        DependencyMissingError: ONNX or ONNX Runtime is not installed.
    """
    if torch.device(device).type != "cpu":
        return "ONNX Runtime is run on the CPU here"
    try:
        import onnx
        import onnxruntime  # noqa: F401
    except ImportError as error:
        raise DependencyMissingError(f"an ONNX model needs {error.name}: {INSTALL}") from error
    try:
        model = onnx.load(str(path))
    except Exception as error:  # protobuf raises various exceptions
        raise CandidateError(f"{path} is no ONNX model that can be loaded: {error}") from error
    return OnnxModel(model, inputs)


class OnnxModel:
    """A loaded ONNX model, run with ONNX Runtime's default optimizations."""

    device = "cpu"
    labels: Mapping[str, str]

    def __init__(self, model: Any, inputs: Sequence[str]) -> None:
        """Store a loaded model; `inputs` gives the batch's array for each of its inputs if their names are not recognized."""
        self._model = model
        held = {t.name for t in model.graph.initializer}
        self._taken = [i.name for i in model.graph.input if i.name not in held]
        self.fields = fields_of(self._taken, inputs)
        self.outputs = [o.name for o in model.graph.output]
        self.labels = {name: name for name in self.outputs}
        self._session = lru_cache(self._opened)

    @cached_property
    def graph(self) -> Graph:
        """The graph of ONNX operations."""
        return Graph(list(_nodes(self._model)), _constants(self._model))

    def run(self, arrays: Sequence[torch.Tensor]) -> Sequence[Any]:
        """Run the unmodified model and return its outputs."""
        return list(self._session(()).run(self.outputs, self._feed(arrays)))

    def watch(self, arrays: Sequence[torch.Tensor], values: Sequence[str]) -> Mapping[str, Any]:
        """Run a copy of the model that has these values as outputs, and return them by name."""
        made = {o for node in self._model.graph.node for o in node.output}
        names = [v for v in values if v in made]
        session = self._session(tuple(n for n in names if n not in self.outputs))
        return dict(zip(names, session.run(names, self._feed(arrays)), strict=True))

    def _opened(self, more: tuple[str, ...]) -> Any:
        """Return a session of the model with additional outputs."""
        import onnx
        import onnxruntime

        copy = onnx.ModelProto()
        copy.CopyFrom(self._model)
        copy.graph.output.extend(onnx.ValueInfoProto(name=name) for name in more)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 4  # fatal messages only, since errors are also raised
        return onnxruntime.InferenceSession(copy.SerializeToString(), options, providers=["CPUExecutionProvider"])

    def _feed(self, arrays: Sequence[torch.Tensor]) -> dict[str, Any]:
        declared = {i.name: i for i in self._session(()).get_inputs()}
        return {name: _as_declared(array, declared[name]) for name, array in zip(self._taken, arrays, strict=True)}


_FORMATS = {
    "tensor(int64)": np.int64, "tensor(int32)": np.int32, "tensor(bool)": np.bool_, "tensor(float)": np.float32,
    "tensor(double)": np.float64, "tensor(float16)": np.float16,
}  # fmt: skip


def _as_declared(array: torch.Tensor, declared: Any) -> Any:
    """Return an array in the format that the model declares; raise `CandidateError` if the model declares other sizes."""
    if any(isinstance(size, int) and size != found for size, found in zip(declared.shape, array.shape, strict=False)):
        raise CandidateError(
            f"its sizes are fixed: its input {declared.name} is declared as {declared.shape}, and the batch is {list(array.shape)}"
        )
    return array.numpy().astype(_FORMATS.get(declared.type, np.int64))


def _constants(model: Any) -> dict[str, Constant]:
    import onnx

    tensors = {t.name: t for t in model.graph.initializer}
    tensors |= {n.output[0]: a.t for n in model.graph.node if n.op_type == "Constant" for a in n.attribute if a.name == "value"}
    kinds = onnx.TensorProto
    formats = {kinds.FLOAT: "float32", kinds.DOUBLE: "float64", kinds.FLOAT16: "float16", kinds.BFLOAT16: "bfloat16"}
    return {
        name: Constant(name, tuple(t.dims), partial(_float64, t), formats[t.data_type])
        for name, t in tensors.items()
        if t.data_type in formats
    }


def _float64(tensor: Any) -> Any:
    from onnx import numpy_helper

    return np.asarray(numpy_helper.to_array(tensor), np.float64)


def _nodes(model: Any) -> Iterator[Node]:
    for node in model.graph.node:
        if node.op_type != "Constant":
            yield Node(kind_of(node.op_type), tuple(i for i in node.input if i), tuple(o for o in node.output if o))
