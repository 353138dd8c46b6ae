"""Traced programs: the Jacobians of an equation, and its rounding errors under any arithmetic.

Every operation of a program makes one independent error per result. Along the last axis, errors of the elements of a row reach the
program's result in one form alone, that of all norms, softmaxes and activation functions and of their gradients:

    e -> d · e + Σ_k a_k (b_k · e)

with a term for each sum through which they pass (`Effect`). Effects are computed once a program, from its end to its start. An
arithmetic then gives the errors their variances (to first order; Higham 2002, section 1.6). Errors that reach the result through
a single other operation are counted with that operation's. The others are the sources of `Roundings`: errors of the result itself,
of values that are used more than once, and of values that a row shares.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import combinations, count
from typing import Any

import numpy as np

from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array, as_array
from conformance.numerics.memo import cached_property
from conformance.oracle.accumulation import squared_partial_sums
from conformance.oracle.linear_maps import LinearMap, Source, shared_by_row
from conformance.oracle.program import IN_KERNEL, MEAN, OPERATIONS, SUM, Form, Number, Operation, value_of

_NUMBERS = count()
_EITHER = Operation(value_of, "either")
_BOUNDED = ("erf", "tanh")  # The errors of these have a fixed sign and are bounded; those of other functions are random.
_EXACT_BITS = 8  # A constant of so many bits is exact in every format.


@dataclass(eq=False)
class Traced(Number):
    """An array and the operation that computed it.

    Attributes:
        value: the elements.
        operation: the operation; None for an operand of the program.
        operands: its operands, arrays or `Traced`.
        forms: further legal forms of the value.
        start: number of the first operation of these forms.
        in_kernel: whether operations on it round to the accumulation format under every arithmetic.
        number: number of the operation, in the order of computation.
    """

    value: Array
    operation: Operation | None = None
    operands: tuple[Any, ...] = ()
    forms: Sequence[Form] = ()
    start: int = 0
    in_kernel: bool = False
    number: int = field(default_factory=lambda: next(_NUMBERS))

    def made(self, operation: Operation, operands: tuple[Any, ...]) -> "Traced":
        """Return the result of an operation."""
        inside = operation is IN_KERNEL or any(isinstance(x, Traced) and x.in_kernel for x in operands)
        return Traced(operation.of(operands), operation, operands, in_kernel=inside)

    def either(self, form: Form, wider: Sequence[Form], also: Sequence[Form]) -> "Traced":
        """Return the value of a form, with the largest errors of it and the wider ones."""
        start, first = next(_NUMBERS), form()
        assert isinstance(first, Traced)
        return Traced(first.value, _EITHER, (first,), wider, start, first.in_kernel) if wider else first

    def again(self, form: Form) -> Array:
        """Return another computation of the value."""
        return form()

    @property
    def is_row(self) -> bool:
        """Whether there is one number per row."""
        return not self.value.ndim or self.value.shape[-1] == 1

    @cached_property
    def inputs(self) -> tuple[tuple["Traced", Any], ...]:
        """The operands that are traced, each with the derivative with respect to it."""
        values, slopes = tuple(map(value_of, self.operands)), self.operation.slopes if self.operation else ()
        traced = ((i, x) for i, x in enumerate(self.operands) if isinstance(x, Traced))
        return tuple((x, slopes[i](self.value, *values) if slopes else 1.0) for i, x in traced)

    @cached_property
    def alternatives(self) -> tuple["Trace", ...]:
        """The traces of all forms, each from the values that the forms are computed from."""
        results = (self.operands[0], *(form() for form in self.forms))
        return tuple(Trace(result, after=self.start) for result in results)

    @property
    def constant(self) -> bool:
        """Whether the result is a product or quotient with a constant that is itself rounded."""
        return self._factor is not None and not _bits(self._factor) <= _EXACT_BITS

    @property
    def _factor(self) -> float | None:
        products = (OPERATIONS[np.multiply], OPERATIONS[np.true_divide])
        return next((x for x in self.operands if isinstance(x, float)), None) if self.operation in products else None

    @np.errstate(over="ignore")
    def variance(self, arithmetic: Arithmetic) -> Array | float:
        """Return the variance of the operation's own rounding error."""
        kind = self.operation.errors if self.operation else "exact"
        inner, wide = arithmetic.accumulate if self.in_kernel else arithmetic.elementwise_format, arithmetic.accumulate
        u2, a2 = (f.unit_roundoff**2 / 3.0 for f in (inner, wide))
        if kind in ("exact", "rescaled") or (self._factor is not None and _bits(self._factor) == 1):
            return 0.0
        if kind == "rounded":  # A half-precision intermediate may be subnormal.
            return self._times(u2) + inner.floor_variance if inner != wide else self._times(u2)
        if kind == "mean":
            return as_array(a2 / self.operands[1] ** 2 * self._partial_sums + self._times(u2))
        if kind == "sum":
            return a2 * self._partial_sums + self._times(u2 if inner != wide else 0.0)
        if kind == "added":
            return sum_variance(tuple(map(value_of, self.operands)), arithmetic)
        if kind == "call":
            return arithmetic.call_rounding_variance(self.value)
        if kind == "either":
            first, *others = (trace.variance(arithmetic) for trace in self.alternatives)
            return np.maximum(reduce(np.maximum, others) - first, 0.0)
        own = self._of_function(kind, arithmetic)
        return own if kind in _BOUNDED else own + self._times(u2)

    def _times(self, u2: float) -> Array:
        """Return u² y² for the value y."""
        squares = np.square(self.value)
        squares *= u2
        return squares

    def _of_function(self, name: str, arithmetic: Arithmetic) -> Array | float:
        """Return the variance of the random error of a library function, which is evaluated in the accumulation format."""
        if name == "tanh":
            return arithmetic.inner_rounding_variance(self.value) + tanh_variance(value_of(self.operands[0]), arithmetic)
        if name in _BOUNDED:
            return arithmetic.inner_rounding_variance(self.value)
        if name == "exp_by_two":
            relative = np.square(value_of(self.operands[0]))
            relative *= arithmetic.accumulate.unit_roundoff**2 / 3.0
            relative += arithmetic.functions.relative("exp", arithmetic.accumulate) ** 2 / 3.0
            return as_array(relative * np.square(self.value))
        if name in ("exp", "rsqrt"):
            return self._times(arithmetic.functions.relative(name, arithmetic.accumulate) ** 2 / 3.0)
        return as_array(arithmetic.functions.error(name, self.value, arithmetic.accumulate) ** 2 / 3.0)

    @cached_property
    def _partial_sums(self) -> Array:
        return squared_partial_sums(self.operands[0].value)

    @property
    def reduces(self) -> bool:
        """Whether the result is a sum or a mean of several elements."""
        return self.operation in (SUM, MEAN) and not self.operands[0].is_row

    def bound(self, arithmetic: Arithmetic, fused: str) -> Array | float:
        """Return the largest error of fixed sign that the operation makes: of a bounded function, or of a rounded constant.

        Args:
            arithmetic: the arithmetic model.
            fused: name in the tables of the function that a kernel computes in place of the whole program; empty if there is none.
        """
        name, wide = self.operation.errors if self.operation else "", arithmetic.accumulate
        if name in _BOUNDED:
            error = arithmetic.functions.error(name, self.value, wide)
            return np.maximum(error, arithmetic.functions.absolute(fused, wide), out=error) if fused else error
        if name == "rescaled":
            return wide.unit_roundoff * self.value
        if self.operation is _EITHER:
            return reduce(np.maximum, (as_array(trace.bound(arithmetic)) for trace in self.alternatives[1:]))
        return wide.unit_roundoff * np.abs(self.value) if self.constant else 0.0


