"""The float32 arithmetic of this machine: library functions, matrix products and settings of torch, measured once per process.

A verdict assumes that torch's functions are at least as accurate as those in the table (`numerics.function_error_bounds`). This
module measures them in under 0.1 s, at points that include the worst arguments of every implementation in the table. There are
three possible outcomes:

- Every function is within the table: nothing depends on the machine.
- A function exceeds the table: this is reported once as a property of the machine, and steps that call the function are judged
  with the measured bound (`Machine.error_bounds`).
- The error of a function at results in [1/2, 1) exceeds 2^-12, the error of rounding such results to float16: the function is
  not a float32 function. `MachineError` is raised and nothing is judged, since neither a failure nor a pass could be attributed
  to the candidate.

Functions are called as operators, `torch.ops.aten`, which are unaffected by a candidate that replaces functions of torch's Python
modules. They are called before a candidate that is given by name is imported, since its import may register other operators.

Only float32 is measured: half-precision formats are evaluated in float32, and float64 is judged by the table.

The effective bits p of a product are those for which rounding both operands to p bits gives its RMS error relative to its RMS,
√2 · RELATIVE_RMS · 2^-p: 11 in TF32, 8 in bfloat16, and in float32 24 minus the bits lost in accumulation.
"""

import math
import operator
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np

from conformance.errors import MachineError
from conformance.numerics.devices import is_whole
from conformance.numerics.first_calls import make_first_calls
from conformance.numerics.formats import FORMATS, RELATIVE_RMS, Array
from conformance.numerics.function_error_bounds import Bound, FunctionErrorBounds, table_bounds, worst_places
from conformance.numerics.function_errors import MeasuredErrors, measured
from conformance.numerics.functions import FUNCTIONS, Function

SINGLE = FORMATS["float32"]
LIMIT = FORMATS["float16"].unit_roundoff / 2.0

# Numbers of arguments: evenly spaced, by magnitude for each sign, and on each side of each worst argument.
EVEN, MAGNITUDES, NEIGHBOURS = 2048, 1024, 16
PRODUCTS: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "linear": ((64, 256), (256, 256)),
    "row": ((1, 256), (256, 256)),
    "scores": ((2, 4, 32, 64), (2, 4, 64, 32)),
}

Operator = Callable[[Any], Any]


@dataclass(frozen=True)
class Machine:
    """The measured arithmetic of a machine.

    Attributes:
        device: torch device.
        instruction_set: instruction set that ATen dispatches to on the CPU.
        functions: errors of torch's functions, by name.
        products: effective bits of a product, by class of its shape.
        settings: settings that change arithmetic, by name, as text.
    """

    device: str
    instruction_set: str
    functions: Mapping[str, MeasuredErrors]
    products: Mapping[str, float]
    settings: Mapping[str, str]

    @cached_property
    def exceeding(self) -> Mapping[str, Bound]:
        """The bounds of the functions that are less accurate than any in the table."""
        return {
            name: errors.bound(FUNCTIONS[name], SINGLE)
            for name, errors in self.functions.items()
            if errors.exceed(table_bounds().bounds[name, SINGLE.name])
        }

    @cached_property
    def error_bounds(self) -> FunctionErrorBounds:
        """The bounds of the table, extended by those of this machine's functions that exceed it.

        Raises:
            MachineError: the error of some function in [1/2, 1) exceeds that of rounding to float16, even if the function is not
            used.
        """
        bounds = table_bounds()
        for name, bound in self.exceeding.items():
            if not _below_one(bound) <= LIMIT:
                raise MachineError(
                    f"torch's {name} on {self.device} is no float32 function: it is off by {_size(bound)}, expected at most "
                    f"{_size(_largest(name))}. Try ATEN_CPU_CAPABILITY=default and ONEDNN_MAX_CPU_ISA=SSE41, or another torch"
                )
            bounds = bounds.including(name, bound, SINGLE)
        return bounds

    @property
    def notes(self) -> tuple[str, ...]:
        """One sentence for each function that exceeds the table."""
        return tuple(
            f"torch's {name} on this machine is off by up to {_size(bound)}, known implementations by up to "
            f"{_size(_largest(name))}: "
            + ("what calls it is judged with the measured error" if _below_one(bound) <= LIMIT else "nothing is judged")
            for name, bound in self.exceeding.items()
        )


