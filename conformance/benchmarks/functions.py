"""The largest error of libraries' functions, over all of float32: `python -m conformance.benchmarks.functions`.

What `FUNCTION_ULP` rests on, for the libraries that are here: torch, and ONNX Runtime where it is installed.
"""

from collections.abc import Callable, Iterator
from importlib.util import find_spec

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import erf

from conformance.numerics.formats import FORMATS, Array

Floats = npt.NDArray[np.float32]

# The true function, and the magnitude up to which it is looked at: beyond, it is its limit.
FUNCTIONS: dict[str, tuple[Callable[[Array], Array], float]] = {"tanh": (np.tanh, 10.0), "erf": (erf, 5.0), "exp": (np.exp, 80.0)}
SMALLEST = 2.0**-20  # below, a function is its first term
CHUNK = 2**22


def main() -> None:
    """Print a line a function and library."""
    for name, (true, largest) in FUNCTIONS.items():
        for library, function in _libraries(name):
            worst = max(_errors(true, function, largest))
            print(f"{library} {name}: {worst:.2f} ULP")


def _libraries(name: str) -> Iterator[tuple[str, Callable[[Floats], Floats]]]:
    yield f"torch {torch.__version__}", lambda x: np.asarray(getattr(torch, name)(torch.from_numpy(x)).numpy())
    if find_spec("onnx") and find_spec("onnxruntime"):
        import onnxruntime

        yield f"onnxruntime {onnxruntime.__version__}", _of_onnx_runtime(name.capitalize())


def _of_onnx_runtime(operation: str) -> Callable[[Floats], Floats]:
    import onnxruntime
    from onnx import TensorProto, helper

    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [None]) for n in "xy")
    graph = helper.make_graph([helper.make_node(operation, ["x"], ["y"])], operation, [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return lambda values: np.asarray(session.run(None, {"x": values})[0])


def _errors(true: Callable[[Array], Array], function: Callable[[Floats], Floats], largest: float) -> Iterator[float]:
    """The largest error in ulp of each chunk of float32, of either sign."""
    first, last = (int(np.float32(x).view(np.uint32)) for x in (SMALLEST, largest))
    for start in range(first, last, CHUNK):
        magnitudes = np.arange(start, min(start + CHUNK, last), dtype=np.uint32).view(np.float32)
        for x in (magnitudes, -magnitudes):
            right = true(x.astype(np.float64))
            normal = np.abs(right) >= FORMATS["float32"].smallest_normal
            if normal.any():
                error = np.abs(function(x).astype(np.float64) - right) / FORMATS["float32"].ulp(right)
                yield float(error[normal].max())


if __name__ == "__main__":
    main()
