"""Rounding errors of sums and products in any legal order and of any size, and of softmax written as separate operations."""

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor

from conformance import load_golden
from conformance.numerics.arithmetic import Arithmetic, as_captured, hypotheses
from conformance.numerics.formats import Array
from conformance.numerics.thresholds import max_threshold, rms_threshold, sidak_share
from conformance.oracle import Network
from conformance.oracle.accumulation import Accumulation, operand, product_in_single, squared_partial_sums
from conformance.oracle.gradients.softmax import LogSoftmaxBackward, ProbabilitiesBackward
from conformance.oracle.norm import Norm
from conformance.oracle.softmax import LogSoftmax, Probabilities
from conformance.oracle.step import Step

ALPHA = 1e-8
NATIVE = hypotheses("float32")[0].arithmetic


class _Unmasked(Probabilities):
    """A softmax over all keys."""

    @property
    def keys(self) -> Any:
        """All keys."""
        return np.ones((1, 1, 1, self.parents[0].shape[-1]), np.bool_)


def _errors(step: Step, result: Array, arithmetic: Arithmetic = NATIVE) -> Array:
    """Return the errors of a result in sigma."""
    return cast(Array, (result - step.value) / np.sqrt(step.roundings(arithmetic).variance()))


def _passes(errors: Array) -> bool:
    rows = errors.size // errors.shape[-1]
    return bool(np.sqrt(np.square(errors).mean()) <= rms_threshold(rows, ALPHA)) and bool(
        np.abs(errors).max() <= max_threshold(errors.size, ALPHA)
    )


def _of_a_vocabulary() -> tuple[Step, Array]:
    x = np.random.default_rng(0).standard_normal((4, 30522))
    x[:, -1] = 14.0
    x = x.astype(np.float32).astype(np.float64)
    return LogSoftmax(cast(Any, None), x), x


def _of_attention() -> tuple[Step, Array]:
    x = np.random.default_rng(0).standard_normal((1, 1, 64, 4096))
    x[..., -1] = np.log(4096.0) + 3.0
    x = x.astype(np.float32).astype(np.float64)
    return _Unmasked(cast(Any, SimpleNamespace(activation=None)), x), x


@pytest.mark.parametrize("last_first", [False, True])
@pytest.mark.parametrize("of", [_of_a_vocabulary, _of_attention])
def test_a_softmax_may_be_summed_from_either_end(of: Callable[[], tuple[Step, Array]], last_first: bool) -> None:
    step, x = of()
    shifted = x.astype(np.float32) - x.astype(np.float32).max(-1, keepdims=True)
    weights = np.exp(shifted)
    total = np.cumsum(weights[..., ::-1] if last_first else weights, -1, dtype=np.float32)[..., -1:]

    def passes(total: Any) -> bool:
        result = shifted - np.log(total) if isinstance(step, LogSoftmax) else weights / total
        return _passes(_errors(step, result.astype(np.float64)))

    assert passes(total)
    assert not passes(total * np.float32(1.00005 if of is _of_attention else 1.0001))


@pytest.mark.parametrize("shift", [None, 0, -1])
@pytest.mark.parametrize("outlier", [0, -1])
def test_a_variance_in_one_pass_may_be_shifted_by_either_end_of_the_row(shift: int | None, outlier: int) -> None:
    x = np.random.default_rng(0).standard_normal((256, 96)).astype(np.float32)
    x[:, outlier] += 8.0
    ones = np.ones(x.shape[-1])
    site = SimpleNamespace(parameters={"weight": ones, "bias": ones}, architecture=SimpleNamespace(layer_norm_eps=1e-12))
    step = Norm(cast(Any, site), x.astype(np.float64))
    start = np.zeros_like(x[:, :1]) if shift is None else x[:, shift, None]
    shifted, n = x - start, np.float32(x.shape[-1])
    mean, squares = (np.cumsum(terms, -1, dtype=np.float32)[:, -1:] / n for terms in (shifted, shifted * shifted))

    def result(divisor: float) -> Array:
        deviation = np.sqrt((squares - mean * mean) * n / np.float32(divisor))
        return cast(Array, ((x - (start + mean)) / deviation + np.float32(1.0)).astype(np.float64))

    assert _passes(_errors(step, result(96.0)))
    assert not _passes(_errors(step, result(95.0)))


