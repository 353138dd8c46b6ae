"""Arithmetic models: what rounding a correct implementation may do, and where.

A model is a triple (storage format, accumulation format, function errors) and says at which boundaries results are rounded to
storage. Three ways of computing one step are legal and common:

`native`    every elementary operation of a step rounds to storage (a norm written out of means and products in bfloat16);
`modular`   every library call rounds to storage once: a sum, a product, a norm, a softmax (PyTorch modules, eager);
`fused`     a step rounds to storage once, its inner values live in the accumulation format (a fused or compiled kernel).

Where storage and accumulation format are one (float32, float64) the three coincide.

The second half of a hypothesis is what a step consumed: its parents `as captured`, or `unrounded`, the values before they were
rounded for storage, at most half an ulp from the captured ones (a fused kernel hands its register on).
"""

from dataclasses import dataclass
from typing import Literal

from conformance.numerics.formats import FORMATS, Array, Format, format_named

Rounding = Literal["native", "modular", "fused"]

# Largest error, in ulp of the result, of a correctly working library function, evaluated in the accumulation format: half-precision
# libraries compute in float32 and round. The largest of SLEEF's u10 functions (1.0 ULP;
# Shibata and Petrogalli, 2020, table 1), which PyTorch's CPU kernels call, of the maxima that the CUDA C++ Programming Guide
# (mathematical functions, standard functions, single and double precision) states for its device functions, and of what ONNX
# Runtime's CPU kernels make: tanh is a rational approximation there, up to 5.46 ULP off (1.31; `conformance.benchmarks.functions`
# measures it over all of float32).
FUNCTION_ULP = {"exp": 2.0, "erf": 2.0, "tanh": 5.5, "log": 1.0, "rsqrt": 2.0}

# Absolute error of erf by Abramowitz and Stegun 7.1.26, the rational approximation that PyTorch's AVX2 and AVX-512 kernels use
# for float32 (and so for GELU): correct to 1.5e-7 everywhere, yet thousands of ulp of 1 + erf near −3. Float64 does not use it.
ERF_ABSOLUTE = 1.5e-7


def erf_error(e: Array, evaluated: Format) -> Array:
    """The largest error of a correctly working erf whose value is e, evaluated in that format."""
    approximation = ERF_ABSOLUTE if evaluated.precision <= FORMATS["float32"].precision else 0.0
    return FUNCTION_ULP["erf"] * evaluated.ulp(e) + approximation


@dataclass(frozen=True)
class Arithmetic:
    """One way of rounding, for one storage format."""

    storage: Format
    accumulate: Format
    rounding: Rounding

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
            return Arithmetic(self.accumulate, self.accumulate, "fused")
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
        """Told as `modular` or `modular, parents unrounded`."""
        rounding = self.arithmetic.rounding if self.arithmetic.is_mixed else self.arithmetic.storage.name
        return rounding if self.parents == "as captured" else f"{rounding}, parents unrounded"


def hypotheses(dtype: str) -> tuple[Hypothesis, ...]:
    """The declared hypotheses for a dtype, tightest first."""
    storage = format_named(dtype)
    if storage.precision >= FORMATS["float32"].precision:
        arithmetics = [Arithmetic(storage, storage, "modular")]
    else:
        roundings: tuple[Rounding, ...] = ("fused", "modular", "native")
        arithmetics = [Arithmetic(storage, FORMATS["float32"], r) for r in roundings]
    return tuple([Hypothesis(a, "as captured") for a in arithmetics] + [Hypothesis(a, "unrounded") for a in arithmetics])
