"""An ONNX model in ONNX Runtime: a copy of its graph gives every value that is an activation as a further output."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from conformance.archives.graph import Constant, Graph, Node, kind_of
from conformance.archives.inputs import fields_of
from conformance.archives.locate import located
from conformance.archives.observed import activations, by_order, outputs_by_shape
from conformance.archives.parameters import reason_against, recognised
from conformance.architecture import Architecture
from conformance.checkpoint import Checkpoint
from conformance.errors import CandidateError, DependencyMissingError
from conformance.numerics.formats import Array, format_named

INSTALL = "pip install 'bert-conformance[onnx]'"


@dataclass(frozen=True)
class OnnxArchive:
    """An `.onnx` file, run by ONNX Runtime on the CPU as it is by default.

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
        """Why not, where its tensors are of another format or network; ONNX Runtime runs on the CPU here."""
        if torch.device(device).type != "cpu":
            return "ONNX Runtime is run on the CPU here"
        return reason_against(_constants(_loaded(self.path)).values(), architecture, dtype)

    def prepare(self, checkpoint: Checkpoint, device: str, dtype: str) -> Callable[[Any], Iterator[tuple[str, Any]]]:
        """A runner.

        Raises:
            CandidateError: its inputs cannot be told apart.
            DependencyMissingError: ONNX or ONNX Runtime is not installed.
        """
        model = _loaded(self.path)
        names = [i.name for i in model.graph.input if i.name not in {t.name for t in model.graph.initializer}]
        fields = dict(zip(names, fields_of(names, self.inputs), strict=True))
        constants, a = _constants(model), checkpoint.architecture
        locations = located(Graph(list(_nodes(model)), constants), recognised(constants, checkpoint, format_named(dtype)), a)
        made = {o for node in model.graph.node for o in node.output}
        outputs = [o.name for o in model.graph.output]
        inner = [v for v in dict.fromkeys(v for vs in locations.values() for v in vs) if v in made and v not in outputs]
        own, shown = _session(model, ()), _session(model, inner)

        def run(batch: Any) -> Iterator[tuple[str, Any]]:
            """Interior activations of the graph that shows them, outputs as the model gives them."""
            given = batch.filled()
            feed = {name: _as_declared(getattr(given, field), own, name) for name, field in fields.items()}
            size, length = given.input_ids.shape
            values = dict(zip(inner, shown.run(inner, feed), strict=True)) if inner else {}
            results = own.run(outputs, feed)
            values |= dict(zip(outputs, results, strict=True))
            found = dict(activations(locations, values, a, size, length))
            found |= dict(outputs_by_shape(results, found, a, size, length))
            return by_order(found, a)

        return run


def _loaded(path: Path | str) -> Any:
    try:
        import onnx
        import onnxruntime  # noqa: F401
    except ImportError as error:
        raise DependencyMissingError(f"ONNX models need {error.name}: {INSTALL}") from error
    try:
        return onnx.load(str(path))
    except Exception as error:  # protobuf's errors are many
        raise CandidateError(f"{path} is no ONNX model that can be loaded: {error}") from error


def _session(model: Any, more: Sequence[str]) -> Any:
    """A session of the model with further outputs."""
    import onnx
    import onnxruntime

    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    copy.graph.output.extend(onnx.ValueInfoProto(name=name) for name in more)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(copy.SerializeToString(), options, providers=["CPUExecutionProvider"])


_INTEGERS = {"tensor(int64)": np.int64, "tensor(int32)": np.int32, "tensor(bool)": np.bool_}


def _as_declared(array: torch.Tensor, session: Any, name: str) -> Any:
    """In the integers that the model declares; `CandidateError` where it declares sizes that the batch has not."""
    declared = next(i for i in session.get_inputs() if i.name == name)
    fixed = [(d, n) for d, n in zip(declared.shape, array.shape, strict=False) if isinstance(d, int) and d != n]
    if fixed:
        raise CandidateError(
            f"its input {name} is declared as {declared.shape}, and the batch is {tuple(array.shape)}: sizes are baked into the model"
        )
    return array.numpy().astype(_INTEGERS.get(declared.type, np.int64))


def _constants(model: Any) -> dict[str, Constant]:
    import onnx

    tensors = {t.name: t for t in model.graph.initializer}
    tensors |= {
        n.output[0]: a.t for n in model.graph.node if n.op_type == "Constant" for a in n.attribute if a.name == "value"
    }
    formats = {
        onnx.TensorProto.FLOAT: "float32", onnx.TensorProto.DOUBLE: "float64", onnx.TensorProto.FLOAT16: "float16",
        onnx.TensorProto.BFLOAT16: "bfloat16",
    }  # fmt: skip
    return {
        name: Constant(name, tuple(t.dims), partial(_float64, t), formats[t.data_type])
        for name, t in tensors.items()
        if t.data_type in formats
    }


def _float64(tensor: Any) -> Array:
    from onnx import numpy_helper

    return np.asarray(numpy_helper.to_array(tensor), np.float64)


def _nodes(model: Any) -> Iterator[Node]:
    for node in model.graph.node:
        if node.op_type != "Constant":
            yield Node(kind_of(node.op_type), tuple(i for i in node.input if i), tuple(o for o in node.output if o))
