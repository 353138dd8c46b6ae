"""Arithmetic models: what rounding a correct implementation may do, and where.

A model is a triple (storage format, accumulation format, function errors, which are those of `numerics.accuracy`) and says at which
boundaries results are rounded to storage. Three ways of computing one step are legal and common:

`native`    every elementary operation of a step rounds to storage (a norm written out of means and products in bfloat16);
`modular`   every library call rounds to storage once: a sum, a product, a norm, a softmax (PyTorch modules, eager);
`fused`     a step rounds to storage once, its inner values live in the accumulation format (a fused or compiled kernel).

Where storage and accumulation format are one (float32, float64) the three coincide.

Products of matrices are summed in one of two ways:

`rounded`    every addition rounds to nearest, as in IEEE 754;
`truncated`  a matrix unit adds a few products at once to its accumulator, aligned to the largest, and cuts off what is left over:
             tensor cores of every generation (Fasi, Higham, Mikaitis and Pranesh 2021, *Numerical behavior of NVIDIA tensor
             cores*; Khattak and Mikaitis 2025, *Accurate models of NVIDIA tensor cores*, for later ones).

The second is what half formats are multiplied in on an accelerator; and float32 too where a kernel splits each operand in two TF32
numbers, as PyTorch's memory-efficient attention does from compute capability 8.0 on (CUTLASS, example 27, `OpMultiplyAddFastF32`).
Products of float64 are rounded there as well.

The second half of a hypothesis is what a step consumed: its parents `as captured`, or `unrounded`, the values before they were
rounded for storage, at most half an ulp from the captured ones (a fused kernel hands its register on).
"""

from dataclasses import dataclass, field, replace
from typing import Literal

from conformance.numerics.accuracy import Accuracy, known
from conformance.numerics.formats import FORMATS, Array, Format, format_named

Rounding = Literal["native", "modular", "fused"]
Summation = Literal["rounded", "truncated"]


@dataclass(frozen=True)
class Arithmetic:
    """One way of rounding, for one storage format."""

    storage: Format
    accumulate: Format
    rounding: Rounding
    summation: Summation = "rounded"
    functions: Accuracy = field(default_factory=known, repr=False)

    @property
    def name(self) -> str:
        """`modular`, or `float32`, or `float32 in matrix units`: arithmetics of one dtype and device have different names."""
        if self.is_mixed:
            return self.rounding
        return self.storage.name if self.summation == "rounded" else f"{self.storage.name} in matrix units"

    @property
    def elementwise(self) -> Format:
        """The format in which the inner operations of a norm, a softmax or an activation function are carried out."""
        return self.storage if self.rounding == "native" else self.accumulate

    @property
    def is_mixed(self) -> bool:
        """Whether results are accumulated in a wider format than they are stored in."""
        return self.storage != self.accumulate

    def intermediate(self) -> "Arithmetic":
        """The model of a step whose result never leaves its kernel: fused results stay in the accumulation format."""
        if self.rounding == "fused":
            return replace(self, storage=self.accumulate)
        return self

    def function_variance(self, y: Array) -> Array | float:
        """Variance of rounding a function's value inside a step: to storage where every operation does, else none of its own."""
        return self.storage.rounding_variance(y) if self.rounding == "native" and self.is_mixed else 0.0

    def store_variance(self, y: Array) -> Array | float:
        """Variance of the rounding to storage; accumulation's own last rounding is counted there when formats are equal."""
        return self.storage.rounding_variance(y) if self.is_mixed else 0.0

    def call_variance(self, y: Array) -> Array | float:
        """Variance of rounding a library call's result y inside a step."""
        return 0.0 if self.rounding == "fused" else self.store_variance(y)


@dataclass(frozen=True)
class Hypothesis:
    """How a candidate may have computed a step: its arithmetic, and which parents it consumed."""

    arithmetic: Arithmetic
    parents: Literal["as captured", "unrounded"]

    def __str__(self) -> str:
        """Rendered as `modular` or `modular, parents unrounded`."""
        name = self.arithmetic.name
        return name if self.parents == "as captured" else f"{name}, parents unrounded"


def hypotheses(dtype: str, device: str = "cpu", functions: Accuracy | None = None) -> tuple[Hypothesis, ...]:
    """The declared hypotheses for a dtype on a torch device, tightest first; every device but the CPU may have matrix units.

    `functions` are the library's where they are less accurate than those in the table.
    """
    storage, single = format_named(dtype), FORMATS["float32"]
    accelerated = device.partition(":")[0] != "cpu"
    if storage.precision > single.precision or (storage == single and not accelerated):
        arithmetics = [Arithmetic(storage, storage, "modular")]
    elif storage == single:
        arithmetics = [Arithmetic(storage, storage, "modular", s) for s in ("rounded", "truncated")]
    else:
        roundings: tuple[Rounding, ...] = ("fused", "modular", "native")
        arithmetics = [Arithmetic(storage, single, r, "truncated" if accelerated else "rounded") for r in roundings]
    arithmetics = [replace(a, functions=functions or known()) for a in arithmetics]
    return tuple([Hypothesis(a, "as captured") for a in arithmetics] + [Hypothesis(a, "unrounded") for a in arithmetics])


def modular(dtype: str, device: str = "cpu", functions: Accuracy | None = None) -> Hypothesis:
    """Where one hypothesis has to stand for all: every library call rounds once, from parents as captured; the widest of these."""
    return [h for h in hypotheses(dtype, device, functions) if h.arithmetic.rounding == "modular" and h.parents == "as captured"][
        -1
    ]
