"""Fitted faults of weights that are whole but misplaced: another module's, read with an offset, or with rotated inputs.

No element of a weight is fitted, so a few rows suffice, such as the pooler's.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np

from conformance.faults.altered import Altered
from conformance.faults.fault import LINEARS, with_parameters
from conformance.faults.fitted.fitted_fault import MOST_ROWS, Fit, FitData, Fitted
from conformance.numerics.arrays import as_array
from conformance.numerics.formats import Array
from conformance.oracle import Step
from conformance.oracle.linear import Linear

OFFSETS = tuple(sign * 2**k for k in range(7) for sign in (1, -1))  # Up to 64 elements, 256 bytes of float32.


def _nearest(step: Linear, data: FitData, variants: Iterable[int], made: Callable[[int], Mapping[str, Array]]) -> int | None:
    """Return the variant of the parameters that leaves least of the residual on some rows; None if there are no variants.

    Args:
        step: the correct layer.
        data: the candidate's data.
        variants: the numbers of the variants.
        made: function from such a number to the weight, and the bias if it differs; called for one at a time, to save memory.
    """
    inputs, found, allowed = (a[:MOST_ROWS] for a in data.rows(step.inputs, data.actual, data.allowed))

    def left(variant: int) -> float:
        parameters = made(variant)
        value = inputs @ parameters["weight"].T + parameters.get("bias", step.bias)
        squares = ((found - value) / allowed) ** 2
        return float(np.median(squares.sum(0)))  # Not the sum: a few outputs of an offset weight are not known.

    return min(variants, key=left, default=None) if np.isfinite(found).all() else None


def _of_module(step: Step, data: FitData) -> Fit | None:
    """Return the layer with the parameters of another module of the same roles and shapes, the nearest one."""
    assert isinstance(step, Linear)
    others = list(_alike(step, data))
    best = _nearest(step, data, range(len(others)), lambda i: others[i][1])
    if best is None:
        return None
    name, parameters = others[best]
    return Fit(with_parameters(step, **parameters), 1, f"{name}, number of outputs", step.value.shape[-1])


def _alike(step: Step, data: FitData) -> Iterator[tuple[str, Mapping[str, Array]]]:
    """Yield name and parameters of each other linear layer with parameters of the same roles and shapes."""
    if data.network is None:
        return
    shapes = {role: p.shape for role, p in step.site.parameters.items()}
    for name, row in data.network.table.items():
        if row.kind in LINEARS and name != step.site.activation.name:
            parameters = data.network.site(name).parameters
            if {role: p.shape for role, p in parameters.items()} == shapes:
                yield name, parameters


def _offset(step: Step, data: FitData) -> Fit | None:
    """Return the layer whose weight is read some elements too early or too late; what is read from outside of it is not known."""
    assert isinstance(step, Linear)
    weight = step.site.parameters["weight"]

    def read(offset: int) -> Array:
        return np.roll(weight, offset)  # in memory order

    best = _nearest(step, data, [k for k in OFFSETS if 2 * abs(k) < weight.size], lambda k: {"weight": read(k)})
    if best is None:
        return None
    unknown = np.arange(weight.size) < abs(best)
    outside = as_array((unknown if best > 0 else unknown[::-1]).reshape(weight.shape).any(1))
    if 2 * outside.sum() > len(outside):
        return None
    fitted = with_parameters(step, weight=read(best))
    value = np.where(outside & data.judged, data.actual, fitted.value)
    return Fit(Altered(fitted, lambda _: value), 1, "elements", best)


def _rotated(step: Step, data: FitData) -> Fit | None:
    """Return the layer whose weight's inputs are rotated by one, or by a half, a quarter or an eighth of them."""
    assert isinstance(step, Linear)
    weight = step.site.parameters["weight"]
    count = weight.shape[1]
    shifts = {sign * count // n for n in (2, 4, 8, count) if count % n == 0 for sign in (1, -1)}
    best = _nearest(step, data, sorted(shifts), lambda k: {"weight": np.roll(weight, k, 1)})
    return None if best is None else Fit(with_parameters(step, weight=np.roll(weight, best, 1)), 1, "inputs", best)


FITTED_LAYOUTS = (
    Fitted("parameters-of-module", LINEARS, "the weight and the bias are those of another module", "constructed", _of_module,
           "a loader that finds parameters by the end of their names", fix="Load each parameter by its whole name.",
           estimates="whose"),
    Fitted("weight-inputs-rotated", LINEARS, "the inputs of the weight are rotated by {value}", "constructed", _rotated,
           "shards of a weight that are put together in another order than those of its input",
           equation="y = Σ_k x_k w_((k − r) mod K) + b",
           fix="Concatenate the shards of a row-parallel weight in the order of their ranks."),
    Fitted("weight-offset", LINEARS, "the weight is read from memory with an offset of {value} elements", "constructed", _offset,
           "a loader by hand that ignores, or counts twice, the alignment of tensors in the file",
           equation="the element i of W, in memory order, is the element i − k of the right W",
           fix="Read each tensor from its own offset."),
)  # fmt: skip
