"""Mistakes in the attention mask."""

import torch
from torch import Tensor

from conformance.benchmarks.detection.blind.port import Mistake, Port

_PROBS = ("attention.self.probs",)


def _over(x: Tensor, attended: Tensor) -> Tensor:
    """Softmax of the scores (B, h, S, S) over the keys where `attended`, which is broadcast, is true."""
    return x.masked_fill(~attended, torch.finfo(x.dtype).min).softmax(-1)


def _none(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    return x.softmax(-1)


def _of_queries(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    return _over(x, (mask != 0)[:, None, :, None])


def _inverted(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    return _over(x, (mask == 0)[:, None, None])


def _added_as_it_is(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    return (x + mask[:, None, None].to(x.dtype)).softmax(-1)


def _by_length(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    keys = torch.arange(mask.shape[1], device=mask.device)
    return _over(x, (keys < mask.sum(1, keepdim=True))[:, None, None])


def _causal(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    earlier = torch.ones(x.shape[-2:], dtype=torch.bool, device=x.device).tril()
    return _over(x, earlier & (mask != 0)[:, None, None])


def _after_softmax(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    return x.softmax(-1) * mask[:, None, None].to(x.dtype)


def _ten_less(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    return (x - 10.0 * (1 - mask[:, None, None].to(x.dtype))).softmax(-1)


def _tiled(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    rows, heads = x.shape[:2]
    return _over(x, (mask != 0).repeat(heads, 1).view(rows, heads, 1, -1))


MISTAKES = (
    Mistake(
        "batch without a mask",
        "Padding is attended to like any other token.",
        "candle issues 1552 and 1798 and swift-embeddings pull request 20: a BERT that took no attention mask",
        "all",
        _PROBS,
        "says that the mask is ignored, or that padding is attended to",
        {"probs": _none},
    ),
    Mistake(
        "mask of the queries",
        "The mask is broadcast over the keys: queries at padding are masked, and keys at padding are not.",
        "hyunwoongko/transformer pull request 40: unsqueeze(1).unsqueeze(3) instead of unsqueeze(1).unsqueeze(2)",
        "all",
        _PROBS,
        "says that the mask is applied to the queries instead of the keys",
        {"probs": _of_queries},
    ),
    Mistake(
        "mask for padding instead of tokens",
        "Padding is attended to, and the tokens are not.",
        "a tokenizer's attention mask given as key_padding_mask, whose True is padding; TurboTransformers pull request 95",
        "all",
        _PROBS,
        "says that the mask is inverted",
        {"probs": _inverted},
    ),
    Mistake(
        "mask of ones added to the scores",
        "The mask itself is added: 1 to the scores of the tokens that are attended to, and 0 to those of padding.",
        "a mask of floats given as attn_mask, which is added where booleans are filled; mlverse/torch pull request 1208",
        "all",
        _PROBS,
        "says that the mask of ones and zeros is added to the scores",
        {"probs": _added_as_it_is},
    ),
    Mistake(
        "mask as a length",
        "As many keys are attended to as the mask has ones, from the first on, wherever the ones are.",
        "onnxruntime's fused attention, which reduces the mask to a length: issue 18945 and pull request 4889",
        "all",
        _PROBS,
        "says that the mask is reduced to a length, or that padding on the right is assumed",
        {"probs": _by_length},
    ),
    Mistake(
        "causal mask of a decoder",
        "A token attends only to itself and to earlier tokens.",
        "an engine for decoders to which BERT was added, with its causal flag as it was; llama.cpp issue 2872",
        "all",
        _PROBS,
        "says that the attention is causal",
        {"probs": _causal},
    ),
    Mistake(
        "mask after the softmax",
        "The probabilities of padding are set to 0 after the softmax, and the rest is not divided by its sum.",
        "common in exercises; proposed for boolean masks in pytorch issue 103749",
        "all",
        _PROBS,
        "says that the mask is applied after the softmax, or that the probabilities do not sum to 1",
        {"probs": _after_softmax},
    ),
    Mistake(
        "mask of minus ten",
        "10 is subtracted from the scores of padding instead of a number that makes their probabilities 0.",
        "lucidrains/nGPT-pytorch issue 11, where it is the workaround for NaN",
        "all",
        _PROBS,
        "says that the number that masks is too small, or that padding keeps a small probability",
        {"probs": _ten_less},
    ),
    Mistake(
        "masks tiled over the heads",
        "The masks of the rows are repeated one after the other, while the heads of a row are next to each other.",
        "repeat instead of repeat_interleave for the (B · h, S, S) mask of nn.MultiheadAttention; sooftware/attentions issue 4",
        "all",
        _PROBS,
        "says that heads have the mask of another row",
        {"probs": _tiled},
    ),
)
