"""Rounding errors of softmax and log-softmax written as separate operations, and of their gradients by autograd."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

from conformance import load_golden
from conformance.numerics.arithmetic import as_captured, hypotheses
from conformance.numerics.formats import Array
from conformance.numerics.thresholds import max_threshold, sidak_share
from conformance.oracle import Network
from conformance.oracle.gradients.softmax import LogSoftmaxBackward, ProbabilitiesBackward
from conformance.oracle.softmax import LogSoftmax
from conformance.oracle.step import Step

GOLDEN = load_golden("tiny")
ARCHITECTURE = GOLDEN.checkpoint.architecture
SITE = Network(ARCHITECTURE, GOLDEN.checkpoint.weights, GOLDEN.batches["padded"]).site("encoder.layer.0.attention.self.probs")
ROWS, LENGTH = 8, 32


def _by_autograd(function: Callable[[Tensor], Tensor], scores: Tensor, upstream: Tensor) -> tuple[Array, Array]:
    """Return the result of a function of the scores, and the gradient with respect to them."""
    scores.requires_grad_(True)
    found = function(scores)
    found.backward(upstream)
    assert scores.grad is not None
    return _wide(found), _wide(scores.grad)


def _wide(x: Tensor) -> Array:
    return x.detach().double().numpy()


def _softmax(s: Tensor) -> Tensor:
    weights = torch.exp(s - s.amax(-1, keepdim=True))
    return weights / weights.sum(-1, keepdim=True)


def _log_softmax(x: Tensor) -> Tensor:
    shifted = x - x.amax(-1, keepdim=True)
    return shifted - shifted.exp().sum(-1, keepdim=True).log()


def _of_softmax(dtype: torch.dtype, mean: float = 8.0, spread: float = 1.0) -> tuple[Step, Array]:
    """Return the step and its result.

    Args:
        dtype: the format.
        mean: mean of the values; terms of d cancel if it is 0.
        spread: standard deviation of the scores; if it is small, several probabilities are equal in a half-precision format.
    """
    generator = torch.Generator().manual_seed(0)
    heads, size = ARCHITECTURE.num_attention_heads, ARCHITECTURE.head_size
    scores = (spread * torch.randn(ROWS, heads, LENGTH, LENGTH, generator=generator)).to(dtype)
    context, value = (torch.randn(ROWS, LENGTH, heads * size, generator=generator) for _ in range(2))
    context, value = context.to(dtype), (value + mean).to(dtype)
    left, right = (x.unflatten(-1, (heads, size)).transpose(1, 2) for x in (context, value))
    upstream = left @ right.transpose(-1, -2)
    probs, found = _by_autograd(_softmax, scores, upstream)
    return ProbabilitiesBackward(SITE, _wide(upstream), probs, _wide(context), _wide(value)), found


def _of_log_softmax(dtype: torch.dtype) -> tuple[Step, Array]:
    generator = torch.Generator().manual_seed(0)
    logits, upstream = (torch.randn(ROWS, LENGTH, ARCHITECTURE.vocab_size, generator=generator).to(dtype) for _ in range(2))
    log_probs, found = _by_autograd(_log_softmax, logits, upstream)
    return LogSoftmaxBackward(SITE, _wide(upstream), log_probs), found


@pytest.mark.parametrize("made", [_of_softmax, partial(_of_softmax, mean=0.0), partial(_of_softmax, spread=0.01), _of_log_softmax])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_largest_score_may_receive_the_errors_of_its_row(dtype: str, made: Callable[[torch.dtype], tuple[Step, Array]]) -> None:
    """Sigma must not be less than the errors, at these scores as at all others."""
    step, found = made(getattr(torch, dtype))
    scaled, probs = _in_sigma(step, found, dtype), step.parents[1]
    largest = probs == probs.max(-1, keepdims=True)
    for elements in (largest, ~largest):
        assert np.sqrt(np.square(scaled[elements]).mean()) < 1.0
        assert np.abs(scaled[elements]).max() < max_threshold(scaled.size, sidak_share(1))


@pytest.mark.parametrize("scale", [0.3, 3.0, 10.0])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_log_softmax_of_separate_operations_has_the_errors_of_its_stored_sum(dtype: str, scale: float) -> None:
    """Where one class has nearly all the probability, the rounding of the sum of exponentials is larger than its logarithm."""
    logits = (scale * torch.randn(2000, 5, generator=torch.Generator().manual_seed(0))).to(getattr(torch, dtype))
    scaled = _in_sigma(LogSoftmax(SITE, _wide(logits)), _wide(_log_softmax(logits)), dtype)
    assert np.sqrt(np.square(scaled).mean()) < 1.0
    assert np.abs(scaled).max() < max_threshold(scaled.size, sidak_share(1))


def _in_sigma(step: Step, found: Array, dtype: str) -> Array:
    """Return the errors of a result in sigma, in the arithmetic in which every operation rounds."""
    arithmetic = as_captured(hypotheses(dtype))[-1].arithmetic
    return np.asarray((found - step.value) / np.sqrt(step.roundings(arithmetic).variance()))
