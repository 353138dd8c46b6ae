"""Fitted faults of inputs or outputs of a linear layer that are multiplied by a factor each, or are zero.

Scaled inputs, as in half of a smoothing: SmoothQuant (Xiao et al. 2023, equation 3) computes (x / f) (f ∘ W)ᵀ with a factor f_k per
input. If only one of the two is done,

    y_no = Σ_k f_k x_nk w_ok + b_o,

which is linear in the factors. With R = y − b they minimize Σ (R_no − Σ_k f_k x_nk w_ok)², so that they solve the normal equations

    Σ_l (Xᵀ X)_kl (Wᵀ W)_kl f_l = Σ_no x_nk R_no w_ok,

of the size of the number of inputs. A few rows suffice, since each has as many equations as there are outputs. The standard
deviation of f_k is at least σ / √(Σ_n x_nk² Σ_o w_ok²), that for known other factors. No smoothing has a factor of 0, which is an
input that is not read, as in a sum over one rank.

Outputs that are zero, or multiplied by a factor, such as a scale of another output.

With a factor f_o for each output, y_no = f_o Σ_k x_nk w_ok + b_o, or f_o (Σ_k x_nk w_ok + b_o) if the bias is scaled too. By least
squares f_o = Σ_n u_no v_no / Σ_n u_no², with the right u and the candidate's v, and its error is t s / √(Σ_n u_no²) for results of
the error s. The outputs whose factors differ from 1 by more are scaled: by one factor that all have in common if the factors are
equal within their errors, otherwise each by its own. A scaled weight is rounded to storage, with a relative error ε per element,
which adds the variance Σ_k (Σ_n u_no x_nk f_o w_ok ε)² / (Σ_n u_no²)² to that of f_o.

Fitted faults of weights of linear layers that are zero for some inputs or for some outputs.

With a factor f_k for each input, y_no = Σ_k f_k x_nk w_ok + b_o, estimated as above, an input that is not read has f_k = 0
and all others have f_k = 1: those of a pruned head, or of the ranks whose products are not added. An output whose row of the weight
is zero is its bias, y_no = b_o: the logit of a token whose embedding is zero, where the decoder is tied to the table.
"""

import math

import numpy as np

from conformance.faults.changes import Altered, with_stored_weight
from conformance.faults.fault import LINEARS, MOST_OPERATIONS, with_parameters
from conformance.faults.fitted.fitted_fault import LEAST_ROWS, TINY, Fit, FitData, Fitted, relative_error
from conformance.faults.fitted.lookup_words import first_to_last
from conformance.faults.fitted.weight_structure import index_of
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array, Mask, as_array
from conformance.oracle import Step
from conformance.oracle.linear import Linear


def factors_of(step: Step, data: FitData) -> tuple[Array, Array] | None:
    """Return the factor of each input of a linear layer and the largest error of each; None unless each has three results.

    The factors are fitted to whole rows, whose elements have similar errors. The error is that for known other factors.
    """
    assert isinstance(step, Linear)
    weight, (x, found) = step.site.parameters["weight"], data.rows(step.inputs, data.actual)
    inputs = weight.shape[1]
    if inputs**3 > MOST_OPERATIONS or LEAST_ROWS * inputs > found.size or not np.isfinite(found).all():
        return None
    normal = (x.T @ x) * (weight.T @ weight)
    right = (x * ((found - step.bias) @ weight)).sum(0)
    sizes = np.maximum(np.diagonal(normal), TINY)
    error = data.threshold * float(np.median(data.allowed[data.judged])) / np.sqrt(sizes)
    return as_array(np.linalg.lstsq(normal, right, rcond=None)[0], np.float64), error


def _scaled_columns(step: Step, data: FitData) -> Fit | None:
    """Return the layer with a factor for each input; None if there are too few results, and if a factor is 0.

    A factor is 0 if it differs from 1, but not from 0, by more than its error.
    """
    fit = factors_of(step, data)
    if fit is None:
        return None
    factors, error = fit
    if ((np.abs(factors) <= error) & (np.abs(factors - 1.0) > error)).any():
        return None
    assert isinstance(step, Linear)
    weight, (x, found, allowed) = step.site.parameters["weight"], data.rows(step.inputs, data.actual, data.allowed)
    scaled = weight * factors
    product = found - step.bias
    in_units = (product / allowed, x @ weight.T / allowed, x @ scaled.T / allowed)
    if _is_one_factor(x, weight, product, allowed, data.largest) or not _prefers_factors(*in_units, len(factors)):
        return None
    return Fit(with_stored_weight(step, scaled), len(factors), *factors_in_words("input", factors, error))


