"""The fitted fault of a linear layer whose weight is drawn at random, as at initialization.

With independent weights of mean 0 and standard deviation s, and X = U S Vᵀ the N judged inputs, the numbers

    z_io = Σ_n u_ni (y_no − b_o) / (S_i s)

are independent and of variance 1, whatever N: no element of the weight has to be known. Trained weights are not isotropic, and
have another scale. The variance that rounding errors a_no add, (Σ_n u_ni² a_no²) / (S_i s)², is required to be below 1/√O, that is,
below the sampling error √(2/O) of a variance of O numbers; directions i in which it is not are left out.

The model of variance 1 is accepted if the Bayesian information criterion (Schwarz 1978) prefers it to each model with more
variances, one for all numbers, one for each i, and one for each o, and to a correlation with the right weights. The criterion
holds for large n: a variance of few numbers n gains more by chance than the ln n that it costs. With E = T/2, which has a Γ
distribution of shape k = n/2, its gain 2 (E − k − k ln(E / k)) has the mean 2 k (ln k − ψ(k)) and the variance 4 (k² ψ′(k) − k),
since E and ln E have the covariance 1. A gain that is not above the mean of G such groups by t √(G · variance) is by chance.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.special import polygamma, psi

from conformance.faults.fault import LINEARS, with_parameters
from conformance.faults.fitted.fitted_fault import TINY, Fit, FitData, Fitted, takes_seconds
from conformance.model.training import WORDS
from conformance.numerics.formats import Array, as_array
from conformance.oracle import Step
from conformance.oracle.linear import Linear

# Standard deviation of N(0, 1) truncated at ± 2, TensorFlow's initializer: √(1 − 4 φ(2) / (2 Φ(2) − 1)).
_CUT = math.sqrt(1.0 - 4.0 * math.exp(-2.0) / math.sqrt(2.0 * math.pi) / math.erf(math.sqrt(2.0)))
_LEAST_DIRECTIONS = 2  # The least number for which a weight that is not isotropic can be refuted.
_USUAL = 0.02  # The default of BertConfig.initializer_range.


@dataclass(frozen=True)
class _Draw:
    """A way of drawing parameters: the standard deviation of the weights, that of the bias relative to it, and the fixed bias."""

    deviation: float
    of_bias: float
    bias: Array


def _draws(step: Linear) -> Iterator[_Draw]:
    """Yield BERT's initialization and that of torch's nn.Linear (uniform within ±1/√inputs), with a drawn or the right bias."""
    architecture, inputs = step.site.architecture, step.site.parameters["weight"].shape[1]
    none, uniform = np.zeros_like(step.bias), 1.0 / math.sqrt(3.0 * inputs)
    for deviation in dict.fromkeys((architecture.initializer_range, _USUAL)):
        for cut in (1.0, _CUT):
            yield from (_Draw(cut * deviation, 0.0, bias) for bias in (none, step.bias))
    yield _Draw(uniform, 1.0, none)
    yield _Draw(uniform, 0.0, step.bias)


def _directions(x: Array, of_bias: float) -> tuple[Array, Array]:
    """Return U, (N, directions), and S of the inputs, with a further input `of_bias` for a bias that is drawn as well."""
    read = np.concatenate([x, np.full((len(x), 1), of_bias)], 1) if of_bias else x
    left, sizes, _ = np.linalg.svd(read, full_matrices=False)
    return left, sizes


def _normalised(draw: _Draw, directions: tuple[Array, Array], y: Array, allowed: Array) -> Array:
    """Return the numbers z, (directions, O), of the results y, (N, O)."""
    left, sizes = directions
    kept = (left**2).T @ (allowed**2).mean(1) * math.sqrt(y.shape[1]) < (sizes * draw.deviation) ** 2
    return as_array(left[:, kept].T @ (y - draw.bias) / (sizes[kept] * draw.deviation)[:, None])


def _is_of_variance_one(z: Array, axis: int | None, threshold: float) -> bool:
    """Return whether a variance for all numbers, or for each index other than `axis`, gains no more than it costs or by chance.

    The gain is the increase of twice the log likelihood, Σ (T − n − n ln(T / n)) over the groups of n numbers with the sum of
    squares T. A further parameter of n numbers costs ln n.
    """
    total = as_array((z**2).sum(axis))
    n, groups = z.size / total.size, total.size
    gain = float((total - n - n * np.log(np.maximum(total / n, TINY))).sum())
    k = n / 2.0
    mean, variance = 2.0 * k * (math.log(k) - float(psi(k))), 4.0 * (k**2 * float(polygamma(1, k)) - k)
    return gain <= max(groups * math.log(n), groups * mean + threshold * math.sqrt(groups * variance))


def _is_drawn(z: Array, right: Array, threshold: float) -> bool:
    """Return whether the BIC prefers independent numbers of variance 1, which do not correlate with the right ones."""
    correlation = float((z * right).sum() / math.sqrt((z**2).sum() * (right**2).sum()))
    gain = -z.size * math.log(max(1.0 - correlation**2, TINY))
    return gain <= math.log(z.size) and all(_is_of_variance_one(z, axis, threshold) for axis in (None, 1, 0))


def _initial(step: Step, data: FitData) -> Fit | None:
    """Return a layer with a weight that gives the results, if they are those of a drawn weight and the right ones are not.

    The standard deviation of n numbers has the relative error 1/√(2 n). It is required to exclude one that is twice as large, by
    the threshold t: ln 2 > t / √(2 n).
    """
    assert isinstance(step, Linear)
    x, found, right, allowed = data.rows(step.inputs, data.actual, step.value, data.allowed)
    if not takes_seconds(x) or len(np.unique(x, axis=0)) < _LEAST_DIRECTIONS or not np.isfinite(found).all():
        return None
    # Rounding errors are proportional to results, which may be much smaller or larger than the right ones.
    allowed = allowed * math.sqrt(float((found**2).mean() / max((right**2).mean(), TINY)))
    draws = list(_draws(step))
    directions = {of_bias: _directions(x, of_bias) for of_bias in {draw.of_bias for draw in draws}}
    for draw in draws:
        z, own = (_normalised(draw, directions[draw.of_bias], y, allowed) for y in (found, right))
        enough = len(z) >= _LEAST_DIRECTIONS and z.size > data.threshold**2 / (2.0 * math.log(2.0) ** 2)
        if enough and _is_drawn(z, own, data.threshold) and not _is_drawn(own, np.ones_like(own), data.threshold):
            weight = as_array(np.linalg.lstsq(x, found - draw.bias, rcond=None)[0].T, np.float64)
            return Fit(with_parameters(step, weight=weight, bias=draw.bias), weight.size, "deviation", draw.deviation)
    return None


def _initial_of_tied(step: Step, data: FitData) -> Fit | None:
    """Return the fit of a drawn weight where the right one is the table of words; None where it is the layer's own."""
    return _initial(step, data) if step.site.activation.parameters["weight"] == WORDS else None


_SENTENCE = "the weight is not the checkpoint's: it acts like random numbers of deviation {value}, as drawn at initialisation"

INITIAL = (
    Fitted("decoder-untied", LINEARS, _SENTENCE, "constructed", _initial_of_tied,
           "a decoder that is not tied to the word embeddings", only=("cls.predictions.decoder",),
           equation="y = x Wᵀ + b, w drawn at random", fix="Let the decoder use the weight of the word embeddings."),
    Fitted("parameters-initial", LINEARS, _SENTENCE, "transformers#7167", _initial,
           "a parameter that the checkpoint lacks or calls otherwise, with a warning at most",
           equation="y = x Wᵀ + b, w drawn at random",
           fix="Load every parameter from the checkpoint, and fail on missing and unexpected names."),
)  # fmt: skip
"""Tried before other parameters, whose fit needs more rows than inputs."""
