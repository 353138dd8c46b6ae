"""Fitted faults of linear layers: inputs that are rounded or not read, sparse weights, short partial sums and constant logits."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial

import numpy as np

from conformance.faults.altered import Altered
from conformance.faults.fault import with_parameters
from conformance.faults.fitted.fitted_fault import MOST_ROWS, Fit, FitData, Fitted
from conformance.faults.kinds import LINEARS
from conformance.numerics.arrays import as_array
from conformance.numerics.formats import FORMATS, Array, Format
from conformance.oracle import Step
from conformance.oracle.linear import Linear

Variant = tuple[Array, Array | float, float]  # A result, the variance of its ties, and the number that distinguishes it.

MOST_WEIGHTS = 2**20  # A limit of the time only: a search for a threshold then takes at most seconds.
_LEVELS = 127.0  # the largest magnitude of a symmetric signed byte
_UNIT = FORMATS["float32"].unit_roundoff
TIE = 8.0 * _UNIT  # A quotient this near to a tie, relative to it, may be rounded either way: up to four roundings on each side.
_PARTS = (2, 4, 8, 16)  # The usual numbers of splits of a sum.
_LEAST = 3  # The least number of rows for which a constant, or a fit of one number to a product, can be refuted by another row.
_SHARES, _BESIDE = 100, 4  # Shares are whole percents; the magnitudes next to the nearest one are tried as well.


def _nearest(variants: Iterable[Variant], step: Step, data: FitData) -> Variant | None:
    """Return the nearest variant, if it is nearer to the candidate's array than the correct result."""

    def distance(value: Array) -> float:
        return float((np.where(data.judged, (data.actual - value) / data.allowed, 0.0) ** 2).sum())

    best = min(variants, key=lambda v: distance(v[0]), default=None)
    return best if best is not None and distance(best[0]) < distance(step.value) else None


def _fit(step: Step, found: Variant, parameter: str) -> Fit:
    value, variance, number = found
    spread = np.broadcast_to(variance, value.shape)
    return Fit(Altered(step, lambda _: value, lambda _, __: spread), 1, parameter, number)


def _quotients(x: Array, axis: int | None) -> tuple[Array, Array]:
    """Return x in units of its largest magnitude / 127 and the unit, both computed in float32."""
    wide = x.astype(np.float32)
    unit = np.abs(wide).max(axis, keepdims=True) / np.float32(_LEVELS)
    unit = np.where(unit > 0.0, unit, np.float32(1.0))
    return as_array(wide / unit, np.float64), as_array(unit, np.float64)


def _integer_inputs(step: Step, data: FitData) -> Fit | None:
    """Return the layer with inputs of 255 levels, with one unit for all inputs of the call or one for each token."""
    assert isinstance(step, Linear)
    if not data.is_finite:
        return None
    weight = step.site.parameters["weight"]

    def variants() -> Iterator[Variant]:
        for axis in (None, -1):
            quotient, unit = _quotients(step.parents[0], axis)
            if axis is None and step.parents[0].ndim > step.inputs.ndim:  # The first token of each row.
                quotient = quotient[:, 0]
            elif step.parents[0].ndim > step.inputs.ndim:
                quotient, unit = quotient[:, 0], unit[:, 0]
            unit = unit.reshape(-1) if axis is None else unit
            near = np.abs(quotient - np.floor(quotient) - 0.5) <= TIE * np.maximum(np.abs(quotient), 1.0)
            yield (np.rint(quotient) * unit) @ weight.T + step.bias, (near * unit**2) @ (weight.T**2), _LEVELS

    found = _nearest(variants(), step, data)
    return None if found is None else _fit(step, found, "")


def _unread_inputs(step: Step, data: FitData) -> Fit | None:
    """Return the layer without its last inputs, as many as make the result nearest."""
    assert isinstance(step, Linear)
    weight, (inputs, found) = step.site.parameters["weight"], (a[:MOST_ROWS] for a in data.rows(step.inputs, data.actual))
    count = weight.shape[1]
    if len(inputs) < _LEAST or not np.isfinite(found).all():
        return None
    left, distances = found - step.bias - inputs @ weight.T, []
    for unread in range(1, count):
        left = left + np.outer(inputs[:, -unread], weight[:, -unread])
        distances.append(float((left**2).sum()))
    unread = 1 + int(np.argmin(distances, axis=0)) if distances else 0
    if not unread:
        return None
    kept = np.arange(count) < count - unread
    return Fit(with_parameters(step, weight=np.where(kept, weight, 0.0)), 1, "inputs", float(unread))


