"""Legal forms of a function and legal orders of its sums pass, and numbers of very different sizes have the errors of their own."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from conformance.model.activation import Activation
from conformance.numerics.arithmetic import hypotheses
from conformance.numerics.formats import Array
from conformance.numerics.thresholds import max_threshold, rms_threshold
from conformance.oracle.accumulation import Accumulation, squared_partial_sums
from conformance.oracle.norm import Norm
from conformance.oracle.pointwise import Tanh
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


def _errors(step: Step, result: Array) -> Array:
    return cast(Array, (result - step.value) / np.sqrt(step.roundings(NATIVE).variance()))


def _passes(errors: Array) -> bool:
    rows = errors.size // errors.shape[-1]
    return bool(np.sqrt(np.square(errors).mean()) <= rms_threshold(rows, ALPHA)) and bool(
        np.abs(errors).max() <= max_threshold(errors.size, ALPHA)
    )


def _in_single(x: Array, last_first: bool) -> tuple[Any, Any, Any]:
    """Return x − m, its exponentials and their sum in float32, added one after another from the first or the last."""
    shifted = x.astype(np.float32) - x.astype(np.float32).max(-1, keepdims=True)
    weights = np.exp(shifted)
    return shifted, weights, np.cumsum(weights[..., ::-1] if last_first else weights, -1, dtype=np.float32)[..., -1:]


@pytest.mark.parametrize("last_first", [False, True])
def test_a_log_softmax_over_a_vocabulary_may_be_summed_from_either_end(last_first: bool) -> None:
    x = np.random.default_rng(0).standard_normal((4, 30522))
    x[:, -1] = 14.0
    x = x.astype(np.float32).astype(np.float64)
    step = LogSoftmax(cast(Any, None), x)
    shifted, _, total = _in_single(x, last_first)
    assert _passes(_errors(step, (shifted - np.log(total)).astype(np.float64)))
    assert not _passes(_errors(step, (shifted - np.log(total * np.float32(1.0001))).astype(np.float64)))


@pytest.mark.parametrize("last_first", [False, True])
def test_attention_probabilities_may_be_summed_from_either_end(last_first: bool) -> None:
    x = np.random.default_rng(0).standard_normal((1, 1, 64, 4096))
    x[..., -1] = np.log(4096.0) + 3.0
    x = x.astype(np.float32).astype(np.float64)
    step = _Unmasked(cast(Any, SimpleNamespace(activation=cast(Activation, None))), x)
    _, weights, total = _in_single(x, last_first)
    assert _passes(_errors(step, (weights / total).astype(np.float64)))
    assert not _passes(_errors(step, (weights / (total * np.float32(1.00005))).astype(np.float64)))


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


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_tanh_may_be_composed_of_expm1_in_native_arithmetic(dtype: str) -> None:
    x = torch.from_numpy(np.linspace(-4.0, 4.0, 5000)).to(getattr(torch, dtype))
    native = [h.arithmetic for h in hypotheses(dtype) if h.arithmetic.rounding == "native"][0]
    step = Tanh(cast(Any, None), x.double().numpy()[None])
    t = torch.expm1(-2.0 * x.abs())

    def errors(result: torch.Tensor) -> Array:
        return cast(Array, (result.double().numpy() - step.value) / np.sqrt(step.roundings(native).variance()))

    assert _passes(errors(-x.sign() * t / (t + 2.0)))
    assert not _passes(errors(-x.sign() * t / (t + 2.0) * 1.02))


def test_partial_sums_are_those_of_the_order_in_which_they_are_larger() -> None:
    terms = np.array([[1.0, 0.0, 3.0]])
    assert squared_partial_sums(terms).tolist() == squared_partial_sums(terms[:, ::-1]).tolist() == [[9.0 + 9.0 + 16.0]]
    assert squared_partial_sums(terms, 0).tolist() == [[1.0, 0.0, 9.0]]


@pytest.mark.parametrize("exponent", [-150, -83, -20, 60, 150])
def test_the_partial_sums_of_a_row_do_not_depend_on_the_size_of_the_others(exponent: int) -> None:
    rng = np.random.default_rng(0)
    x, weight = rng.standard_normal((2, 5, 96)), rng.standard_normal((96, 7))
    scaled = x.copy()
    scaled[0, 1:] *= 2.0**exponent
    ratio = Accumulation(scaled, weight).squares[0, 1:] / Accumulation(x, weight).squares[0, 1:]
    assert ratio == pytest.approx(np.full(ratio.shape, 4.0**exponent), rel=1e-5, abs=0.0)


def test_factors_whose_scales_exceed_the_range_of_float64_together_have_partial_sums() -> None:
    x = np.random.default_rng(0).standard_normal((3, 5))
    assert (Accumulation(x * 2.0**-700, np.ones((5, 2)) * 2.0**-700).squares == 0.0).all()
    with np.errstate(over="ignore"):
        assert np.isinf(Accumulation(x * 2.0**505, np.ones((5, 2)) * 2.0**505).squares).all()


@pytest.mark.parametrize("exponent", [-10, -60, -100, -300])
def test_a_bias_that_far_exceeds_the_products_has_partial_sums_of_its_own_size(exponent: int) -> None:
    rng = np.random.default_rng(0)
    x, weight, bias = rng.standard_normal((5, 96)), rng.standard_normal((96, 7)), rng.standard_normal(7)
    squares = Accumulation(x * 2.0**exponent, weight, bias).squares
    assert squares == pytest.approx(np.broadcast_to(96.0 * bias**2, squares.shape), rel=0.5)
    assert np.isfinite(squares).all()
