"""Fitted edits of the result: the right numbers in other places, zeros, and numbers or functions in place of the right ones.

The places of a result are the slices along one of its axes. An edit describes a result that no mistake and no other operand
explains.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from conformance.faults.changes import Altered, Rearranged
from conformance.faults.fault import FUNCTIONS
from conformance.faults.fitted.differences import MOST_FEATURES, Estimated, assignment, read_instead
from conformance.faults.fitted.fitted_fault import LEAST_ROWS, Fit, FitData, Fitted, nearest_slices, relative_error
from conformance.numerics.formats import Array, as_array
from conformance.oracle import Step
from conformance.oracle.equations import EQUATIONS

Number = TypeVar("Number", bound=np.generic)

_FORWARD = frozenset(k for k in EQUATIONS if not ("_backward" in k or k.endswith(("_gradient", "_loss"))))
_COMPARED = 1024  # A limit of work: elements by which slices are compared; what is fitted is judged on all.
_DEGREE, _POINTS = 11, 6  # A spline's degree, and inputs between its knots: most of the results test the function.


@dataclass(frozen=True)
class _View:
    """A result as slices: those along `axis` of the result reshaped to `shape`."""

    name: str
    shape: tuple[int, ...]
    axis: int

    def cut(self, array: npt.NDArray[Number]) -> npt.NDArray[Number]:
        """Return the slices of an array of the result's shape, as rows."""
        slices = np.moveaxis(array.reshape(self.shape), self.axis, 0)
        return slices.reshape(len(slices), -1)

    def joined(self, slices: Array) -> Array:
        """Return the array of shape `shape` that has these slices."""
        others = (*self.shape[: self.axis], *self.shape[self.axis + 1 :])
        return np.moveaxis(slices.reshape(self.shape[self.axis], *others), 0, self.axis)


