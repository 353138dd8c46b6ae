"""The rows of a parameter in which a candidate's result differs from the correct one, in words."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from conformance.faults.fault import with_parameters
from conformance.faults.fitted.fitted_fault import TINY, FitData, relative_error
from conformance.faults.fitted.lookup_words import DIGITS, element_that_differs
from conformance.faults.fitted.weight_structure import Assignment, Estimated, assignment
from conformance.numerics.formats import Array, Mask, as_array
from conformance.oracle import Step
from conformance.oracle.linear import Linear

Rows = npt.NDArray[np.int64]


Named = tuple[str, float, float]  # a text that ends before its last number, that number, and its standard deviation or 0


@dataclass(frozen=True)
class Elements:
    """The elements of a parameter of one element per output, (H,), as estimated, with their standard deviations."""

    values: Array
    deviations: Array


def wrong_outputs(step: Step, data: FitData, weight: Elements | None = None) -> Named:
    """Return which outputs of a linear layer or norm differ, as a text that names the parameter, and the first of them.

    The estimated and the expected value of the first one are given of a bias, which is the mean over the tokens, and of `weight`.

    An output is the result of one row of the weight and of one element of the bias. It differs if its largest error or its mean
    square is beyond the bound of a correct one. Others may differ by less than a rounding, so that the text gives a least number,
    unless a single one differs and the errors of all others together are within their bound. The bias is named if each wrong
    output differs by the same amount at every token.
    """
    axes = tuple(range(data.actual.ndim - 1))
    counts = np.maximum(data.judged.sum(axes), 1)
    residual = np.where(data.judged, data.actual - step.value, 0.0)
    moved = residual.sum(axes) / counts
    larger = np.maximum(_rms(data.actual, data, axes) / np.maximum(_rms(step.value, data, axes), TINY), 1.0)  # so is its rounding
    wrong, at_least = _beyond_errors(residual, counts, data)
    varies = _varies(np.where(data.judged, np.abs(residual - moved), 0.0) / (larger * data.allowed), counts, data)
    is_bias = "bias" in step.site.parameters and len(wrong) > 0 and not varies[wrong].any()
    which = "bias" if is_bias else "weight"
    of_row = not is_bias and step.site.parameters["weight"].ndim > 1
    text, first = _words(_names(step)[which], wrong, data.actual.shape[-1], of_row=of_row, at_least=at_least)
    if is_bias:
        noise = np.sqrt((np.where(data.judged, data.allowed, 0.0) ** 2).sum(axes)) / counts
        weight = Elements(step.site.parameters["bias"] + moved, noise)
    if weight is None or not len(wrong):
        return text, first, 0.0
    i = int(first)
    value, expected, deviation = weight.values[i], step.site.parameters[which][i], weight.deviations[i] * larger[i]
    if abs(value - expected) <= data.threshold * deviation:
        return text, first, 0.0
    return f"{text} {i}: expected {expected:.{DIGITS}g}, estimated", float(value), float(deviation)


def _beyond_errors(residual: Array, counts: Rows, data: FitData) -> tuple[Rows, bool]:
    """Return the outputs at which the residual, (…, O), is beyond errors, and whether others may be wrong as well.

    Args:
        residual: the residual, 0 at elements that are not judged.
        counts: the number of judged rows of each output, (O,).
        data: the candidate's data.
    """
    axes, outputs, rows = tuple(range(residual.ndim - 1)), residual.shape[-1], int(counts.max())
    squares = ((residual / data.allowed) ** 2).sum(axes) / counts
    is_wrong = (np.abs(residual) > data.largest * data.allowed).any(axes) | (squares > data.largest_mean_square(rows, outputs))
    wrong, rest = np.flatnonzero(is_wrong), squares[~is_wrong]
    return wrong, bool(rest.size and (len(wrong) > 1 or rest.mean() > data.largest_mean_square(rows)))


def _varies(left: Array, counts: Rows, data: FitData) -> Mask:
    """Return the outputs at which the residual without its mean, `left`, in units of the allowed error, is beyond errors."""
    axes, most = tuple(range(left.ndim - 1)), data.largest_mean_square(int(counts.max()), left.shape[-1])
    return as_array((left > 2.0 * data.largest).any(axes) | ((left**2).sum(axes) / counts > most))


def with_assignments(named: Named, step: Step, data: FitData, of: Mapping[str, Estimated]) -> Named:
    """Return what `wrong_outputs` has named, with the assignment that makes the parameters of `of`, by role, if there is one.

    If several parameters differ, all must have one assignment in common, and it must explain the result.
    """
    text, first, _ = named
    wrong = {role: estimated for role, estimated in of.items() if estimated.differs.any()}
    found = {role: assignment(estimated) for role, estimated in wrong.items()}
    made = {role: one for role, one in found.items() if one is not None}
    if not text or not found or len(made) < len(found) or len({one.code for one in made.values()}) != 1:
        return named
    (role, one), *others = made.items()
    if any(abs(other.value - one.value) > wrong[role].most * (other.deviation + one.deviation) for _, other in others):
        return named
    if not explains(step, data, made):
        return named
    likewise = f", and likewise {_names(step)[others[0][0]]}" if others else ""
    return f"{text} {first:.{DIGITS}g}{likewise}, as by {role}{one.code}", one.value, one.deviation


def explains(step: Step, data: FitData, made: Mapping[str, Assignment]) -> bool:
    """Return whether the layer or norm with assigned parameters, by role, has the candidate's result within errors.

    Estimates of parameters alone do not show it: if the inputs nearly depend on each other, estimates that are wrong have errors so
    large that they equal the right ones. An estimated number is fitted anew, to the result, of which it is the linear function.
    """
    (number, is_estimated), *_ = ((one.value, one.deviation > 0.0) for one in made.values())

    def layer(value: float) -> Step:
        return with_parameters(step, **{role: one.made(value) for role, one in made.items()})

    changed = layer(number)
    errors = _errors(step, changed, data)
    residual = np.where(data.judged, data.actual - changed.value, 0.0)
    if is_estimated:
        slope = np.where(data.judged, layer(number + 1.0).value - changed.value, 0.0)
        residual -= slope * float((slope * residual / errors**2).sum() / max((slope**2 / errors**2).sum(), TINY))
    counts = np.maximum(data.judged.sum(tuple(range(data.actual.ndim - 1))), 1)
    wrong, others = _beyond_errors(residual * data.allowed / errors, counts, data)
    return not len(wrong) and not others


def _errors(step: Step, changed: Step, data: FitData) -> Array:
    """Return the allowed errors of a layer or norm with other parameters, which are larger if its results are.

    The changed parameters are rounded to storage.
    """
    axes = tuple(range(data.actual.ndim - 1))
    larger = np.maximum(_rms(changed.value, data, axes) / np.maximum(_rms(step.value, data, axes), TINY), 1.0)
    unit = relative_error(data.allowed[data.judged], step.value[data.judged])
    weight, bias = (changed.site.parameters.get(role, np.zeros(())) for role in ("weight", "bias"))
    # Of a norm it is the square of the product of its weight and the normalized input.
    squares = step.inputs**2 @ (weight**2).T if isinstance(step, Linear) else (changed.value - bias) ** 2
    return as_array(np.sqrt((larger * data.allowed) ** 2 + unit**2 * (squares + bias**2)))


def _rms(x: Array, data: FitData, axes: tuple[int, ...]) -> Array:
    """Return the RMS along some axes, with 0 for elements that are not judged."""
    return as_array(np.sqrt(np.where(data.judged, x**2, 0.0).mean(axes)))


def wrong_table_rows(step: Step, data: FitData, read: Rows) -> tuple[str, float]:
    """Return which rows of a table differ, as a text that names the table, and an element of the first of them.

    A look-up does not round, so every difference counts. The element is the one that differs most; the text gives the expected
    value and ends before the estimated one.

    Args:
        step: the look-up.
        data: the candidate's data.
        read: index of the row that each token reads, (B, S).
    """
    wrong = (data.judged & (data.actual != step.value)).any(-1)
    rows = np.unique(np.broadcast_to(read, wrong.shape)[wrong])
    size = len(np.unique(np.broadcast_to(read, wrong.shape)[data.judged.any(-1)]))
    text, first = _words(_names(step)["weight"], rows, size, of_row=True, those=" that the batch reads")
    if not len(rows):
        return text, first
    at = tuple(np.argwhere(wrong & (np.broadcast_to(read, wrong.shape) == rows[0]))[0])
    element, value = element_that_differs(data.actual[at], step.value[at])
    return f"{text} {rows[0]}: {element}", value


def _names(step: Step) -> Mapping[str, str]:
    """Return Hugging Face's names of the step's parameters, by role."""
    return step.site.activation.parameters


def _words(
    tensor: str, wrong: Rows | Array, size: int, *, of_row: bool, those: str = "", at_least: bool = False
) -> tuple[str, float]:
    """Return how many rows or elements of a tensor are wrong, as a text that ends before the first of them, and the first.

    Args:
        tensor: name of the tensor.
        wrong: the wrong ones, ascending.
        size: number of those that are judged.
        of_row: whether they are rows; else they are elements.
        those: which ones are judged, in words.
        at_least: whether others may be wrong as well.
    """
    what = "row" if of_row else "element"
    if not len(wrong):
        return "", 0.0
    first = float(wrong[0])
    if at_least:
        return f"{tensor}, at least {len(wrong)} of the {size} {what}s{those}, among them {what}", first
    if len(wrong) == 1:
        return f"{tensor}, {what}", first
    many = f"all {size}" if len(wrong) == size else f"{len(wrong)} of the {size}"
    return f"{tensor}, {many} {what}s{those}, the first is {what}", first
