"""Mistakes in the attention mask."""

import torch
from torch import Tensor

from conformance.benchmarks.detection.blind.port import Mistake, Port, probs

_PROBS = ("attention.self.probs",)


def _inverted(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    return probs(port, layer, x, 1 - mask)


def _added_as_it_is(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    return (x + mask[:, None, None]).softmax(-1)


def _not_masked(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    return x.softmax(-1)


def _of_queries(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    return x.masked_fill(mask[:, None, :, None] == 0, torch.finfo(x.dtype).min).softmax(-1)


def _causal_too(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    allowed = torch.ones(x.shape[-2:], dtype=torch.bool).tril() & (mask[:, None, None] != 0)
    return x.masked_fill(~allowed, torch.finfo(x.dtype).min).softmax(-1)


def _small_positive_fill(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    return x.masked_fill(mask[:, None, None] == 0, 1e-9).softmax(-1)


def _of_other_rows(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    heads = x.shape[1]
    tiled = mask.repeat(heads, 1).view(-1, heads, 1, mask.shape[-1])
    return x.masked_fill(tiled == 0, torch.finfo(x.dtype).min).softmax(-1)


MISTAKES = (
    Mistake(
        "mask the wrong way round",
        "The attended keys are masked out, and the padding is attended to.",
        "key_padding_mask of nn.MultiheadAttention, where true means to ignore, given an attention mask, where 1 means to attend",
        "all",
        _PROBS,
        "says that the mask is inverted",
        {"probs": _inverted},
    ),
    Mistake(
        "mask of ones and zeros added",
        "The mask is added to the scores as ones and zeros, not as zeros and large negative numbers.",
        "get_extended_attention_mask left out when the encoder is called by itself",
        "all",
        _PROBS,
        "says that the mask is added as ones and zeros, or that padding is attended to",
        {"probs": _added_as_it_is},
    ),
    Mistake(
        "mask all ones",
        "Every key is attended to, padding as well.",
        "bert_nli pull request 3, AES-NPCR issue 7, exllama pull request 101",
        "all",
        _PROBS,
        "says that the mask is ignored, or that padding is attended to",
        {"probs": _not_masked},
    ),
    Mistake(
        "mask laid over the queries",
        "The mask is broadcast over the rows of the scores, the queries, not over the columns.",
        "unsqueeze(-1) for unsqueeze(-2); common in exercises",
        "all",
        _PROBS,
        "says that the mask is applied to the queries in place of the keys",
        {"probs": _of_queries},
    ),
    Mistake(
        "mask lost after the first layer",
        "Only the first layer gets the mask; all others attend to padding.",
        "nn.Sequential of layers, or a checkpointing wrapper, that passes on the hidden states alone",
        "later",
        _PROBS,
        "says that the mask is ignored, or that padding is attended to, in all layers but the first",
        {"probs": _not_masked},
    ),
    Mistake(
        "causal besides padding",
        "A token attends only to itself and to the tokens before it.",
        "the attention of a GPT reused, or is_causal=True left on",
        "all",
        _PROBS,
        "says that the attention is causal",
        {"probs": _causal_too},
    ),
    Mistake(
        "fill of 1e-9 for -1e9",
        "The masked scores are set to 1e-9, which is nearly zero, in place of -1e9.",
        "a slip of the sign; common in exercises",
        "all",
        _PROBS,
        "says that the masked scores are zero, or that the fill value of the mask is too small, or that padding is attended to",
        {"probs": _small_positive_fill},
    ),
    Mistake(
        "mask tiled against the heads",
        "Batch and heads are one axis, rows first, and the mask is repeated along it heads first: heads get other rows' masks.",
        "lsdefine/attention-is-all-you-need-keras issue 36",
        "some",
        _PROBS,
        "says that a row's mask is that of another row of the batch, or differs from head to head",
        {"probs": _of_other_rows},
    ),
)
