"""Arithmetic models: the roundings that a correct implementation may make, and where it makes them.

A model is a triple (storage format, accumulation format, bounds of function errors, see `numerics.function_error_bounds`) and
specifies at which points results are rounded to storage. Three ways of computing a step are legal and common:

`native`    every elementary operation of a step rounds to storage (a norm written out of means and products in bfloat16);
`modular`   every library call rounds to storage once: a sum, a product, a norm, a softmax (PyTorch modules, eager);
`fused`     a step rounds to storage once, its inner values live in the accumulation format (a fused or compiled kernel).

If the storage and accumulation formats are equal (float32, float64), the three coincide.

Matrix products are accumulated in one of two ways:

`rounded`    every addition rounds to nearest, as in IEEE 754;
`truncated`  a matrix unit adds a few products at once to its accumulator, aligned to the largest, and truncates the excess bits:
             tensor cores of every generation (Fasi, Higham, Mikaitis and Pranesh 2021, *Numerical behavior of NVIDIA tensor
             cores*; Khattak and Mikaitis 2025, *Accurate models of NVIDIA tensor cores*, for later ones).

On an accelerator, products of half-precision formats are truncated. Products of float32 are truncated where a kernel splits each
operand into two TF32 numbers, as PyTorch's memory-efficient attention does from compute capability 8.0 on (CUTLASS, example 27,
`OpMultiplyAddFastF32`). Products of float64 are always rounded.

The second component of a hypothesis is the form in which a step consumed its parents: `as captured`, or `unrounded`, meaning the
values before they were rounded to storage, which differ from the captured values by at most half an ulp (a fused kernel passes
on the value in its register).

To add a legal arithmetic:

1. Add its name to `Rounding` or `Summation`, and an `Arithmetic` with it to the result of `hypotheses`, tightest first.
2. Define the name above, in the form of the other definitions.
3. Adapt the `roundings` in `conformance.oracle` that distinguish arithmetics (search for `arithmetic.rounding`).
4. Adapt the modules that name an arithmetic: `judge.evidence` (`WIDEST_ARITHMETIC`), `judge.loss_curve`, and
   `diagnosis.explanations` (`end_to_end`).
5. Run `conformance/tests/test_arithmetics.py`.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from conformance.numerics.formats import FORMATS, Array, Format, format_named
from conformance.numerics.function_error_bounds import FunctionErrorBounds, table_bounds
from conformance.numerics.memo import cached_property, hashed_once

Rounding = Literal["native", "modular", "fused"]
Summation = Literal["rounded", "truncated"]


@hashed_once
@dataclass(frozen=True)
class Arithmetic:
    """A way of rounding, for one storage format.

    Attributes:
        storage: format of stored results.
        accumulate: format in which sums are accumulated.
        rounding: points at which results are rounded to storage: `native`, `modular` or `fused`.
        summation: how additions in matrix products round: `rounded` or `truncated`.
        functions: error bounds of library functions.
    """

    storage: Format
    accumulate: Format
    rounding: Rounding
    summation: Summation = "rounded"
    functions: FunctionErrorBounds = field(default_factory=table_bounds, repr=False)

    @property
    def name(self) -> str:
        """The name, unique for each dtype and device: for example `modular`, `float32` or `float32 in matrix units`."""
        if self.is_mixed:
            return self.rounding
        return self.storage.name if self.summation == "rounded" else f"{self.storage.name} in matrix units"

    @property
    def elementwise_format(self) -> Format:
        """The format of the inner operations of a norm, a softmax or an activation function."""
        return self.storage if self.rounding == "native" else self.accumulate

    @cached_property
    def is_mixed(self) -> bool:
        """Whether results are accumulated in a wider format than they are stored in."""
        return self.storage != self.accumulate

    @property
    def rounds_inside(self) -> bool:
        """Whether the results of the operations inside a step are rounded to storage."""
        return self.rounding == "native" and self.is_mixed

    def intermediate(self) -> "Arithmetic":
        """Return the model of a step whose result stays inside its kernel: fused results are kept in the accumulation format."""
        return self._intermediate if self.rounding == "fused" else self

    @cached_property
    def _intermediate(self) -> "Arithmetic":
        return replace(self, storage=self.accumulate)

    def inner_rounding_variance(self, y: Array) -> Array | float:
        """Return the variance of storing a function value y inside a step; 0 unless every operation rounds to storage."""
        return self.storage.rounding_variance(y) if self.rounds_inside else 0.0

    def storage_rounding_variance(self, y: Array) -> Array | float:
        """Return the variance of rounding y to storage; 0 if the formats are equal: accumulation then includes this rounding."""
        return self.storage.rounding_variance(y) if self.is_mixed else 0.0

    def call_rounding_variance(self, y: Array) -> Array | float:
        """Return the variance of rounding the result y of a library call inside a step to storage."""
        return 0.0 if self.rounding == "fused" else self.storage_rounding_variance(y)


@hashed_once
@dataclass(frozen=True)
class Hypothesis:
    """A way in which a candidate may have computed a step: its arithmetic, and the form in which it consumed its parents."""

    arithmetic: Arithmetic
    parents: Literal["as captured", "unrounded"]

    def __str__(self) -> str:
        """Return a text such as `modular` or `modular, parents unrounded`."""
        name = self.arithmetic.name
        return name if self.parents == "as captured" else f"{name}, parents unrounded"


def hypotheses(dtype: str, device: str = "cpu", functions: FunctionErrorBounds | None = None) -> tuple[Hypothesis, ...]:
    """Return the hypotheses for a dtype on a torch device, tightest first.

    Args:
        dtype: name of the storage format.
        device: torch device; every device other than the CPU may have matrix units.
        functions: error bounds of the library functions where they exceed the table; default: the table.

    Returns:
        All arithmetics with parents as captured, then all of them with parents unrounded.

    Raises:
        UsageError: no format is called `dtype`.
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
    arithmetics = [replace(a, functions=functions or table_bounds()) for a in arithmetics]
    return tuple([Hypothesis(a, "as captured") for a in arithmetics] + [Hypothesis(a, "unrounded") for a in arithmetics])


def as_captured(legal: Iterable[Hypothesis]) -> list[Hypothesis]:
    """Return the hypotheses with parents as captured."""
    return [hypothesis for hypothesis in legal if hypothesis.parents == "as captured"]


def still_needed(legal: Iterable[Hypothesis], passed: Collection[str]) -> Iterator[Hypothesis]:
    """Yield the hypotheses in order, skipping those whose arithmetic has been added to `passed` by then.

    Unrounded parents give a larger sigma, so a result that passes with parents as captured would pass with unrounded ones, too.

    Args:
        legal: the hypotheses, as `hypotheses` returns them.
        passed: names of the arithmetics under which the result passes; the caller adds to it between hypotheses.
    """
    return (hypothesis for hypothesis in legal if hypothesis.arithmetic.name not in passed)


def representative_hypothesis(dtype: str, device: str = "cpu", functions: FunctionErrorBounds | None = None) -> Hypothesis:
    """Return the hypothesis to use where a single one must represent all of them.

    It is the widest hypothesis in which every library call rounds once and parents are as captured.
    """
    return [h for h in as_captured(hypotheses(dtype, device, functions)) if h.arithmetic.rounding == "modular"][-1]
