"""The float32 arithmetic of this machine: library functions, matrix products and settings of torch, once a process.

A verdict assumes that torch's functions are no less accurate than those in the table (`numerics.accuracy`). Here that is
measured, in under 0.1 s, at points that contain the worst places of every implementation in the table. There are three results:

- each function is within the table: nothing depends on the machine;
- a function exceeds it: reported once as a property of the machine, and what calls the function is judged with the bound that was
  measured (`Machine.accuracy`);
- its error at results in [1/2, 1) exceeds 2^-12, that of rounding them to float16: not a float32 function. `MachineError`:
  nothing is judged, since neither a failure nor a pass would be the candidate's.

Functions are called as operators, `torch.ops.aten`, which a candidate that replaces functions of torch's Python modules does not
change; and before a candidate that is given by its name is imported, since its import may register other operators.

Only float32 is measured: half formats are evaluated in it, and float64 is judged by the table.

The effective bits p of a product are those for which rounding both operands to p bits gives its RMS error over its RMS,
√2 · RELATIVE_RMS · 2^-p: 11 in TF32, 8 in bfloat16, and in float32 24 less what accumulation loses.
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
from conformance.numerics.accuracy import Accuracy, known, worst_places
from conformance.numerics.devices import is_whole
from conformance.numerics.first_calls import make_first_calls
from conformance.numerics.formats import FORMATS, RELATIVE_RMS, Array
from conformance.numerics.functions import FUNCTIONS, Bound, Errors, Function, measured

SINGLE = FORMATS["float32"]
LIMIT = FORMATS["float16"].unit_roundoff / 2.0

EVEN, MAGNITUDES, NEIGHBOURS = 2048, 1024, 16  # arguments evenly spaced, by magnitude of either sign, and beside each worst place
PRODUCTS: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "linear": ((64, 256), (256, 256)),
    "row": ((1, 256), (256, 256)),
    "scores": ((2, 4, 32, 64), (2, 4, 64, 32)),
}

Operator = Callable[[Any], Any]


@dataclass(frozen=True)
class Machine:
    """What was measured.

    Attributes:
        device: the torch device.
        instruction_set: what ATen dispatches on the CPU.
        functions: the errors of torch's functions, by name.
        products: the effective bits of a product, by the class of its shape.
        settings: what changes arithmetic, by name, as text.
    """

    device: str
    instruction_set: str
    functions: Mapping[str, Errors]
    products: Mapping[str, float]
    settings: Mapping[str, str]

    @cached_property
    def exceeding(self) -> Mapping[str, Bound]:
        """The bounds of the functions that are less accurate than any in the table."""
        return {
            name: errors.bound(FUNCTIONS[name], SINGLE)
            for name, errors in self.functions.items()
            if errors.exceed(known().bounds[name, SINGLE.name])
        }

    @cached_property
    def accuracy(self) -> Accuracy:
        """The table's, and that of the functions that exceed it.

        Raises:
            MachineError: of any function, used or not, an error in [1/2, 1) is beyond that of float16's rounding.
        """
        accuracy = known()
        for name, bound in self.exceeding.items():
            if not _below_one(bound) <= LIMIT:
                raise MachineError(
                    f"torch's {name} on {self.device} is no float32 function: it is off by {_size(bound)}, expected at most "
                    f"{_size(_largest(name))}. Try ATEN_CPU_CAPABILITY=default and ONEDNN_MAX_CPU_ISA=SSE41, or another torch"
                )
            accuracy = accuracy.including(name, bound, SINGLE)
        return accuracy

    @property
    def notes(self) -> tuple[str, ...]:
        """A sentence a function that exceeds the table."""
        return tuple(
            f"torch's {name} on this machine is off by up to {_size(bound)}, known implementations by up to "
            f"{_size(_largest(name))}: "
            + ("what calls it is judged with the measured error" if _below_one(bound) <= LIMIT else "nothing is judged")
            for name, bound in self.exceeding.items()
        )


def _size(bound: Bound) -> str:
    return f"{bound.absolute:.3g} + {bound.ulp:.3g} ULP"


def _largest(name: str) -> Bound:
    """Of the table, the bound that is largest in [1/2, 1)."""
    return max(known().bounds[name, SINGLE.name], key=_below_one)


def _below_one(bound: Bound) -> float:
    """The largest error at results in [1/2, 1), whose ULP is u."""
    return bound.absolute + SINGLE.unit_roundoff * bound.ulp


@cache
def this_machine(device: str) -> Machine:
    """The machine that this process runs on, measured on that torch device at the first call."""
    make_first_calls()
    return measure(device, torch_functions())


def measure_early(device: str) -> None:
    """Measure the machine before a candidate's import can change torch; of a device that does not work, others complain."""
    if is_whole(device):
        this_machine(device)


def measure(device: str, functions: Mapping[str, Operator], product: Callable[[Any, Any], Any] = operator.matmul) -> Machine:
    """A machine with these functions and this product of torch tensors."""
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
    """Torch's own, by the table's names."""
    import torch

    aten = torch.ops.aten
    return {
        **{name: getattr(aten, name) for name in FUNCTIONS if not name.startswith("gelu")},
        "gelu": aten.gelu,
        "gelu_tanh": lambda x: aten.gelu(x, approximate="tanh"),
    }


def _errors(function: Function, computed: Operator, device: str) -> Errors:
    import torch

    x = _arguments(function)
    return measured(function, x, computed(torch.from_numpy(x).to(device)).cpu().numpy(), SINGLE)


@cache
def _arguments(function: Function) -> Any:
    """float32: an even grid, every magnitude, and the neighbours of the places that are worst for any implementation.

    Subnormal arguments are left out, which a device may flush to zero.
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
    """A setting as text; torch refuses to say one that was set through two interfaces that disagree."""
    try:
        return str(get()).lower()
    except RuntimeError:
        return "mixed"