def _size(bound: Bound) -> str:
    return f"{bound.absolute:.3g} + {bound.ulp:.3g} ULP"


def _largest(name: str) -> Bound:
    """Return the bound of the table that is largest in [1/2, 1)."""
    return max(table_bounds().bounds[name, SINGLE.name], key=_below_one)


def _below_one(bound: Bound) -> float:
    """Return the largest error at results in [1/2, 1), where an ULP is u."""
    return bound.absolute + SINGLE.unit_roundoff * bound.ulp


@cache
def this_machine(device: str) -> Machine:
    """Return the machine that this process runs on, measured on the torch device at the first call."""
    make_first_calls()
    return measure(device, torch_functions())


def measure_early(device: str) -> None:
    """Measure the machine before the import of a candidate can change torch; skip a device that does not work."""
    if is_whole(device):
        this_machine(device)


def measure(device: str, functions: Mapping[str, Operator], product: Callable[[Any, Any], Any] = operator.matmul) -> Machine:
    """Return the machine as measured with these functions and this product of torch tensors."""
    import torch

    with torch.no_grad():
        return Machine(
            device,
            torch.backends.cpu.get_cpu_capability(),
            {name: _errors(FUNCTIONS[name], function, device) for name, function in functions.items()},
            {name: _effective_bits(*shapes, device, product) for name, shapes in PRODUCTS.items()},
            _settings(),
        )


def torch_functions() -> Mapping[str, Operator]:
    """Return torch's functions, by their names in the table."""
    import torch

    aten = torch.ops.aten
    return {
        **{name: getattr(aten, name) for name in FUNCTIONS if not name.startswith("gelu")},
        "gelu": aten.gelu,
        "gelu_tanh": lambda x: aten.gelu(x, approximate="tanh"),
    }


def _errors(function: Function, computed: Operator, device: str) -> MeasuredErrors:
    import torch

    x = _arguments(function)
    return measured(function, x, computed(torch.from_numpy(x).to(device)).cpu().numpy(), SINGLE)


@cache
def _arguments(function: Function) -> Any:
    """Return float32 arguments: an even grid, a range of magnitudes, and the neighbours of every implementation's worst arguments.

    Subnormal arguments are left out, since a device may flush them to zero.
    """
    lower, upper = max(function.lower, -100.0), min(function.upper, 100.0)
    sizes = np.exp2(np.linspace(-20.0, math.log2(upper), MAGNITUDES))
    worst = np.array(worst_places(function.name), np.float32)
    beside = (worst.view(np.int32)[:, None] + np.arange(-NEIGHBOURS, NEIGHBOURS + 1, dtype=np.int32)).view(np.float32)
    every = np.concatenate([np.linspace(lower, upper, EVEN), sizes, -sizes, beside.ravel()]).astype(np.float32)
    return np.unique(every[(every > lower) & (every < upper) & (np.abs(every) >= SINGLE.smallest_normal)])


def _effective_bits(
    left: tuple[int, ...], right: tuple[int, ...], device: str, product: Callable[[Any, Any], Any] = operator.matmul
) -> float:
    import torch

    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in (left, right))
    actual = product(torch.from_numpy(a).to(device), torch.from_numpy(b).to(device)).cpu().double().numpy()
    expected = a.astype(np.float64) @ b.astype(np.float64)
    return -math.log2(max(_rms(actual - expected) / _rms(expected) / (math.sqrt(2.0) * RELATIVE_RMS), 2.0**-53))


def _rms(x: Array) -> float:
    return float(np.sqrt(np.mean(x**2)))


def _settings() -> Mapping[str, str]:
    import torch

    tiny = torch.full((1,), 1e-40, dtype=torch.float32, device="cpu")
    return {
        "float32_matmul_precision": _said(torch.get_float32_matmul_precision),
        "tf32": _said(lambda: torch.backends.cuda.matmul.allow_tf32),
        "onednn_fpmath_mode": os.environ.get("ONEDNN_DEFAULT_FPMATH_MODE", "STRICT").upper(),
        "flush_to_zero": _said(lambda: float(tiny * 1.0) == 0.0),
        "threads": _said(torch.get_num_threads),
    }


def _said(get: Callable[[], object]) -> str:
    """Return a setting as text; torch raises an error for a setting that was set inconsistently through two interfaces."""
    try:
        return str(get()).lower()
    except RuntimeError:
        return "mixed"
