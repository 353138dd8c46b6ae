"""Fitted faults of linear layers: inputs that are rounded or not read, sparse weights, short partial sums and constant logits.

Fitted faults of weights that are whole but misplaced: another module's, read with an offset, or with rotated inputs. No element of
such a weight is fitted, so a few rows suffice, such as the pooler's.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

import numpy as np

from conformance.faults.changes import Altered
from conformance.faults.fault import LINEARS, with_parameters
from conformance.faults.fitted.fitted_fault import LEAST_ROWS, MOST_ROWS, Fit, FitData, Fitted, nearest_fit
from conformance.faults.quantized import distance_to_tie, is_near_tie
from conformance.numerics.formats import FORMATS, Array, Format, as_array
from conformance.oracle import Step
from conformance.oracle.linear import Linear

MOST_WEIGHTS = 2**20  # A limit of work: with more weights no threshold is looked for, nor named.
_LEVELS = 127.0  # the largest magnitude of a symmetric signed byte
_UNIT = FORMATS["float32"].unit_roundoff
_PARTS = (2, 4, 8, 16)  # The usual numbers of splits of a sum.
# Limits of work only: a threshold that is not found leaves a residual that the judge does not accept. Shares are whole percents,
# first the multiples of ten; the magnitudes next to the one of the nearest share are tried as well.
_SHARES, _COARSE, _BESIDE = 100, 10, 4
_LOGITS = ("cls.predictions.decoder", "cls.seq_relationship", "classifier", "qa_outputs")


def _with_result(step: Step, value: Array, variance: Array) -> Step:
    """Return the step with another result, whose ties have a variance."""
    return Altered(step, lambda _: value, lambda _, __: variance)


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

    def variants() -> Iterator[tuple[float, Step]]:
        for axis in (None, -1):
            quotient, unit = _quotients(step.parents[0], axis)
            unit = np.broadcast_to(unit, quotient.shape)
            if quotient.ndim > step.inputs.ndim:
                quotient, unit = quotient[:, 0], unit[:, 0]  # the first token of each row
            near = is_near_tie(quotient)
            value, ties = (np.rint(quotient) * unit) @ weight.T + step.bias, (near * unit**2) @ (weight.T**2)
            yield _LEVELS, _with_result(step, value, np.broadcast_to(ties, value.shape))

    return nearest_fit(step, data, list(variants()), "")


def _unread_inputs(step: Step, data: FitData) -> Fit | None:
    """Return the layer without its last inputs, as many as make the result nearest."""
    assert isinstance(step, Linear)
    weight, (inputs, found) = step.site.parameters["weight"], (a[:MOST_ROWS] for a in data.rows(step.inputs, data.actual))
    count = weight.shape[1]
    if len(inputs) < LEAST_ROWS or not np.isfinite(found).all():
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
    if weight.size > MOST_WEIGHTS or len(inputs) < LEAST_ROWS or not np.isfinite(found).all():
        return None
    sizes = np.sort(np.abs(weight), axis=None)
    levels = np.unique(sizes)

    def below(threshold: float) -> Array:
        return np.where(np.abs(weight) < threshold, 0.0, weight)

    def distance(threshold: float) -> float:
        return float(((found - step.bias - inputs @ below(threshold).T) ** 2).sum())

    def nearest(percents: range) -> int:
        return min(percents, key=lambda percent: distance(float(sizes[weight.size * percent // _SHARES])))

    # On average, each weight that is zero in the candidate's layer, too, lowers the distance, and each other one raises it.
    about = nearest(range(_COARSE, _SHARES, _COARSE))
    percent = nearest(range(about - _COARSE + 1, about + _COARSE))
    near = int(np.searchsorted(levels, sizes[weight.size * percent // _SHARES]))
    threshold = min((float(level) for level in levels[max(near - _BESIDE, 0) : near + _BESIDE + 1]), key=distance)
    pruned = below(threshold)
    share = float(((pruned == 0.0) & (weight != 0.0)).mean())
    return Fit(with_parameters(step, weight=pruned), 1, "share", share) if share else None


def _partial_sums(storage: Format, step: Step, data: FitData) -> Fit | None:
    """Return the layer with the sums over equal parts of its inputs rounded to a format, for the nearest number of parts."""
    assert isinstance(step, Linear)
    weight, usual = step.site.parameters["weight"], [parts for parts in _PARTS if step.inputs.shape[-1] % parts == 0]
    if not (data.is_finite and usual):
        return None
    inputs, found, allowed = (a[:MOST_ROWS] for a in data.rows(step.inputs, data.actual, data.allowed))

    def left(parts: int) -> float:
        value, _ = _rounded_sums(storage, inputs, weight, parts)
        return float((((found - step.bias - value) / allowed) ** 2).sum()) if np.isfinite(value).all() else np.inf

    parts = min(usual, key=left)
    rounded, ties = _rounded_sums(storage, step.inputs, weight, parts)
    value = step.bias + rounded
    if not np.isfinite(value).all() or data.distance(value) >= data.distance(step.value):
        return None
    return Fit(_with_result(step, value, ties), 1, "parts", float(parts))


def _rounded_sums(storage: Format, inputs: Array, weight: Array, parts: int) -> tuple[Array, Array]:
    """Return Σ_i storage(x_i W_iᵀ) over equal parts of the inputs, and the variance of ties."""
    value = ties = as_array(0.0)
    for x, w in zip(np.split(inputs, parts, -1), np.split(weight, parts, -1), strict=True):
        total, size = x @ w.T, np.abs(x) @ np.abs(w).T
        unit = storage.ulp(total)
        sum_error = x.shape[-1] * _UNIT * size  # γ_n |x||w| (Higham 2002, equation 3.5), for a sum of n terms in float32
        near = distance_to_tie(total / unit) <= sum_error / unit
        value, ties = value + storage.round(total), ties + np.where(near, unit**2, 0.0)
    return value, ties


def _suppressed(step: Step, data: FitData) -> Fit | None:
    """Return logits with a constant at the features that are equal to it in every row; None if it is not the lowest."""
    rows = data.judged.any(-1)
    found = data.actual[rows]
    if len(found) < LEAST_ROWS:
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
           "special or unused tokens that must not be predicted, masked in the model", only=_LOGITS,
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
