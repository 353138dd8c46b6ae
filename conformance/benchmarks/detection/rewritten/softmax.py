"""Softmax of scores and of keys, True where one is attended to."""

import math

import torch
from torch import Tensor

from conformance.benchmarks.detection.steps import hidden_keys


def native_softmax(s: Tensor, keys: Tensor) -> Tensor:
    """Exponentials, those of masked keys set to 0, divided by their sum."""
    # The largest of those that count: beside a masked one that is larger by far, all of them would vanish in float16.
    largest = hidden_keys(s, keys).amax(-1, keepdim=True)
    weights = torch.exp(s - largest).masked_fill(~keys, 0.0)
    return weights / weights.sum(-1, keepdim=True)


def reciprocal_softmax(s: Tensor, keys: Tensor) -> Tensor:
    """Times the reciprocal of the sum."""
    weights = torch.exp(s - hidden_keys(s, keys).amax(-1, keepdim=True)).masked_fill(~keys, 0.0)
    return weights * (1.0 / weights.sum(-1, keepdim=True))


def logsumexp_softmax(s: Tensor, keys: Tensor) -> Tensor:
    """exp(s − log Σ exp s)."""
    masked = s.masked_fill(~keys, -math.inf)
    return torch.exp(masked - torch.logsumexp(masked, -1, keepdim=True))


def base_two_softmax(s: Tensor, keys: Tensor) -> Tensor:
    """Powers of two."""
    masked = s.masked_fill(~keys, -math.inf)
    weights = torch.exp2((masked - masked.amax(-1, keepdim=True)) * math.log2(math.e))
    return weights / weights.sum(-1, keepdim=True)


def shifted_softmax(s: Tensor, keys: Tensor) -> Tensor:
    """Of scores less their largest, as softmax itself has it."""
    masked = hidden_keys(s, keys)
    return torch.softmax(masked - masked.amax(-1, keepdim=True), -1)


def infinite_softmax(s: Tensor, keys: Tensor) -> Tensor:
    """−∞ at masked keys."""
    return torch.softmax(s.masked_fill(~keys, -math.inf), -1)


def added_softmax(s: Tensor, keys: Tensor) -> Tensor:
    """−10000 added at masked keys, as the first BERT has it; enough for float32 and more."""
    return torch.softmax(s + (1.0 - keys.to(s.dtype)) * -10000.0, -1)


def added_least_softmax(s: Tensor, keys: Tensor) -> Tensor:
    """The least number of the format added at masked keys."""
    return torch.softmax(s + torch.zeros_like(s[:, :1, :1]).masked_fill(~keys, torch.finfo(s.dtype).min), -1)