def _bits(number: float) -> int:
    """Return the number of significant bits."""
    numerator = abs(math.frexp(number)[0]).as_integer_ratio()[0]
    return numerator.bit_length()


@dataclass(frozen=True, eq=False)
class Effect:
    """The linear map J from the errors of an operation to the result of the program, along the last axis.

    Attributes:
        shape: shape of the operation's result.
        diagonal: d.
        terms: a and b of each sum that the errors pass, by its number.
        column: for one error a row, (..., 1): its effect on the row.
    """

    shape: tuple[int, ...]
    diagonal: Array | float = 0.0
    terms: Mapping[int, tuple[Array, Array | float]] = field(default_factory=dict)
    column: Array | None = None

    def variance(self, v: Array | float) -> Array:
        """Return the diagonal of J diag(v) Jᵀ, in which all correlations within a row are counted."""
        if self.column is not None:
            return as_array(np.square(self.column) * v)
        if not self.terms:
            return as_array(np.square(self.diagonal) * v)
        v, total = np.broadcast_to(v, self.shape), np.zeros(())
        if self.reaches:
            total = self.diagonal * v * (self.diagonal + 2.0 * sum(a * b for a, b in self.terms.values()))
        for a, b in self.terms.values():
            total = total + np.square(a) * (np.square(b) * v).sum(-1, keepdims=True)
        for (a, b), (c, d) in combinations(self.terms.values(), 2):
            total = total + 2.0 * a * c * (b * d * v).sum(-1, keepdims=True)
        return as_array(np.maximum(total, 0.0))

    def adjoint(self, w: Array) -> Array:
        """Return Jᵀ w."""
        if self.column is not None:
            reached = self.column * w
            return as_array(reached.sum(-1, keepdims=True) if self.shape else reached.sum())
        of_terms = (b * (a * w).sum(-1, keepdims=True) for a, b in self.terms.values())
        return as_array(np.broadcast_to(sum(of_terms, start=self.diagonal * w if self.reaches else 0.0), self.shape))

    def of(self, e: Array | float) -> Array:
        """Return J e."""
        if self.column is not None:
            return as_array(self.column * e)
        of_terms = (a * (b * np.broadcast_to(e, self.shape)).sum(-1, keepdims=True) for a, b in self.terms.values())
        return as_array(sum(of_terms, start=self.diagonal * e if self.reaches else 0.0))

    @property
    def reaches(self) -> bool:
        """Whether errors reach the result other than through sums."""
        return not _is_zero(self.diagonal)

    @property
    def map(self) -> LinearMap:
        """The map as the Jacobian of a step."""
        slope = None if self.terms or self.column is not None else self.diagonal
        return LinearMap(self.variance, self.adjoint, slope)

    def plus(self, other: "Effect") -> "Effect":
        """Return the sum of two effects."""
        terms = dict(self.terms)
        for number, (a, b) in other.terms.items():
            terms[number] = (a, terms[number][1] + b) if number in terms else (a, b)
        column = other.column if self.column is None else self.column + other.column if other.column is not None else self.column
        return Effect(self.shape, self.diagonal + other.diagonal, terms, column)