@pytest.mark.parametrize("exponent", [-150, -83, -20, 60, 150])
def test_the_partial_sums_of_a_row_do_not_depend_on_the_size_of_the_others(exponent: int) -> None:
    rng = np.random.default_rng(0)
    x, weight = rng.standard_normal((2, 5, 96)), rng.standard_normal((96, 7))
    scaled = x.copy()
    scaled[0, 1:] *= 2.0**exponent
    ratio = Accumulation(scaled, weight).squares[0, 1:] / Accumulation(x, weight).squares[0, 1:]
    assert ratio == pytest.approx(np.full(ratio.shape, 4.0**exponent), rel=1e-5, abs=0.0)


@pytest.mark.parametrize("bias", [0.0, 2.0])
def test_partial_sums_are_at_least_those_of_a_random_order_even_where_neighbouring_terms_cancel(bias: float) -> None:
    rng = np.random.default_rng(0)
    pairs = rng.standard_normal((1, 32))
    terms = np.stack([pairs, 0.01 * rng.standard_normal(pairs.shape) - pairs], -1).reshape(1, 64)
    squares = Accumulation(terms, np.ones((64, 1)), np.array([bias])).squares.item()
    shuffled = [np.cumsum(rng.permutation(terms[0])) for _ in range(2000)]
    last, first = (float(np.mean([np.square(sums + start).sum() for sums in shuffled])) for start in (0.0, bias))
    assert last > 10.0 * np.square(np.cumsum(terms)).sum()
    assert squares == pytest.approx(max(last, first), rel=0.1)


@pytest.mark.parametrize("exponent", [-10, -60, -100, -300])
def test_a_bias_that_far_exceeds_the_products_has_partial_sums_of_its_own_size(exponent: int) -> None:
    rng = np.random.default_rng(0)
    x, weight, bias = rng.standard_normal((5, 96)), rng.standard_normal((96, 7)), rng.standard_normal(7)
    squares = Accumulation(x * 2.0**exponent, weight, bias).squares
    assert squares == pytest.approx(np.broadcast_to(96.0 * bias**2, squares.shape), rel=0.5)
    assert np.isfinite(squares).all()


def _close(actual: Array, expected: Array) -> None:
    """Assert equality up to the roundings of float32, relative to the largest element, and one smallest number."""
    assert actual.dtype == np.float32
    # The last addend is float32's smallest subnormal number.
    assert np.abs(actual - expected).max() <= 1e-5 * np.abs(expected).max() + 2.0**-149


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("size", [1e-45, 1e-42, 1e-38, 1e-30, 1e-12, 1.0, 1e6])
@pytest.mark.parametrize("other", [1e-30, 1e-3, 1e3, 1e30])
def test_a_product_with_small_factors_is_that_of_float64(size: float, other: float) -> None:
    rng = np.random.default_rng(5)
    left, right = rng.normal(size=(2, 3, 8)) * size, rng.normal(size=(8, 4)) * other
    _close(product_in_single(left, right), left @ right)
    _close(product_in_single(left, operand(right)), left @ right)
    first, second = rng.normal(size=(2, 3, 8)) * other, rng.normal(size=(2, 8, 5)) * size
    _close(product_in_single(first, second), first @ second)


def test_rows_of_very_different_size_keep_their_digits() -> None:
    rng = np.random.default_rng(5)
    left = rng.normal(size=(6, 8)) * 10.0 ** -np.array([[1], [11], [20], [30], [38], [44]])
    right = rng.normal(size=(8, 4)) * 1e3
    actual, expected = product_in_single(left, right), left @ right
    for row in range(5):  # The last row's result has few digits in float32.
        _close(actual[row], expected[row])
    assert np.abs(actual[5]).max() > 0.0


TINY = load_golden("tiny")
A = TINY.checkpoint.architecture
SITE = Network(A, TINY.checkpoint.weights, TINY.batches["padded"]).site("encoder.layer.0.attention.self.probs")
ROWS, LENGTH = 8, 32


