"""Steps written as elementary operations, each rounded to a half-precision format, in the usual orders of operations.

Rounding errors in a given order are deterministic: a candidate that writes such a step as elementary operations obtains one of a
few results. There are several results per order only where the value of a library function, or of a sum accumulated in float32 in
any order, is so close to a tie that its error decides the rounding; the result nearest to the candidate's is then used.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import FORMATS, Array, as_array
from conformance.numerics.thresholds import LARGEST_DEVIATION
from conformance.oracle.accumulation import squared_partial_sums
from conformance.oracle.linear import Linear
from conformance.oracle.program import MEAN, SUM, Form, Number, Operation, value_of
from conformance.oracle.step import ProgramStep, Step
from conformance.oracle.trace import Trace, Traced

Script = tuple[int, ...]  # choices of a program, in turn
Computed = tuple[Array, Array | None]
KEPT = 2**26  # bytes of results that orders have in common
SINGLE = FORMATS["float32"]
IN_FLOAT32 = Arithmetic(SINGLE, SINGLE, "modular")


def by_operations(step: Step, arithmetic: Arithmetic, actual: Array) -> Iterator[Array]:
    """Yield for each order of operations the result nearest to `actual`, with every operation rounded to the storage format.

    Orders are defined for linear layers and for steps whose program is followed (`ProgramStep.followed`). Nothing is yielded for
    other steps, or if the storage format is not narrower than the accumulation format.
    """
    if not arithmetic.is_mixed:
        return
    with np.errstate(all="ignore"):  # A result that overflows in the format is not correct and matches nothing.
        if isinstance(step, Linear):
            yield from _linear(step, arithmetic, actual)
        elif isinstance(step, ProgramStep) and step.followed:
            yield from _followed(step, arithmetic, actual)


def _linear(step: Linear, arithmetic: Arithmetic, actual: Array) -> Iterator[Array]:
    """Yield x Wᵀ, accumulated in float32 and rounded, plus b, as torch computes it for inputs that are not contiguous in memory."""
    if "bias" in step.site.parameters:
        r, accumulated = arithmetic.storage.round, replace(IN_FLOAT32, summation=arithmetic.summation)
        error = LARGEST_DEVIATION * np.sqrt(step.roundings(accumulated).variance())
        products = _sides(step.value - step.bias, error, r)
        yield _nearest(actual, [r(product + step.bias) for product in products])


def _followed(step: ProgramStep, arithmetic: Arithmetic, actual: Array) -> Iterator[Array]:
    """Yield the result of every order of a program: with the alternatives of every row, and of every element, that are nearest."""
    order = _Order(arithmetic)
    parents = tuple(Rounded(parent, order) for parent in step.parents)

    @lru_cache(maxsize=4)  # The first run of an order is that of its first rows and elements as well.
    def run(*scripts: Script) -> tuple[Array, tuple[tuple[Script, ...], ...]]:
        order.forms, order.rows, order.elements = map(_Choices, scripts)
        result = as_array(value_of(step.program(*parents)))
        return result, tuple(tuple(choices.others) for choices in (order.forms, order.rows, order.elements))

    def every(*fixed: Script) -> Iterator[Script]:
        todo: list[Script] = [()]
        while todo:
            script = todo.pop()
            todo += run(*fixed, script, *[()] * (2 - len(fixed)))[1][len(fixed)]
            yield script

    def of_rows(form: Script, row: Script) -> Array:
        return _nearest(actual, [run(form, row, element)[0] for element in every(form, row)])

    try:
        for form in every():
            yield _nearest(actual, [of_rows(form, row) for row in every(form)], by_row=True)
    finally:
        order.forget()


class _Choices:
    """Choices that a program makes in turn: those of a script, then the first of the options."""

    def __init__(self, script: Script = ()) -> None:
        self.script, self._options = script, list[int]()

    def made(self, options: int) -> int:
        """Return the next choice, of so many options."""
        if options == 1:
            return 0
        self._options.append(options)
        return self.script[len(self._options) - 1] if len(self._options) <= len(self.script) else 0

    @property
    def others(self) -> Iterator[Script]:
        """The scripts that differ from these choices first where this script ended."""
        first = len(self.script)
        for i, options in enumerate(self._options[first:], first):
            yield from ((*self.script, *[0] * (i - first), other) for other in range(1, options))


class _Order:
    """An order of operations of a program, which is run once for each order.

    Results that several orders have in common are computed once: a result is that of an operation on the same objects.

    Attributes:
        arithmetic: the arithmetic.
        forms, rows, elements: the choices of forms, and of the roundings of shared numbers and of elements.
    """

    forms: _Choices
    rows: _Choices
    elements: _Choices

    def __init__(self, arithmetic: Arithmetic) -> None:
        self.arithmetic = arithmetic
        self._computed: dict[tuple[Hashable, ...], tuple[tuple[Rounded, ...], tuple[Any, ...]]] = {}
        self._bytes = 0

    def once(self, function: Hashable, operands: tuple[Any, ...], compute: Callable[[], Computed]) -> "Rounded":
        """Return one of the possible roundings of a result, which is computed once for the same operands.

        Args:
            function: what identifies the function of the operands.
            operands: the operands.
            compute: function that returns the result before it is rounded, and its largest error; None if it is not rounded again.
        """
        key = (function, *(x if isinstance(x, float | int) else id(x) for x in operands))
        if key not in self._computed:
            value, error = compute()
            round_ = self.arithmetic.storage.round
            sides = (round_(value),) if error is None else _sides(value, error, round_)
            self._bytes += sum(side.nbytes for side in sides)
            if self._bytes > KEPT:
                self.forget()
            self._computed[key] = tuple(Rounded(side, self) for side in sides), operands  # They exist as long as their ids count.
        alternatives, _ = self._computed[key]
        choices = self.rows if alternatives[0].value.shape[-1:] == (1,) else self.elements
        return alternatives[choices.made(len(alternatives))]

    def forget(self) -> None:
        """Free all results, which refer to this order, so that they would exist until the next garbage collection."""
        self._computed.clear()
        self._bytes = 0


@dataclass(eq=False)
class Rounded(Number):
    """An array of which every operation rounds its result to the storage format of an order."""

    value: Array
    order: _Order

    def made(self, operation: Operation, operands: tuple[Any, ...]) -> "Rounded":
        """Return the rounded result of an operation."""
        if operation.errors == "added" and len(operands) > 2:
            last = self.order.forms.made(len(operands))
            others = self._of(operation, tuple(term for i, term in enumerate(operands) if i != last))
            return self._of(operation, (others, operands[last]))
        return self._of(operation, operands)

    def _of(self, operation: Operation, operands: tuple[Any, ...]) -> "Rounded":
        def computed() -> Computed:
            value = operation.of(operands)
            if operation.errors in ("exact", "rescaled", "call", "rounded", "added", "rsqrt"):
                return value, None
            return value, self._error(operation, value, tuple(map(value_of, operands)))

        return self.order.once(operation, operands, computed)

    def _error(self, operation: Operation, value: Array, operands: tuple[Any, ...]) -> Array:
        """Return the largest error of a result before it is rounded, in float32."""
        if operation in (SUM, MEAN):
            divisor = 1.0 if operation is SUM else operands[1]
            return as_array(LARGEST_DEVIATION * SINGLE.unit_roundoff * np.sqrt(squared_partial_sums(operands[0]) / 3.0) / divisor)
        if operation.errors == "sigmoid":
            return SINGLE.ulp(value)
        return self.order.arithmetic.functions.error(operation.errors, value, SINGLE)

    def either(self, form: Form, wider: Sequence[Form], also: Sequence[Form]) -> Any:
        """Return the value of one of the forms that are followed operation by operation."""
        forms = (form, *also)
        return forms[self.order.forms.made(len(forms))]()

    def constants(self, numbers: tuple[float, ...]) -> tuple[float, ...]:
        """Return the constants, or the constants rounded to the format."""
        stored = self.order.forms.made(2)
        return tuple(float(self.order.arithmetic.storage.round(as_array(x))) for x in numbers) if stored else numbers

    def together(self, function: Callable[..., Any], operands: tuple[Any, ...]) -> Any:
        """Return the rounded result of a function in float32, whose error is up to `LARGEST_DEVIATION` of its deviations."""

        def computed() -> Computed:
            trace = Trace(function(*(Traced(x.value) if isinstance(x, Rounded) else x for x in operands)))
            error = LARGEST_DEVIATION * np.sqrt(trace.variance(IN_FLOAT32)) + trace.bound(IN_FLOAT32)
            return trace.result.value, as_array(error)

        return self.order.once(function.__code__, operands, computed)


def _sides(x: Array, error: Array, r: Callable[[Array], Array]) -> tuple[Array, ...]:
    """Return the possible roundings of numbers x with an error of up to `error`.

    There is a single array if no number can be rounded in different ways, and three arrays otherwise.
    """
    low, middle, high = r(x - error), r(x), r(x + error)
    return (middle,) if np.array_equal(low, high) else (middle, low, high)


def _nearest(actual: Array, alternatives: Sequence[Array], *, by_row: bool = False) -> Array:
    """Return the alternative nearest to `actual`, for each element or for each row of the last axis."""
    best, *others = alternatives
    for other in others:
        distances = [np.abs(actual - y) for y in (best, other)]
        if by_row:
            distances = [d.sum(-1, keepdims=True) for d in distances]
        best = np.where(distances[1] < distances[0], other, best)
    return best
