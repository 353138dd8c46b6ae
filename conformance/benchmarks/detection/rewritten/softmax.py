"""Implementations of softmax, from the scores and a mask of keys, True at attended keys."""

import math

import torch
from torch import Tensor

from conformance.benchmarks.detection.steps import hidden_keys


def native_softmax(s: Tensor, keys: Tensor) -> Tensor:
    """Divide the exponentials, which are set to 0 at masked keys, by their sum."""
    # The maximum is over attended keys only: relative to a much larger masked score, all exponentials would underflow in float16.
    largest = hidden_keys(s, keys).amax(-1, keepdim=True)
    weights = torch.exp(s - largest).masked_fill(~keys, 0.0)
    return weights / weights.sum(-1, keepdim=True)


def reciprocal_softmax(s: Tensor, keys: Tensor) -> Tensor:
    """Multiply the exponentials by the reciprocal of their sum."""
    weights = torch.exp(s - hidden_keys(s, keys).amax(-1, keepdim=True)).masked_fill(~keys, 0.0)
    return weights * (1.0 / weights.sum(-1, keepdim=True))


def logsumexp_softmax(s: Tensor, keys: Tensor) -> Tensor:
    """Compute exp(s − log Σ exp s)."""
    masked = s.masked_fill(~keys, -math.inf)
    return torch.exp(masked - torch.logsumexp(masked, -1, keepdim=True))


def base_two_softmax(s: Tensor, keys: Tensor) -> Tensor:
    """Compute the exponentials as powers of two."""
    masked = s.masked_fill(~keys, -math.inf)
    weights = torch.exp2((masked - masked.amax(-1, keepdim=True)) * math.log2(math.e))
    return weights / weights.sum(-1, keepdim=True)


def shifted_softmax(s: Tensor, keys: Tensor) -> Tensor:
    """Subtract the largest score before torch's softmax, which does so again."""
    masked = hidden_keys(s, keys)
    return torch.softmax(masked - masked.amax(-1, keepdim=True), -1)


def infinite_softmax(s: Tensor, keys: Tensor) -> Tensor:
    """Set masked keys to −∞."""
    return torch.softmax(s.masked_fill(~keys, -math.inf), -1)


def added_softmax(s: Tensor, keys: Tensor) -> Tensor:
    """Add −10000 at masked keys, as the first BERT does; this suffices in float32 and wider formats."""
    return torch.softmax(s + (1.0 - keys.to(s.dtype)) * -10000.0, -1)


def added_least_softmax(s: Tensor, keys: Tensor) -> Tensor:
    """Add the least finite number of the format at masked keys."""
    return torch.softmax(s + torch.zeros_like(s[:, :1, :1]).masked_fill(~keys, torch.finfo(s.dtype).min), -1)


def exponential_of_log_softmax(s: Tensor, keys: Tensor) -> Tensor:
    """Compute the exponential of torch's log-softmax."""
    return torch.exp(torch.log_softmax(s.masked_fill(~keys, -math.inf), -1))


def unshifted_softmax(s: Tensor, keys: Tensor) -> Tensor:
    """Do not subtract the largest score, which is correct if no exponential overflows."""
    weights = torch.exp(s) * keys.to(s.dtype)
    return weights / weights.sum(-1, keepdim=True)


def multiplied_softmax(s: Tensor, keys: Tensor) -> Tensor:
    """Multiply the shifted exponentials by the mask, and normalize them by torch's `normalize`."""
    weights = torch.exp(hidden_keys(s, keys) - hidden_keys(s, keys).amax(-1, keepdim=True)) * keys.to(s.dtype)
    return torch.nn.functional.normalize(weights, p=1.0, dim=-1)


def float32_softmax(s: Tensor, keys: Tensor) -> Tensor:
    """Compute in float32 by torch's `dtype` argument, and round to the format of the scores.

    Hugging Face does so in half precision.
    """
    dtype = torch.promote_types(s.dtype, torch.float32)
    return torch.softmax(hidden_keys(s, keys), -1, dtype=dtype).to(s.dtype)


def half_least_softmax(s: Tensor, keys: Tensor) -> Tensor:
    """Set masked keys to half of the least finite number of the format."""
    return torch.softmax(s.masked_fill(~keys, torch.finfo(s.dtype).min / 2), -1)


def unmasked_keys_softmax(s: Tensor, keys: Tensor) -> Tensor:
    """Compute each row of the batch over its attended keys only, and set all others to zero."""
    probs = torch.zeros_like(s)
    for row, mask in enumerate(keys.expand(len(s), 1, 1, s.shape[-1])[:, 0, 0]):
        if mask.any():
            probs[row][..., mask] = torch.softmax(s[row][..., mask], -1)
        else:  # undefined for a row without tokens
            probs[row] = 1.0 / s.shape[-1]
    return probs
