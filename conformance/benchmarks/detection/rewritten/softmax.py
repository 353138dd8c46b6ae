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


def exponential_of_log_softmax(s: Tensor, keys: Tensor) -> Tensor:
    """The exponential of torch's log-softmax."""
    return torch.exp(torch.log_softmax(s.masked_fill(~keys, -math.inf), -1))


def unshifted_softmax(s: Tensor, keys: Tensor) -> Tensor:
    """Without taking off the largest score: right where no exponential overflows."""
    weights = torch.exp(s) * keys.to(s.dtype)
    return weights / weights.sum(-1, keepdim=True)


def multiplied_softmax(s: Tensor, keys: Tensor) -> Tensor:
    """Exponentials less the largest score of those that count, times the mask, normalised by torch."""
    weights = torch.exp(hidden_keys(s, keys) - hidden_keys(s, keys).amax(-1, keepdim=True)) * keys.to(s.dtype)
    return torch.nn.functional.normalize(weights, p=1.0, dim=-1)


def float32_softmax(s: Tensor, keys: Tensor) -> Tensor:
    """In float32 by torch's argument, rounded to the format of the scores: as Hugging Face has it for half formats."""
    dtype = torch.promote_types(s.dtype, torch.float32)
    return torch.softmax(hidden_keys(s, keys), -1, dtype=dtype).to(s.dtype)


def half_least_softmax(s: Tensor, keys: Tensor) -> Tensor:
    """Half of the least number of the format at masked keys."""
    return torch.softmax(s.masked_fill(~keys, torch.finfo(s.dtype).min / 2), -1)


def unmasked_keys_softmax(s: Tensor, keys: Tensor) -> Tensor:
    """Of a row's own keys alone, a row at a time, zeros put at the others."""
    probs = torch.zeros_like(s)
    for row, mask in enumerate(keys.expand(len(s), 1, 1, s.shape[-1])[:, 0, 0]):
        if mask.any():
            probs[row][..., mask] = torch.softmax(s[row][..., mask], -1)
        else:  # what a row without a token gets is undefined
            probs[row] = 1.0 / s.shape[-1]
    return probs
