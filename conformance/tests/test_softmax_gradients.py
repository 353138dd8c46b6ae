"""Rounding errors of the gradients of softmax and log-softmax written out with a subtraction that autograd differentiates."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from conformance import load_golden
from conformance.numerics.arithmetic import hypotheses
from conformance.numerics.formats import Array
from conformance.oracle import Network
from conformance.oracle.gradients.softmax import LogSoftmaxBackward, ProbabilitiesBackward
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


def _of_softmax(dtype: torch.dtype) -> tuple[Step, Array]:
    generator = torch.Generator().manual_seed(0)
    heads, size = ARCHITECTURE.num_attention_heads, ARCHITECTURE.head_size
    scores = torch.randn(ROWS, heads, LENGTH, LENGTH, generator=generator).to(dtype)
    context, value = (mean + torch.randn(ROWS, LENGTH, heads * size, generator=generator) for mean in (0.0, 8.0))
    context, value = context.to(dtype), value.to(dtype)
    left, right = (x.unflatten(-1, (heads, size)).transpose(1, 2) for x in (context, value))
    upstream = left @ right.transpose(-1, -2)
    probs, found = _by_autograd(_softmax, scores, upstream)
    return ProbabilitiesBackward(SITE, _wide(upstream), probs, _wide(context), _wide(value)), found


def _of_log_softmax(dtype: torch.dtype) -> tuple[Step, Array]:
    generator = torch.Generator().manual_seed(0)
    logits, upstream = (torch.randn(ROWS, LENGTH, ARCHITECTURE.vocab_size, generator=generator).to(dtype) for _ in range(2))
    log_probs, found = _by_autograd(_log_softmax, logits, upstream)
    return LogSoftmaxBackward(SITE, _wide(upstream), log_probs), found


@pytest.mark.parametrize("made", [_of_softmax, _of_log_softmax])
def test_the_largest_score_may_receive_the_errors_of_its_row(made: Callable[[torch.dtype], tuple[Step, Array]]) -> None:
    """Sigma must not be less than the errors, at these scores as at all others."""
    step, found = made(torch.float32)
    sigma = np.sqrt(step.roundings(hypotheses("float32")[0].arithmetic).variance())
    scaled, probs = (found - step.value) / sigma, step.parents[1]
    largest = probs == probs.max(-1, keepdims=True)
    for elements in (largest, ~largest):
        assert np.sqrt(np.square(scaled[elements]).mean()) < 1.0