def _is_one_factor(x: Array, weight: Array, found: Array, allowed: Array, most: float) -> bool:
    """Return whether one factor of the product leaves no error beyond those of the results and of the stored, scaled weight.

    The rounding of a weight is an error that all rows of a batch share, which factors of the inputs can follow.
    """
    right = x @ weight.T
    common = float(np.vdot(right / allowed, found / allowed)) / max(float(((right / allowed) ** 2).sum()), TINY)
    unit = relative_error(allowed, found)
    stored = x**2 @ ((unit * common * weight) ** 2).T
    room = most * np.sqrt((max(abs(common), 1.0) * allowed) ** 2 + stored)
    return bool((np.abs(found - common * right) <= room).all())


def factors_in_words(what: str, factors: Array, error: Array) -> tuple[str, float]:
    """Return in words which inputs, or outputs, have a factor other than 1, and that which differs most in units of its error."""
    differs = np.abs(factors - 1.0) > error
    if not differs.any():
        return "", 0.0
    most = int((np.abs(factors - 1.0) / error).argmax())
    if differs.sum() == 1:
        return f"of {what} {most},", float(factors[most])
    which = f"of {what}s {index_of(differs)}"
    is_common = (np.abs(factors - factors[most]) <= error + error[most])[differs].all()
    return f"{which}," if is_common else f"{which}, that of {what} {most} is", float(factors[most])


def _prefers_factors(found: Array, right: Array, scaled: Array, count: int) -> bool:
    """Return whether the Bayesian information criterion (Schwarz 1978) prefers `count` factors to one of the whole product.

    All arrays are in units of the allowed error of each result.

    With n results and the sums of squares left by one factor and by all, n ln(left by one / left by all) > (count − 1) ln n.
    """
    common = float(np.vdot(right, found)) / max(float(np.vdot(right, right)), TINY)
    by_one, by_all = (float(((found - value) ** 2).sum()) for value in (common * right, scaled))
    return by_one > 0.0 and found.size * math.log(by_one / max(by_all, TINY)) > (count - 1) * math.log(found.size)


SCALED_COLUMNS = (
    Fitted("inputs-scaled", LINEARS, "the inputs, or the columns of the weight, are multiplied by a factor each", "constructed",
           _scaled_columns, "SmoothQuant: the weight is multiplied by the factors and the norm before it is not divided by them, "
           "or the other way round",
           equation="y_o = Σ_k f_k x_k w_ok + b_o",
           fix="Divide the inputs by the factors by which the columns of the weight are multiplied, or do neither.",
           estimates="the factor"),
)  # fmt: skip


def _inputs_zeroed(step: Step, data: FitData) -> Fit | None:
    """Return the layer with columns of zeros at the inputs whose factor is nearer to 0 than to 1, if it is known to a half."""
    found = factors_of(step, data)
    if found is None:
        return None
    factors, error = found
    return _with_zeros(step, (factors < 0.5) & (error < 0.5), "input")


def _outputs_zeroed(step: Step, data: FitData) -> Fit | None:
    """Return the layer with rows of zeros at the outputs that equal the bias in each row, although the correct result does not."""
    assert isinstance(step, Linear)
    axes, room = tuple(range(data.actual.ndim - 1)), data.largest * data.allowed
    equal = (np.abs(data.actual - step.bias) <= room) | ~data.judged
    differs = (np.abs(data.actual - step.value) > room) & data.judged
    return _with_zeros(step, as_array(equal.all(axes) & differs.any(axes)), "output")


def _with_zeros(step: Step, chosen: Mask, what: str) -> Fit | None:
    """Return the layer with zeros at some of its inputs or outputs; None if there are none, or no others."""
    if not chosen.any() or chosen.all():
        return None
    weight = np.where(chosen if what == "input" else chosen[:, None], 0.0, step.site.parameters["weight"])
    return Fit(with_parameters(step, weight=weight), int(chosen.sum()), *first_to_last(np.flatnonzero(chosen), what))


ZEROED_WEIGHTS = (
    Fitted("inputs-zeroed", LINEARS, "some of its inputs are not read: their columns of the weight act as zeros", "constructed",
           _inputs_zeroed, "a head that is pruned at the output alone; a product of one rank that is not added",
           equation="y_o = Σ_k x_k w_ok + b_o over some of the inputs k",
           fix="Read every input, with the checkpoint's weight.",
           estimates="not read"),
    Fitted("outputs-zeroed", LINEARS, "some of its outputs are the bias alone: their rows of the weight act as zeros",
           "constructed", _outputs_zeroed, "a padding row that is set to zero in a table to which the decoder is tied",
           equation="y_o = b_o for some of the outputs o",
           fix="Load every row of the weight from the checkpoint.",
           estimates="zero"),
)  # fmt: skip


