"""Libraries and how to call them: a lane is a library under one instruction set, measured in a separate process."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from importlib.util import find_spec
from typing import Any

import numpy as np

from conformance.benchmarks.functions.sweep import Kernel

FUSED = ("gelu", "gelu_tanh")  # The functions that torch delegates to oneDNN if allowed to.
# Differences of scores down to ln u: below, a relative error is none of the row's sum, and what grows with the difference is the
# rounding of its product with log2 e, which sigma contains (`oracle.softmax`).
IN_ATTENTION = (-24.0 * np.log(2.0), 0.0)
KEYS = 33  # More than a vector of the widest instruction set, and an odd one: a kernel computes the rest of a row by other code.


@dataclass(frozen=True)
class Lane:
    """A library under one instruction set.

    Attributes:
        library: name of the distribution.
        isa: name of the instruction set in the table.
        environment: environment variables of the process.
        kernels: returns the library's function for the names of a function and of a dtype, or None if it has none.
        functions: names of the functions to measure; all of them if empty.
        interval: the arguments to measure, between these; by default all where the function is neither constant nor infinite.
        incorrect: by function and dtype, the reason why the library's row is not a bound: no correct implementation computes this.
    """

    library: str
    isa: str
    kernels: Callable[[str, str], Kernel | None]
    environment: Mapping[str, str] = field(default_factory=dict)
    functions: tuple[str, ...] = ()
    interval: tuple[float, float] = (-np.inf, np.inf)
    incorrect: Mapping[tuple[str, str], str] = field(default_factory=dict)

    @property
    def version(self) -> str:
        """The installed version, without its build."""
        return metadata.version(self.library).partition("+")[0]

    @property
    def name(self) -> str:
        """The name by which a process selects its lane."""
        return f"{self.library}:{self.isa}"


def lanes() -> Iterator[Lane]:
    """Yield every lane that this machine can run."""
    for capability in _aten_capabilities():
        environment = {"ATEN_CPU_CAPABILITY": capability.lower()}
        yield Lane("torch", f"ATen {capability}", _of_torch(onednn=False), environment)
        yield Lane("torch", f"ATen {capability}, in attention", _of_attention, environment, ("exp",), IN_ATTENTION)
    for limit in _onednn_limits():
        yield Lane("torch", f"oneDNN {limit}", _of_torch(onednn=True), {"ONEDNN_MAX_CPU_ISA": limit}, FUSED)
    yield Lane("numpy", "its own dispatch", _of_numpy)
    if find_spec("onnx") and find_spec("onnxruntime"):
        rounded = {("gelu_tanh", "float64"): "the constants are rounded to float32: 1e-8 off"}
        yield Lane("onnxruntime", "its own dispatch", _of_onnxruntime, incorrect=rounded)


def _aten_capabilities() -> tuple[str, ...]:
    """Return the instruction set that torch dispatches to here, and those that it can be limited to."""
    import torch

    best = torch.backends.cpu.get_cpu_capability()
    return {"AVX512": ("AVX512", "AVX2", "DEFAULT"), "AVX2": ("AVX2", "DEFAULT")}.get(best, (best,))


def _onednn_limits() -> tuple[str, ...]:
    """Return the oneDNN limits that make a difference on this processor; `ALL` is no limit."""
    import torch

    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return ()
    flags: Mapping[str, Any] = torch.cpu.get_capabilities()
    if flags.get("architecture") != "x86_64":
        return ("ALL",)
    return ("ALL", *(("AVX512_CORE",) if flags.get("avx512_f") else ()), *(("AVX2",) if flags.get("avx2") else ()), "SSE41")


def _of_torch(*, onednn: bool) -> Callable[[str, str], Kernel | None]:
    def kernels(name: str, dtype: str) -> Kernel:
        import torch

        functional = torch.nn.functional
        function: Callable[[torch.Tensor], torch.Tensor] = {
            "gelu": functional.gelu,
            "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
        }.get(name) or getattr(torch, name)

        def kernel(x: Any) -> Any:
            with torch.no_grad(), torch.backends.mkldnn.flags(enabled=onednn):
                y = function(torch.from_numpy(np.array(x)).to(getattr(torch, dtype)))
            return y.to(torch.float32 if dtype != "float64" else torch.float64).numpy()

        return kernel

    return kernels


def _of_attention(name: str, dtype: str) -> Kernel | None:
    """Return exp as fused attention computes it: x is the score of every key but the first, whose score is 0.

    The value is the ratio of two probabilities, each read off by a value that is 1 at its key and rounded once more.
    """
    import torch

    def kernel(x: Any) -> Any:
        query = torch.zeros(1, 1, len(x), 8)
        query[..., 0] = torch.from_numpy(np.array(x, np.float32))
        keys, values = torch.zeros(1, 1, KEYS, 8), torch.zeros(1, 1, KEYS, 8)
        keys[0, 0, 1:, 0] = values[0, 0, 0, 0] = values[0, 0, -2, 1] = values[0, 0, -1, 2] = 1.0
        with torch.no_grad():
            first, *others = (
                torch.nn.functional.scaled_dot_product_attention(query, keys, values, scale=1.0)[0, 0, :, :3].double().T
            )
        last_of_vector, last = ((other / first).float() for other in others)
        exact = torch.exp(query[0, 0, :, 0].double())
        farther: Any = torch.where((last_of_vector - exact).abs() > (last - exact).abs(), last_of_vector, last)
        return farther.numpy()

    return kernel if (name, dtype) == ("exp", "float32") else None


def _of_numpy(name: str, dtype: str) -> Kernel | None:
    from scipy import special

    if dtype not in ("float32", "float64"):
        return None
    by_name: dict[str, Kernel] = {
        "exp": np.exp, "tanh": np.tanh, "log": np.log, "erf": special.erf, "sigmoid": special.expit,
        "rsqrt": lambda x: 1 / np.sqrt(x),
    }  # fmt: skip
    return by_name.get(name)


# ONNX operators as lists of (operator, attributes), applied in order.
_OPERATORS: Mapping[str, tuple[tuple[str, dict[str, Any]], ...]] = {
    "erf": (("Erf", {}),), "exp": (("Exp", {}),), "tanh": (("Tanh", {}),), "log": (("Log", {}),), "sigmoid": (("Sigmoid", {}),),
    "gelu": (("Gelu", {}),), "gelu_tanh": (("Gelu", {"approximate": "tanh"}),), "rsqrt": (("Sqrt", {}), ("Reciprocal", {})),
}  # fmt: skip


def _onnx_model(name: str, dtype: str) -> bytes | None:
    """Return the function as a model of a 1-d array; None if ONNX lacks it."""
    from onnx import TensorProto, helper

    if dtype not in ("float32", "float64") or name not in _OPERATORS:
        return None
    kind = TensorProto.FLOAT if dtype == "float32" else TensorProto.DOUBLE
    operators = _OPERATORS[name]
    nodes = [helper.make_node(op, [f"v{i}"], [f"v{i + 1}"], **a) for i, (op, a) in enumerate(operators)]
    ends = [helper.make_tensor_value_info(v, kind, [None]) for v in ("v0", f"v{len(operators)}")]
    graph = helper.make_graph(nodes, name, ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    return bytes(model.SerializeToString())


def _of_onnxruntime(name: str, dtype: str) -> Kernel | None:
    import onnxruntime

    model = _onnx_model(name, dtype)
    if model is None:
        return None
    try:
        session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    except Exception:  # The operator has no kernel of this type; the runtime raises its own exception class.
        return None
    return lambda x: np.asarray(session.run(None, {"v0": np.asarray(x, dtype)})[0])