def _views(step: Step) -> Iterator[_View]:
    """Yield the result by head, by each of its axes, and by token."""
    row, shape, size = step.site.activation, step.value.shape, step.site.architecture.head_size
    if row.axes == ("batch", "position", "feature"):
        if "attention.self." in row.name and shape[-1] % size == 0:
            yield _View("head", (*shape[:-1], shape[-1] // size, size), 2)
        yield _View("token", (shape[0] * shape[1], shape[2]), 0)
    for axis, name in enumerate(row.axes):
        yield _View(name, shape, axis)


def _reordered(step: Step, data: FitData, view: _View) -> Fit | None:
    """Return the step with, in place of each wrong slice, the nearest one, by elements that are judged in every slice."""
    judged, right, actual = view.cut(data.judged), view.cut(step.value), view.cut(data.actual)
    common = np.flatnonzero(judged[judged.any(1)].all(0))
    common = common[np.linspace(0, len(common) - 1, min(len(common), _COMPARED)).astype(int)]
    beyond = data.judged & (np.abs(data.actual - step.value) > data.largest * data.allowed)
    wrong, there, own = as_array(view.cut(beyond).any(1)), as_array(judged.any(1)), np.arange(len(right))
    if not wrong.any() or not 1 < len(own) <= MOST_FEATURES or len(common) < LEAST_ROWS or not data.is_finite:
        return None
    order = own.copy()
    order[wrong] = nearest_slices(right[:, common], actual[wrong][:, common])
    moved = int((order != own).sum())
    text, last = read_instead(order, own, there)
    faulty = Rearranged(step, lambda x: view.joined(view.cut(x)[order]).reshape(x.shape))
    return Fit(faulty, moved, f"by {view.name}: {text}", last) if moved else None


def _assigned(step: Step, data: FitData) -> Iterator[Fit]:
    """Yield the result with an assignment to some slices of it."""
    unit = relative_error(data.allowed[data.judged], step.value[data.judged])
    deviation = np.where(data.judged, np.hypot(data.allowed, unit * data.actual), np.inf)
    value, most = np.where(data.judged, data.actual, step.value), data.most_deviations(step.value.size)
    for view in _views(step):
        estimated = Estimated(view.cut(step.value), view.cut(value), view.cut(deviation), most)
        its = assignment(estimated, of_rows=True)
        if its is not None:
            made = view.joined(its.applied(its.value)).reshape(step.value.shape)
            where = "" if its.code.startswith("[:]") else f" by {view.name}"
            yield Fit(Altered(step, lambda _, made=made: made), its.free, f"result{where}{its.code}", its.value)  # type: ignore[misc]


def _exchanged(step: Step, data: FitData) -> Iterator[Fit]:
    """Yield the result with two axes exchanged, transposed or read in another memory order, if that is nearer."""
    axes, shape = step.site.activation.axes, step.value.shape
    for i, j in combinations((k for k, size in enumerate(shape) if size > 1), 2):
        faulty = Rearranged(step, lambda x, i=i, j=j: x.swapaxes(i, j).reshape(x.shape))  # type: ignore[misc]
        if data.distance(faulty.value) < data.distance(step.value):
            yield Fit(faulty, 2, f"exchanged axes {axes[i]} and {axes[j]}, the axis", float(j))


def _terms(step: Step) -> Iterator[tuple[str, Array]]:
    """Yield the inputs, the parameters and 1, which may have been added to a result, or stand in its place."""
    for name, parent in zip(step.site.activation.parents, step.parents, strict=True):
        if parent.shape == step.value.shape:
            yield name, parent
    for role, parameter in step.site.parameters.items():
        if parameter.shape == step.value.shape[-1:]:
            yield f"the {role}", np.broadcast_to(parameter, step.value.shape)
    yield "1", np.ones_like(step.value)


def _combined(step: Step, data: FitData) -> Iterator[Fit]:
    """Yield the sum, by least squares, of multiples of the right result and of the term that brings it nearest."""
    weight = np.where(data.judged, 1.0 / data.allowed, 0.0)[data.judged]
    if weight.size <= 2 * LEAST_ROWS:
        return
    tried = []
    for name, term in _terms(step):
        columns = np.stack([x[data.judged] * weight for x in (step.value, term)], 1)
        factors, left, rank, _ = np.linalg.lstsq(columns, data.actual[data.judged] * weight, rcond=None)
        if rank == 2 and left.size:
            tried.append((float(left[0]), name, term, factors, np.sqrt(np.diagonal(np.linalg.inv(columns.T @ columns)))))
    if tried:
        _, name, term, (a, b), spread = min(tried, key=lambda each: each[0])
        faulty = Altered(
            step, lambda inner: a * inner.value + b * term, lambda _, arithmetic: arithmetic.storage.rounding_variance(b * term)
        )
        is_whole, is_absent = (abs(a - number) <= data.threshold * spread[0] for number in (1.0, 0.0))
        right = "the right one plus " if is_whole else "" if is_absent else f"{a:.4g} times the right one plus "
        yield Fit(faulty, 2, f"{right}{name} times", float(b), float(spread[1]))


def _result(step: Step, data: FitData) -> Fit | None:
    """Return the result with the edit of the fewest numbers, which is tried first."""
    if not data.is_finite or step.value.ndim < 2:
        return None
    moved = (_reordered(step, data, view) for view in _views(step))
    fits = [*_assigned(step, data), *_exchanged(step, data), *_combined(step, data), *filter(None, moved)]
    fits.sort(key=lambda fit: fit.free)
    return replace(fits[-1], simpler=tuple(fits[:-1])) if fits else None


def _function(step: Step, data: FitData) -> Fit | None:
    """Return another function of the same input, a smooth one: a spline by least squares, with few knots."""
    from scipy.interpolate import make_lsq_spline  # slow to import and used only here

    (parent,) = step.parents
    unit = relative_error(data.allowed[data.judged], step.value[data.judged])
    x, y, weight = parent[data.judged], data.actual[data.judged], 1.0 / np.hypot(data.allowed, unit * data.actual)[data.judged]
    order, (distinct, first) = np.argsort(x, kind="stable"), np.unique(x, return_index=True)
    knots = distinct[_DEGREE + 1 : -_DEGREE - 1][::_POINTS]
    if len(knots) < 2 or not data.is_finite:
        return None
    low, high = (np.repeat(end, _DEGREE + 1) for end in (distinct[0], distinct[-1]))
    spline = make_lsq_spline(x[order], y[order], np.concatenate([low, knots, high]), _DEGREE, weight[order])
    examples = [f"{y[i]:.4g} of {x[i]:.4g}" for i in first[np.linspace(0, len(distinct) - 1, 5).astype(int)]]
    faulty = Altered(step, lambda inner: np.where(data.judged, spline(inner.parents[0]), inner.value))
    return Fit(faulty, len(knots) + _DEGREE + 1, f"such as {', '.join(examples)}; number of knots", len(knots))


FITTED_RESULTS = (
    Fitted("result-other", _FORWARD, "the equation holds with an edit of its result", _result, estimates="the edit",
           is_description=True, of_result=True, per_token=True),
    Fitted("function-other", FUNCTIONS | {"tanh"}, "the equation holds with another function of the same input", _function,
           estimates="the function", is_description=True, of_result=True, per_token=True),
)  # fmt: skip