class Trace:
    """The operations of a program's result, and their effects on it.

    Attributes:
        result: the result.
    """

    def __init__(self, result: Traced, after: int = -1) -> None:
        """Collect the operations of a result; of those up to the number `after`, the results count as exact."""
        self.result = result
        found, todo = {result.number: result}, [result]
        while todo:
            new = {x.number: x for x in todo.pop().operands if isinstance(x, Traced) and x.number > after}
            todo += [x for number, x in new.items() if number not in found]
            found |= new
        self._operations = [found[number] for number in sorted(found)]
        y = result.value
        self._effects = {result.number: Effect(y.shape, column=np.ones_like(y)) if result.is_row else Effect(y.shape, 1.0)}
        self._uses = Counter(x.number for one in self._operations for x in one.operands if isinstance(x, Traced))

    @cached_property
    def _readers(self) -> dict[int, list[tuple[Traced, Any]]]:
        """The operations on the result of each operation and operand, by its number, with their derivatives."""
        readers: dict[int, list[tuple[Traced, Any]]] = {}
        for one in self._operations:
            for x, slope in one.inputs:
                readers.setdefault(x.number, []).append((one, slope))
        return readers

    def reaches(self, x: Traced) -> bool:
        """Return whether the result depends on an operation or operand."""
        return x.number in self._effects or x.number in self._readers

    def effect(self, x: Traced) -> Effect:
        """Return the effect of the errors of an operation or operand on the result, which depends on it."""
        if x.number not in self._effects:
            each = (_before(one, x, slope, self.effect(one)) for one, slope in self._readers[x.number])
            self._effects[x.number] = reduce(Effect.plus, each)
        return self._effects[x.number]

    def _is_counted_with(self, one: Traced, x: Traced) -> bool:
        """Return whether the errors of x reach the result through the operation `one` alone, each element's independently."""
        return self._uses[x.number] == 1 and (one.is_row or not x.is_row)

    def _variances(self, arithmetic: Arithmetic) -> Iterator[tuple[Traced, Array | float]]:
        """Yield the operations that are sources, with the variance of their errors; the result is the last."""
        counted: dict[int, Array | float] = {}
        for one in self._operations:
            total = one.variance(arithmetic)
            for x, slope in one.inputs:
                if x.number in counted and self._is_counted_with(one, x):
                    arriving = counted.pop(x.number)
                    arriving = arriving if _is_one(slope) else np.square(slope) * arriving
                    if one.reduces:
                        arriving = np.broadcast_to(arriving, x.value.shape).sum(-1, keepdims=True)
                    total = arriving if _is_zero(total) else total + arriving
            if not _is_zero(total):
                counted[one.number] = total
        for one in self._operations[:-1]:
            if one.number in counted:
                yield one, counted[one.number]
        yield self.result, counted.get(self.result.number, 0.0)

    @np.errstate(over="ignore", invalid="ignore")
    def variance(self, arithmetic: Arithmetic) -> Array:
        """Return the elementwise variance of the result's rounding errors."""
        return as_array(sum(self.effect(one).variance(v) for one, v in self._variances(arithmetic)))

    @np.errstate(over="ignore", invalid="ignore")
    def sources(self, arithmetic: Arithmetic) -> tuple[Array | float, tuple[Source, ...]]:
        """Return the variance of the result's elementwise errors, and the other sources."""
        *others, (_, own) = self._variances(arithmetic)
        return own, tuple(self._source(one, as_array(v)) for one, v in others)

    def _source(self, one: Traced, variance: Array) -> Source:
        effect = self.effect(one)
        if effect.column is None or not effect.shape:
            return Source(np.broadcast_to(variance, effect.shape), effect.map)
        return Source(variance, shared_by_row(effect.column), effect.column)

    def bound(self, arithmetic: Arithmetic, fused: str = "") -> Array | float:
        """Return the largest error of fixed sign; see `Traced.bound`."""
        bounds = ((one, one.bound(arithmetic, fused)) for one in self._operations)
        return sum((np.abs(self.effect(one).of(bound)) for one, bound in bounds if not _is_zero(bound)), start=0.0)