def _pruned(step: Step, data: FitData) -> Fit | None:
    """Return the layer with its smallest weights set to zero, about a whole percentage of them."""
    assert isinstance(step, Linear)
    weight, (inputs, found) = step.site.parameters["weight"], (a[:MOST_ROWS] for a in data.rows(step.inputs, data.actual))
    if weight.size > MOST_WEIGHTS or len(inputs) < _LEAST or not np.isfinite(found).all():
        return None
    sizes = np.sort(np.abs(weight), axis=None)
    levels = np.unique(sizes)

    def below(threshold: float) -> Array:
        return np.where(np.abs(weight) < threshold, 0.0, weight)

    def distance(threshold: float) -> float:
        return float(((found - step.bias - inputs @ below(threshold).T) ** 2).sum())

    shares = [float(sizes[weight.size * percent // _SHARES]) for percent in range(1, _SHARES)]
    near = int(np.searchsorted(levels, min(shares, key=distance)))
    threshold = min((float(level) for level in levels[max(near - _BESIDE, 0) : near + _BESIDE + 1]), key=distance)
    pruned = below(threshold)
    share = float(((pruned == 0.0) & (weight != 0.0)).mean())
    return Fit(with_parameters(step, weight=pruned), 1, "share", share) if share else None


def _partial_sums(storage: Format, step: Step, data: FitData) -> Fit | None:
    """Return the layer with the sums over equal parts of its inputs rounded to a format, for the nearest number of parts."""
    assert isinstance(step, Linear)
    if not data.is_finite:
        return None
    weight, count = step.site.parameters["weight"], step.inputs.shape[-1]

    def variants() -> Iterator[Variant]:
        for parts in (p for p in _PARTS if count % p == 0):
            value, ties = step.bias + np.zeros_like(step.value), np.zeros_like(step.value)
            for x, w in zip(np.split(step.inputs, parts, -1), np.split(weight, parts, -1), strict=True):
                total, size = x @ w.T, np.abs(x) @ np.abs(w).T
                unit = storage.ulp(total)
                quotient = total / unit
                sum_error = x.shape[-1] * _UNIT * size  # γ_n |x||w| (Higham 2002, equation 3.5), for a sum of n terms in float32
                near = np.abs(quotient - np.floor(quotient) - 0.5) <= sum_error / unit
                value, ties = value + storage.round(total), ties + np.where(near, unit**2, 0.0)
            yield value, ties, float(parts)

    found = _nearest(variants(), step, data)
    return None if found is None or not np.isfinite(found[0]).all() else _fit(step, found, "parts")


def _suppressed(step: Step, data: FitData) -> Fit | None:
    """Return a head's logits with a constant at the features that are equal to it in every row; None if it is not the lowest."""
    rows = data.judged.any(-1)
    found = data.actual[rows]
    if step.site.activation.layer is not None or len(found) < _LEAST:
        return None
    constant = found.min()
    those = (found == constant).all(0)
    if not those.any() or those.all() or constant >= step.value[rows].min():
        return None
    value = float(constant)
    return Fit(Altered(step, lambda inner: np.where(those, value, inner.value)), 1 + int(those.sum()), "constant", value)


def _accumulated(name: str) -> Fitted:
    fit: Callable[[Step, FitData], Fit | None] = partial(_partial_sums, FORMATS[name])
    return Fitted(
        f"accumulated-{name}", LINEARS, f"the sum is split into {{value}} parts, which are rounded to {name}", "constructed", fit,
        "a product split over its inputs (split-K), with a workspace of a narrower format",
        equation=f"y = Σ_i {name}(x_i W_iᵀ) + b",
        fix="Accumulate, and store partial sums, in float32.",
    )  # fmt: skip


FITTED_PRODUCTS = (
    Fitted("logits-suppressed", LINEARS, "some logits are replaced by the constant {value}", "constructed", _suppressed,
           "special or unused tokens that must not be predicted, masked in the model",
           fix="Return all logits as they are computed; suppress tokens where they are chosen."),
    Fitted("inputs-last-unread", LINEARS, "the last {value} inputs are not read", "constructed", _unread_inputs,
           "a loop over blocks of inputs without the last, partial block",
           equation="y = Σ_(k < K − n) x_k W_k + b",
           fix="Sum over all input features."),
    Fitted("precision-int8-inputs", LINEARS, "the inputs are rounded to 255 levels: int8 quantisation", "constructed",
           _integer_inputs, "dynamic quantisation of the inputs alone",
           equation="y = s rint(x / s) Wᵀ + b, s = max |x| / 127",
           fix="Run without quantisation, or export without it."),
    *(_accumulated(name) for name in ("float16", "bfloat16")),
    Fitted("weight-pruned", LINEARS, "the smallest weights are zero, a share {value} of them", "constructed", _pruned,
           "pruning by magnitude with a mask that is still applied",
           equation="w = 0 where |w| is below a threshold",
           fix="Load the checkpoint's weights, and remove the mask (torch.nn.utils.prune.remove keeps it in the weight)."),
)  # fmt: skip
"""Tried before another bias, order or weight, which could explain some of them as well."""
