"""Programs: the equation of a step, written once as a function of arrays.

On arrays, a program computes a value. On `Traced` arrays (`oracle.trace`) it also records its operations, from which Jacobians and
rounding errors follow; on `Rounded` arrays (`oracle.operations`) every operation rounds its result to a format. A program uses
operators, NumPy's functions in `OPERATIONS`, sums over the last axis, and the functions below. Where candidates may compute a
value in several legal ways, the program has each of them, as an argument of `either`; a new one is a line.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
        errors: what its rounding errors are: those of a library function, by its name in `numerics.functions`; or `exact`, for
            none; `rounded`, for that of the result; `sum` and `mean`, of the partial sums; `added`, of a sum in any order;
            `call`, of storing the result unless the step is fused.
        slopes: derivatives with respect to the operands, all of which are 1 if there are none.
    """

    errors: str
    slopes: tuple[Slope, ...] = ()


OPERATIONS: dict[Any, Operation] = {
    np.add: Operation("rounded"),
    np.subtract: Operation("rounded", (lambda y, a, b: 1.0, lambda y, a, b: -1.0)),
    np.multiply: Operation("rounded", (lambda y, a, b: b, lambda y, a, b: a)),
    np.true_divide: Operation("rounded", (lambda y, a, b: 1.0 / b, lambda y, a, b: -y / b)),
    np.negative: Operation("exact", (lambda y, a: -1.0,)),
    np.square: Operation("rounded", (lambda y, a: 2.0 * a,)),
    np.sqrt: Operation("rounded", (lambda y, a: 0.5 / y,)),
    np.maximum: Operation("exact", (lambda y, a, b: as_array(a > b, np.float64), lambda y, a, b: as_array(b >= a, np.float64))),
    np.exp: Operation("exp", (lambda y, a: y,)),
    np.log: Operation("log", (lambda y, a: 1.0 / a,)),
    np.tanh: Operation("tanh", (lambda y, a: 1.0 - y**2,)),
    special.erfc: Operation("rounded", (lambda y, a: -2.0 / np.pi**0.5 * np.exp(-np.square(a)),)),
    special.expit: Operation("sigmoid", (lambda y, a: y * (1.0 - y),)),
}
ERF = Operation("erf", (lambda y, a: 2.0 / np.pi**0.5 * np.exp(-np.square(a)),))
SUM = Operation("sum")
MEAN = Operation("mean", (lambda y, a, count: 1.0 / count,))
ADDED = Operation("added")
CALL = Operation("call")
INVERSE_ROOT = Operation("rsqrt", (lambda y, a: -0.5 * y**3,))
IN_KERNEL = Operation("exact")
SELECTED = Operation("exact", (lambda y, a, mask, other: as_array(mask, np.float64),))


class Number(np.lib.mixins.NDArrayOperatorsMixin, ABC):
    """An array that a program runs on, with what else is recorded of its elements.

    Attributes:
        value: the elements.
    """

    value: Array

    @abstractmethod
    def made(self, operation: Operation, value: Array, operands: tuple[Any, ...]) -> Any:
        """Return the result of an operation on some operands, with this value."""

    @abstractmethod
    def either(self, form: Form, wider: Sequence[Form], also: Sequence[Form]) -> Any:
        """Return a value of several legal forms (see the function `either`)."""

    def constants(self, numbers: tuple[float, ...]) -> tuple[Any, ...]:
        """Return the constants of a program (see the function `constants`)."""
        return numbers

    def together(self, function: Callable[..., Any], operands: tuple[Any, ...]) -> Any:
        """Return the result of a function that a single call computes (see the function `together`)."""
        return function(*operands)

    def __array_ufunc__(self, ufunc: Any, method: str, *operands: Any, **_: Any) -> Any:
        """Return the result of a universal function."""
        return self.made(OPERATIONS[ufunc], as_array(ufunc(*map(value_of, operands))), operands)

    def sum(self, axis: int = -1, keepdims: bool = True) -> Any:
        """Return the sum over the last axis, which remains with length 1."""
        return self.made(SUM, as_array(self.value.sum(-1, keepdims=True)), (self,))


def value_of(x: Any) -> Any:
    """Return the elements of an array or of a `Number`."""
    return x.value if isinstance(x, Number) else x


def either(x: Array, form: Form, *wider: Form, also: Sequence[Form] = ()) -> Array:
    """Return a value that candidates compute in one of several legal forms.

    Args:
        x: an operand, which tells on what the program runs.
        form: the function that returns the value.
        wider: further forms; the rounding errors are the largest of all, element by element.
        also: forms that are followed operation by operation alone, since their errors are no larger.
    """
    return cast(Any, x).either(form, wider, also) if isinstance(x, Number) else form()


def constants(x: Array, *numbers: float) -> tuple[float, ...]:
    """Return constants that candidates may round to the storage format before they use them; x as for `either`."""
    return x.constants(numbers) if isinstance(x, Number) else numbers


def together(function: Callable[..., Array], *operands: Array) -> Array:
    """Return the result of a function that candidates may compute by a single call, in float32, before it is rounded."""
    first = operands[0]
    return cast(Any, first).together(function, operands) if isinstance(first, Number) else function(*operands)


def erf(x: Array) -> Array:
    """Return the error function."""
    y = functions.erf(value_of(x))
    return x.made(ERF, y, (x,)) if isinstance(x, Number) else y


def inverse_root(x: Array) -> Array:
    """Return 1/√x, computed by a single function."""
    y = as_array(1.0 / np.sqrt(value_of(x)))
    return x.made(INVERSE_ROOT, y, (x,)) if isinstance(x, Number) else y


def call(x: Array) -> Array:
    """Return the result of a library call within a step, which is stored unless the step is fused."""
    return x.made(CALL, x.value, (x,)) if isinstance(x, Number) else x


def in_kernel(x: Array) -> Array:
    """Return x; operations on it round to the accumulation format under every arithmetic, as inside a fused kernel."""
    return x.made(IN_KERNEL, x.value, (x,)) if isinstance(x, Number) else x


def selected(x: Array, mask: Mask, other: float = 0.0) -> Array:
    """Return x where the mask is true, and another number elsewhere."""
    y = np.where(mask, value_of(x), other)
    return x.made(SELECTED, y, (x, mask, other)) if isinstance(x, Number) else y


def added(*terms: Array) -> Array:
    """Return the sum of arrays, which may be added in any order, each sum by a library call."""
    y = as_array(sum(map(value_of, terms[1:]), start=value_of(terms[0])))
    first = terms[0]
    return (
        first.made(ADDED, y, terms)
        if isinstance(first, Number) and len(terms) > 1
        else cast(Array, first if len(terms) == 1 else y)
    )


def row_mean(x: Array, lost: int = 0) -> Array:
    """Return the mean over the last axis, (..., 1), of which the divisor is the number of terms less `lost`.

    It has the bits of `numpy.mean`, without the time that this spends before the sum.
    """
    terms = value_of(x)
    divisor = terms.shape[-1] - lost
    y = as_array(np.add.reduce(terms, -1, keepdims=True) / divisor)
    return x.made(MEAN, y, (x, divisor)) if isinstance(x, Number) else y