def _zero_outputs(step: Step, data: FitData) -> Fit | None:
    """Return the layer with zeros at the outputs that the candidate has as zero in each row, although they should not be."""
    axes = tuple(range(data.actual.ndim - 1))
    zero = as_array(((data.actual == 0.0) | ~data.judged).all(axes) & ((step.value != 0.0) & data.judged).any(axes))
    if not zero.any() or zero.all():
        return None
    without = Altered(step, lambda inner: np.where(zero, 0.0, inner.value))
    return Fit(without, int(zero.sum()), *first_to_last(np.flatnonzero(zero), "output"))


def _scaled(step: Step, data: FitData) -> Fit | None:
    """Return the layer with factors of some outputs, with or without the bias, the nearer one; None if all outputs differ alike."""
    assert isinstance(step, Linear)
    if int(data.judged.any(-1).sum()) < LEAST_ROWS or not data.is_finite:
        return None
    variants = [_of(step, data, base) for base in dict.fromkeys((0.0, 1.0))]
    return min((fit for fit in variants if fit), key=lambda fit: data.distance(fit.step.value), default=None)


def _of(step: Linear, data: FitData, share: float) -> Fit | None:
    """Return the layer with factors of the product, to which this share of the bias is added before."""
    outside = (1.0 - share) * step.bias
    right, found = (np.where(data.judged, a - outside, 0.0).reshape(-1, step.value.shape[-1]) for a in (step.value, data.actual))
    energy = np.maximum((right**2).sum(0), TINY)
    factors = (right * found).sum(0) / energy
    allowed, judged = data.allowed.reshape(right.shape), data.judged.reshape(right.shape)
    sizes = np.maximum(np.abs(factors), 1.0) * allowed.max(0, where=judged, initial=0.0)
    some = judged & (right != 0.0)
    if not some.any():
        return None
    unit = relative_error(allowed[some], right[some])
    stored = right.T @ step.inputs.reshape(len(right), -1) * step.site.parameters["weight"] * (unit * factors[:, None])
    error = data.threshold * np.sqrt(sizes**2 / energy + (stored**2).sum(1) / energy**2)
    wrong = np.abs(factors - 1.0) > error
    if not wrong.any() or not _varies(right, factors, data.threshold * sizes)[wrong].all():
        return None
    weight = np.where(wrong, error**-2.0, 0.0)
    common = float((weight * factors).sum() / weight.sum())
    is_common = bool((np.abs(factors - common) <= error)[wrong].all())
    if is_common and wrong.all():
        return None  # a factor of the whole result, which the catalogue has
    used = np.where(wrong, common if is_common else factors, 1.0)

    def slack(altered: Altered, arithmetic: Arithmetic) -> Array:
        assert isinstance(altered.inner, Linear)
        scaled = used[:, None] * altered.inner.site.parameters["weight"]
        return as_array(altered.inner.inputs**2 @ np.where(wrong[:, None], arithmetic.storage.rounding_variance(scaled), 0.0).T)

    faulty = Altered(step, lambda inner: used * (inner.value - outside) + outside, slack)
    count = int(wrong.sum())
    return Fit(faulty, count + 1 if is_common else 2 * count, *factors_in_words("output", used, np.where(wrong, error, 1.0)))


def _varies(right: Array, factors: Array, error: Array) -> Mask:
    """Return at which outputs the results, times the factor, differ among the rows by more than errors.

    Results that are the same in every row have a factor whatever they are.
    """
    spread = np.sqrt(((right - right.mean(0)) ** 2).sum(0))
    return as_array(np.abs(factors) * spread > error)


SCALED_OUTPUTS = (
    Fitted("outputs-missing", LINEARS, "some of its outputs are zero, although their weights and bias are not", "constructed",
           _zero_outputs, "rows of a head or a shard that are not loaded, or outputs that are not written",
           equation="y_o = 0 for some of the outputs o",
           fix="Load, and compute, every output of the layer.", estimates="zero"),
    Fitted("outputs-scaled", LINEARS, "some of its outputs, or rows of the weight, are multiplied by a factor", "constructed",
           _scaled, "scales of quantised rows that are not applied, or are those of other rows",
           equation="y_o = f_o Σ_k x_k w_ok + b_o, or f_o (Σ_k x_k w_ok + b_o), for some of the outputs o",
           fix="Multiply each row of the weight by its own scale, and leave the result as it is.", estimates="the factor"),
)  # fmt: skip
"""Tried before other parameters, whose fit needs more rows than inputs."""