def _is_zero(x: Array | float) -> bool:
    return not np.ndim(x) and not x


def _is_one(x: Array | float) -> bool:
    return isinstance(x, float) and x == 1.0


def _before(one: Traced, x: Traced, slope: Any, effect: Effect) -> Effect:
    """Return the effect of x through an operation on it with this slope, given that of the operation's result."""
    shape = x.value.shape
    if _is_one(slope) and shape == effect.shape:
        return effect
    if effect.column is not None and one.reduces:
        return Effect(shape, terms={one.number: (effect.column, slope)})
    if effect.column is not None:
        return Effect(shape, column=effect.column * slope)
    if x.is_row:  # The row shares what each of its elements reads.
        shared = (a * (b * np.broadcast_to(slope, one.value.shape)).sum(-1, keepdims=True) for a, b in effect.terms.values())
        return Effect(shape, column=sum(shared, start=np.broadcast_to(effect.diagonal * slope, one.value.shape)))
    return Effect(
        shape, effect.diagonal * slope if effect.reaches else 0.0, {n: (a, b * slope) for n, (a, b) in effect.terms.items()}
    )


def sum_variance(terms: Sequence[Array], arithmetic: Arithmetic) -> Array:
    """Return the error variance of adding up n arrays in any order: u²/3 · partial² for each addition.

    The order is unknown, so the partial sum of k terms, 2 ≤ k ≤ n, is the largest over all choices of k of them, elementwise.
    Partial sums that are results of a library call are rounded to storage as well.
    """
    u, variance = arithmetic.elementwise_format.unit_roundoff, np.zeros_like(terms[0])
    for number in range(2, len(terms) + 1):
        partial = reduce(np.maximum, (np.abs(sum(some[1:], start=some[0])) for some in combinations(terms, number)))
        variance = variance + u**2 / 3.0 * partial**2 + arithmetic.call_rounding_variance(partial)
    return variance


def tanh_variance(x: Array, arithmetic: Arithmetic) -> Array | float:
    """Return the variance of the roundings inside tanh(x); 0 unless every operation rounds to storage.

    Of the forms without cancellation, −t/(t + 2) with t = expm1(−2|x|) has the largest errors: those of t and of t + 2.
    """
    if not arithmetic.rounds_inside:
        return 0.0
    e = np.exp(-2.0 * np.abs(x))
    of_t, of_sum = (arithmetic.inner_rounding_variance(stored) for stored in (1.0 - e, 1.0 + e))
    return as_array((4.0 * of_t / (1.0 + e) ** 2 + of_sum * ((1.0 - e) / (1.0 + e)) ** 2) / (1.0 + e) ** 2)
