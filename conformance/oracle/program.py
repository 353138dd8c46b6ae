"""Programs: the equation of a step, written once as a function of arrays.

On arrays, a program computes a value. On `Traced` arrays (`oracle.trace`) it also records its operations, from which Jacobians and
rounding errors follow; on `Rounded` arrays (`oracle.operations`) every operation rounds its result to a format. A program uses
operators, NumPy's functions in `OPERATIONS`, sums over the last axis, and the functions below. Where candidates may compute a
value in several legal ways, the program has each of them, as an argument of `either`; a new one is a line.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import numpy as np
from scipy import special

from conformance.numerics import functions
from conformance.numerics.formats import Array, Mask, as_array

Slope = Callable[..., Any]  # The derivative with respect to an operand, from the result and the operands.
Form = Callable[[], Array]


@dataclass(frozen=True, eq=False)
class Operation:
    """An operation on elements, or the sum over the last axis.

    Attributes:
        function: the function from the operands, which are arrays, to the result.
        errors: what its rounding errors are: those of a library function, by its name in `numerics.functions`; or `exact`, for
            none; `rounded`, for that of the result; `sum` and `mean`, of the partial sums; `added`, of a sum in any order;
            `call`, of storing the result unless the step is fused; `exp_by_two` and `rescaled`, see below; `either`, the largest
            of several forms.
        slopes: derivatives with respect to the operands, all of which are 1 if there are none.
    """

    function: Callable[..., Any]
    errors: str
    slopes: tuple[Slope, ...] = ()

    def __call__(self, *operands: Any) -> Array:
        """Return the result: a `Number` if an operand is one."""
        first = next((x for x in operands if isinstance(x, Number)), None)
        return cast(Array, self.function(*operands) if first is None else first.made(self, operands))

    def of(self, operands: tuple[Any, ...]) -> Array:
        """Return the elements of the result."""
        return as_array(self.function(*map(value_of, operands)))


class Number(np.lib.mixins.NDArrayOperatorsMixin, ABC):
    """An array that a program runs on, with what else is recorded of its elements.

    Attributes:
        value: the elements.
    """

    value: Array

    @abstractmethod
    def made(self, operation: Operation, operands: tuple[Any, ...]) -> Any:
        """Return the result of an operation on some operands."""

    @abstractmethod
    def either(self, form: Form, wider: Sequence[Form], also: Sequence[Form]) -> Any:
        """Return a value of several legal forms (see the function `either`)."""

    def again(self, form: Form) -> Any:
        """Return the value with the errors of another computation of it (see the function `again`)."""
        return self

    def constants(self, numbers: tuple[float, ...]) -> tuple[Any, ...]:
        """Return the constants of a program (see the function `constants`)."""
        return numbers

    def together(self, function: Callable[..., Any], operands: tuple[Any, ...]) -> Any:
        """Return the result of a function that a single call computes (see the function `together`)."""
        return function(*operands)

    def __array_ufunc__(self, ufunc: Any, method: str, *operands: Any, **_: Any) -> Any:
        """Return the result of a universal function."""
        return self.made(OPERATIONS[ufunc], operands)

    def sum(self, axis: int = -1, keepdims: bool = True) -> Any:
        """Return the sum over the last axis, which remains with length 1."""
        return self.made(SUM, (self,))


def value_of(x: Any) -> Any:
    """Return the elements of an array or of a `Number`."""
    return x.value if isinstance(x, Number) else x


def _itself(x: Array) -> Array:
    return x


OPERATIONS: dict[Any, Operation] = {
    operation.function: operation
    for operation in (
        Operation(np.add, "rounded"),
        Operation(np.subtract, "rounded", (lambda y, a, b: 1.0, lambda y, a, b: -1.0)),
        Operation(np.multiply, "rounded", (lambda y, a, b: b, lambda y, a, b: a)),
        Operation(np.true_divide, "rounded", (lambda y, a, b: 1.0 / b, lambda y, a, b: -y / b)),
        Operation(np.negative, "exact", (lambda y, a: -1.0,)),
        Operation(np.square, "rounded", (lambda y, a: 2.0 * a,)),
        Operation(np.sqrt, "rounded", (lambda y, a: 0.5 / y,)),
        Operation(np.maximum, "exact", (lambda y, a, b: as_array(a > b, np.float64), lambda y, a, b: as_array(b >= a, np.float64))),
        Operation(np.exp, "exp", (lambda y, a: y,)),
        Operation(np.log, "log", (lambda y, a: 1.0 / a,)),
        Operation(np.tanh, "tanh", (lambda y, a: 1.0 - y**2,)),
        Operation(special.erfc, "rounded", (lambda y, a: -2.0 / np.pi**0.5 * np.exp(-np.square(a)),)),
        Operation(special.expit, "sigmoid", (lambda y, a: y * (1.0 - y),)),
    )
}
SUM = Operation(lambda x: x.sum(-1, keepdims=True), "sum")
MEAN = Operation(
    lambda x, count: np.add.reduce(x, -1, keepdims=True) / count,  # the bits of `numpy.mean` in less time
    "mean",
    (lambda y, a, count: 1.0 / count,),
)
ADDED = Operation(lambda *terms: sum(terms[1:], start=terms[0]), "added")
IN_KERNEL = Operation(_itself, "exact")
SELECTED = Operation(
    lambda x, mask, other: np.where(mask, x, other),
    "exact",
    (lambda y, a, mask, other: 1.0 if mask.all() else as_array(mask, np.float64),),
)

erf = Operation(functions.erf, "erf", (lambda y, a: 2.0 / np.pi**0.5 * np.exp(-np.square(a)),))
"""The error function."""

inverse_root = Operation(lambda x: as_array(1.0 / np.sqrt(x)), "rsqrt", (lambda y, a: -0.5 * y**3,))
"""1/√x, computed by a single function."""

exp_by_two = Operation(np.exp, "exp_by_two", (lambda y, a: y,))
"""exp(x) as exp2(x log2 e), a product in the accumulation format; its constant is that of `rescaled`."""

rescaled = Operation(_itself, "rescaled")
"""x times a constant that is 1 but for its rounding to the accumulation format."""

call = Operation(_itself, "call")
"""The result of a library call within a step, which is stored unless the step is fused."""


@cache
def exactly(function: Any) -> Operation:
    """Return a universal function without rounding errors, by which a form with other errors gets to the value of the first."""
    return Operation(function, "exact", OPERATIONS[function].slopes)


def either(x: Array, form: Form, *wider: Form, also: Sequence[Form] = ()) -> Array:
    """Return a value that candidates compute in one of several legal forms.

    Args:
        x: an operand, which tells on what the program runs.
        form: the function that returns the value.
        wider: further forms; the rounding errors are the largest of all, element by element.
        also: forms that are followed operation by operation alone, since their errors are no larger.
    """
    return cast(Any, x).either(form, wider, also) if isinstance(x, Number) else form()


def again(x: Array, form: Form) -> Array:
    """Return x with the rounding errors of `form`, another computation of it, which are independent of those of x."""
    return cast(Any, x).again(form) if isinstance(x, Number) else x


def constants(x: Array, *numbers: float) -> tuple[float, ...]:
    """Return constants that candidates may round to the storage format before they use them; x as for `either`."""
    return x.constants(numbers) if isinstance(x, Number) else numbers


def together(function: Callable[..., Array], *operands: Array) -> Array:
    """Return the result of a function that candidates may compute by a single call, in float32, before it is rounded."""
    first = operands[0]
    return cast(Any, first).together(function, operands) if isinstance(first, Number) else function(*operands)


def in_kernel(x: Array) -> Array:
    """Return x; operations on it round to the accumulation format under every arithmetic, as inside a fused kernel."""
    return IN_KERNEL(x)


def selected(x: Array, mask: Mask, other: float = 0.0) -> Array:
    """Return x where the mask is true, and another number elsewhere."""
    return SELECTED(x, mask, other)


def added(*terms: Array) -> Array:
    """Return the sum of arrays, which may be added in any order, each sum by a library call."""
    return ADDED(*terms) if len(terms) > 1 else terms[0]


def row_mean(x: Array, lost: int = 0) -> Array:
    """Return the mean over the last axis, (..., 1), of which the divisor is the number of terms less `lost`."""
    return MEAN(x, value_of(x).shape[-1] - lost)
