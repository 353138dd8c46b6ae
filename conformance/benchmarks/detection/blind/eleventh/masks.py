"""Mistakes in the attention mask."""

import torch
from torch import Tensor

from conformance.benchmarks.detection.blind.port import Mistake, Port, probs

_PROBS = ("attention.self.probs",)


def _inverted(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    return probs(port, layer, x, 1 - mask.long())


def _ignored(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    return x.softmax(-1)


def _of_queries(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    return x.masked_fill(mask[:, None, :, None] == 0, torch.finfo(x.dtype).min).softmax(-1)


def _added(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    return (x + mask[:, None, None].to(x.dtype)).softmax(-1)


def _after_softmax(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    return x.softmax(-1) * mask[:, None, None].to(x.dtype)


def _causal(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    later = torch.ones(x.shape[-2:], dtype=torch.bool).triu(1)
    return probs(port, layer, x.masked_fill(later, torch.finfo(x.dtype).min), mask)


def _by_length(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    lengths = mask.long().sum(-1, keepdim=True)
    return probs(port, layer, x, torch.arange(mask.shape[1]) < lengths)


def _repeated_for_heads(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    """Masks a copy of the whole batch after another, of scores with the heads of a sequence side by side."""
    by_head = mask.repeat(x.shape[1], 1).view(x.shape[0], x.shape[1], 1, -1)
    return x.masked_fill(by_head == 0, torch.finfo(x.dtype).min).softmax(-1)


MISTAKES = (
    Mistake(
        "mask upside down",
        "The tokens that are to be attended to are masked, and padding is attended to.",
        "a mask in the sense of nn.MultiheadAttention's key_padding_mask, given to code that has it the other way round; "
        "pytorch pull request 120668",
        "all",
        _PROBS,
        "says that the mask is inverted",
        {"probs": _inverted},
    ),
    Mistake(
        "mask left out",
        "All keys are attended to, padding as well.",
        "exports without attention_mask, as in Chinese-CLIP issue 66; common in exercises",
        "all",
        _PROBS,
        "says that the mask is not applied, or that padding is attended to",
        {"probs": _ignored},
    ),
    Mistake(
        "mask on the queries",
        "The mask is laid along the rows of the scores: padding's own rows are masked, and its keys are not.",
        "mask.unsqueeze(-1) for unsqueeze(-2); common in exercises",
        "all",
        _PROBS,
        "says that the mask lies along the queries, or on the wrong axis",
        {"probs": _of_queries},
    ),
    Mistake(
        "ones and zeros added",
        "The mask of ones and zeros is added to the scores.",
        "a float mask given to scaled_dot_product_attention as attn_mask; brightmart/sentiment_analysis_fine_grain issue 10",
        "all",
        _PROBS,
        "says that the mask is added as it is, or that it hardly masks",
        {"probs": _added},
    ),
    Mistake(
        "mask after the softmax",
        "The softmax is over all keys, and padding's probabilities are then zeroed.",
        "probs * mask without a division by the new sum; common in exercises",
        "some",
        _PROBS,
        "says that the mask is applied after the softmax, or that the rows do not sum to one",
        {"probs": _after_softmax},
    ),
    Mistake(
        "causal attention",
        "A token attends only to itself and to those before it.",
        "is_causal=True, or a decoder's attention, in an encoder",
        "all",
        _PROBS,
        "says that the attention is causal",
        {"probs": _causal},
    ),
    Mistake(
        "length for a mask",
        "As many keys are attended to from the first on as the mask has ones.",
        "fused attention that takes lengths, and padding on the left or between: onnxruntime issue 18945",
        "all",
        _PROBS,
        "says that padding is taken to be on the right, or that only the mask's length is used",
        {"probs": _by_length},
    ),
    Mistake(
        "masks in the wrong order for the heads",
        "The masks are copied batch after batch for scores in which a sequence's heads lie side by side.",
        "mask.repeat for repeat_interleave, where batch and heads are one axis, as for nn.MultiheadAttention's attn_mask",
        "all",
        _PROBS,
        "says that the mask is another sequence's, or mixed up over batch and heads",
        {"probs": _repeated_for_heads},
    ),
)