def _by_autograd(function: Callable[[Tensor], Tensor], scores: Tensor, upstream: Tensor) -> tuple[Array, Array]:
    """Return the result of a function of the scores, and the gradient with respect to them."""
    scores.requires_grad_(True)
    result = function(scores)
    (gradient,) = torch.autograd.grad(result, scores, upstream)
    return _wide(result), _wide(gradient)


def _wide(x: Tensor) -> Array:
    return x.detach().double().numpy()


def _softmax(s: Tensor) -> Tensor:
    weights = torch.exp(s - s.amax(-1, keepdim=True))
    return weights / weights.sum(-1, keepdim=True)


def _log_softmax(x: Tensor) -> Tensor:
    shifted = x - x.amax(-1, keepdim=True)
    return shifted - shifted.exp().sum(-1, keepdim=True).log()


def _of_softmax(dtype: torch.dtype, mean: float = 8.0, spread: float = 1.0) -> tuple[Step, Array]:
    """Return the gradient's step and its result, for values of that mean (terms cancel at 0) and scores of that deviation.

    If the deviation is small, several probabilities are equal in a half-precision format.
    """
    generator = torch.Generator().manual_seed(0)
    heads, size = A.num_attention_heads, A.head_size
    scores = (spread * torch.randn(ROWS, heads, LENGTH, LENGTH, generator=generator)).to(dtype)
    context, value = (torch.randn(ROWS, LENGTH, heads * size, generator=generator) for _ in range(2))
    context, value = context.to(dtype), (value + mean).to(dtype)
    left, right = (x.unflatten(-1, (heads, size)).transpose(1, 2) for x in (context, value))
    upstream = left @ right.transpose(-1, -2)
    probs, gradient = _by_autograd(_softmax, scores, upstream)
    return ProbabilitiesBackward(SITE, _wide(upstream), probs, _wide(context), _wide(value)), gradient


def _of_log_softmax(dtype: torch.dtype) -> tuple[Step, Array]:
    generator = torch.Generator().manual_seed(0)
    logits, upstream = (torch.randn(ROWS, LENGTH, A.vocab_size, generator=generator).to(dtype) for _ in range(2))
    log_probs, gradient = _by_autograd(_log_softmax, logits, upstream)
    return LogSoftmaxBackward(SITE, _wide(upstream), log_probs), gradient


def _require_within_sigma(errors: Array, count: int) -> None:
    assert np.sqrt(np.square(errors).mean()) < 1.0
    assert np.abs(errors).max() < max_threshold(count, sidak_share(1))


@pytest.mark.parametrize("of", [_of_softmax, partial(_of_softmax, mean=0.0), partial(_of_softmax, spread=0.01), _of_log_softmax])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_largest_score_may_receive_the_errors_of_its_row(dtype: str, of: Callable[[torch.dtype], tuple[Step, Array]]) -> None:
    """Sigma must not be less than the errors, at these scores as at all others."""
    step, gradient = of(getattr(torch, dtype))
    errors, probs = _errors(step, gradient, as_captured(hypotheses(dtype))[-1].arithmetic), step.parents[1]
    largest = probs == probs.max(-1, keepdims=True)
    for elements in (largest, ~largest):
        _require_within_sigma(errors[elements], errors.size)


@pytest.mark.parametrize("scale", [0.3, 3.0, 10.0])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_log_softmax_of_separate_operations_has_the_errors_of_its_stored_sum(dtype: str, scale: float) -> None:
    """Where one class has nearly all the probability, the rounding of the sum of exponentials is larger than its logarithm."""
    logits = (scale * torch.randn(2000, 5, generator=torch.Generator().manual_seed(0))).to(getattr(torch, dtype))
    step, result = LogSoftmax(SITE, _wide(logits)), _wide(_log_softmax(logits))
    errors = _errors(step, result, as_captured(hypotheses(dtype))[-1].arithmetic)
    _require_within_sigma(errors, errors.size)


def test_partial_sums_are_those_of_the_order_in_which_they_are_larger() -> None:
    terms = np.array([[1.0, 0.0, 3.0]])
    assert squared_partial_sums(terms).tolist() == squared_partial_sums(terms[:, ::-1]).tolist() == [[9.0 + 9.0 + 16.0]]
    assert squared_partial_sums(terms, 0).tolist() == [[1.0, 0.0, 9.0]]
