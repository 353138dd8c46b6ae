"""Mistakes in the attention."""

import math

import torch
from torch import Tensor

from conformance.benchmarks.detection.blind.eighth.fused import fused
from conformance.benchmarks.detection.blind.port import Mistake, Port, scores

_SCORES, _CONTEXT = "attention.self.scores", "attention.self.context"


def _viewed(port: Port, x: Tensor) -> Tensor:
    """(B, S, H) -> (B, h, S, d), without the transpose."""
    return x.reshape(len(x), port.architecture.num_attention_heads, x.shape[1], -1)


def _scores_of_views(port: Port, layer: int, query: Tensor, key: Tensor) -> Tensor:
    return _viewed(port, query) @ _viewed(port, key).transpose(-1, -2) / math.sqrt(port.architecture.head_size)


def _context_of_views(port: Port, layer: int, weights: Tensor, value: Tensor) -> Tensor:
    return (weights @ _viewed(port, value)).reshape_as(value)


def _merged_by_view(port: Port, layer: int, weights: Tensor, value: Tensor) -> Tensor:
    return (weights @ port.split(value)).reshape_as(value)


def _by_root_of_width(port: Port, layer: int, query: Tensor, key: Tensor) -> Tensor:
    return port.split(query) @ port.split(key).transpose(-1, -2) / math.sqrt(port.architecture.hidden_size)


def _divided_twice(port: Port, layer: int, query: Tensor, key: Tensor) -> Tensor:
    return scores(port, layer, query, key) / math.sqrt(port.architecture.head_size)


def _over_queries(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    return x.masked_fill(mask[:, None, None] == 0, torch.finfo(x.dtype).min).softmax(-2)


def _unprojected(port: Port, layer: int, x: Tensor) -> Tensor:
    return x


def _over_rows(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """Attention along the first axis, among the tokens at one position: (B, h, S, d) each, (B, S) -> (B, h, S, d)."""
    q, k, v = (x.permute(2, 1, 0, 3) for x in (query, key, value))
    x = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    x = x.masked_fill(mask.T[:, None, None] == 0, torch.finfo(x.dtype).min)
    return (x.softmax(-1) @ v).permute(2, 1, 0, 3)


def _rotated(x: Tensor) -> Tensor:
    """Rotary position embedding (Su et al. 2021) of (B, h, S, d), with halves as pairs."""
    length, width = x.shape[-2:]
    rates = 10000.0 ** (-torch.arange(0, width, 2, device=x.device) / width)
    angles = torch.arange(length, device=x.device)[:, None] * rates
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


def _rotary(port: Port, layer: int, query: Tensor, key: Tensor) -> Tensor:
    q, k = (_rotated(port.split(x)) for x in (query, key))
    return q @ k.transpose(-1, -2) / math.sqrt(port.architecture.head_size)


MISTAKES = (
    Mistake(
        "heads split without a transpose",
        "Query, key and value are viewed as (B, h, S, d) instead of (B, S, h, d) transposed, and the context is viewed back.",
        "reczoo/FuxiCTR issue 30",
        "all",
        (_SCORES, _CONTEXT),
        "says that the heads are split wrongly, or mix positions and features",
        {"scores": _scores_of_views, "context": _context_of_views},
    ),
    Mistake(
        "heads merged without a transpose",
        "The context (B, h, S, d) is viewed as (B, S, H) without exchanging heads and positions.",
        "jsbaan/transformer-from-scratch pull request 6 and hackiey/QAnet-pytorch issue 2",
        "all",
        (_CONTEXT,),
        "says that the heads are merged wrongly, without the transpose",
        {"context": _merged_by_view},
    ),
    Mistake(
        "scores by the root of the width",
        "The scores are divided by √H instead of √d.",
        "aladdinpersson/Machine-Learning-Collection issue 65",
        "all",
        (_SCORES,),
        "says that the scores are divided by the root of the width instead of the head size",
        {"scores": _by_root_of_width},
    ),
    Mistake(
        "scores scaled twice",
        "The scores are divided by √d twice.",
        "a scale that was folded into the query's weights, or applied to the query, before an operation that scales as well",
        "some",
        (_SCORES,),
        "says that the scores are divided by d, or scaled twice",
        {"scores": _divided_twice},
    ),
    Mistake(
        "softmax over the queries",
        "The softmax is over the queries instead of the keys.",
        "labml annotated_deep_learning_paper_implementations issue 146 and nerminnuraydogan/vision-transformer issue 1",
        "all",
        ("attention.self.probs",),
        "says that the softmax is over the wrong axis, the queries",
        {"probs": _over_queries},
    ),
    Mistake(
        "no projection after the heads",
        "The heads' context is the attention's output, without the dense layer.",
        "common in exercises that stop at the concatenation of the heads",
        "all",
        ("attention.output.dense",),
        "says that the dense layer after the attention is missing",
        {"attention_dense": _unprojected},
    ),
    Mistake(
        "attention over the batch",
        "A token attends to the tokens at its position in the other rows instead of those of its row.",
        "nn.MultiheadAttention without batch_first for inputs whose first axis is the batch; common in exercises",
        "all",
        (_CONTEXT,),
        "says that the attention is over the rows of the batch instead of the positions",
        fused(_over_rows),
    ),
    Mistake(
        "rotary positions as well",
        "Queries and keys are rotated by their positions before the scores, besides the learned position embeddings.",
        "an attention block of a later model, as in engines whose graph BERT shares with nomic-bert",
        "all",
        (_SCORES,),
        "says that queries and keys are rotated by position, or that the scores depend on position",
        {"scores": _rotary},
    ),
)
