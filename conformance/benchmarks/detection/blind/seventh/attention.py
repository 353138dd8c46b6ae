"""Mistakes in the attention."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from conformance.benchmarks.detection.blind.port import Mistake, Operation, Port, prefix, probs

_QUERY, _KEY, _VALUE = (f"attention.self.{name}" for name in ("query", "key", "value"))
_SCORES, _PROBS, _CONTEXT = (f"attention.self.{name}" for name in ("scores", "probs", "context"))
_PARTS = ("query", "key", "value")


def _interleaved(part: str) -> Operation:
    """One of the three, cut from the fused projection as if each head's three were side by side."""

    def projected(port: Port, layer: int, x: Tensor) -> Tensor:
        weights, biases = (
            torch.cat([port.weights[f"{prefix(layer)}.attention.self.{name}.{kind}"] for name in _PARTS])
            for kind in ("weight", "bias")
        )
        fused = F.linear(x, weights, biases).view(*x.shape[:-1], port.architecture.num_attention_heads, 3, -1)
        return fused[..., _PARTS.index(part), :].flatten(-2)

    return projected


def _of_pairs(part: str) -> Operation:
    """Keys or values of which each pair of heads has the mean."""

    def projected(port: Port, layer: int, x: Tensor) -> Tensor:
        found = port.linear(f"{prefix(layer)}.attention.self.{part}", x)
        pairs = found.view(*x.shape[:-1], port.architecture.num_attention_heads // 2, 2, -1)
        return pairs.mean(-2, keepdim=True).expand_as(pairs).flatten(-3)

    return projected


def _capped(port: Port, layer: int, query: Tensor, key: Tensor) -> Tensor:
    scores = port.split(query) @ port.split(key).transpose(-1, -2) / math.sqrt(port.architecture.head_size)
    return 50 * (scores / 50).tanh()


def _bias_not_folded(port: Port, layer: int, x: Tensor) -> Tensor:
    name = f"{prefix(layer)}.attention.self.query"
    bias = port.weights[f"{name}.bias"] * math.sqrt(port.architecture.head_size)
    return F.linear(x, port.weights[f"{name}.weight"], bias)


def _over_heads(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    return x.masked_fill(mask[:, None, None] == 0, torch.finfo(x.dtype).min).softmax(1)


def _features_first(port: Port, x: Tensor) -> Tensor:
    return x.view(*x.shape[:-1], -1, port.architecture.num_attention_heads).permute(0, 3, 1, 2)


def _features_first_scores(port: Port, layer: int, query: Tensor, key: Tensor) -> Tensor:
    query, key = _features_first(port, query), _features_first(port, key)
    return query @ key.transpose(-1, -2) / math.sqrt(port.architecture.head_size)


def _features_first_context(port: Port, layer: int, weights: Tensor, value: Tensor) -> Tensor:
    return (weights @ _features_first(port, value)).permute(0, 2, 3, 1).flatten(2)


def _not_rescaled(port: Port, layer: int, weights: Tensor, value: Tensor) -> Tensor:
    # The logarithms of the probabilities are scores with the same softmax.
    scores, values = weights.float().clamp_min(1e-30).log(), port.split(value).float()
    highest = torch.full_like(scores[..., :1], -1e30)
    total, summed = torch.zeros_like(highest), torch.zeros_like(values)
    for start in range(0, scores.shape[-1], 4):
        block, of_block = scores[..., start : start + 4], values[..., start : start + 4, :]
        before, highest = highest, torch.maximum(highest, block.amax(-1, keepdim=True))
        exponentials = (block - highest).exp()
        total = total * (before - highest).exp() + exponentials.sum(-1, keepdim=True)
        summed = summed + exponentials @ of_block
    return (summed / total).transpose(1, 2).flatten(2).to(value.dtype)


def _mean_of_ranks(port: Port, layer: int, weights: Tensor, value: Tensor) -> Tensor:
    ranks = zip(weights.tensor_split(2, -1), port.split(value).tensor_split(2, -2), strict=True)
    found = [(part / part.sum(-1, keepdim=True)).nan_to_num() @ values for part, values in ranks]
    return ((found[0] + found[1]) / 2).transpose(1, 2).flatten(2)


def _heads_as_rows(port: Port, layer: int, weights: Tensor, value: Tensor) -> Tensor:
    of_heads = weights @ port.split(value)
    rows, heads, *rest = of_heads.shape
    return of_heads.reshape(heads, rows, *rest).permute(1, 2, 0, 3).flatten(2)


def _greatest(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    found = probs(port, layer, x, mask)
    least = found.topk(min(4, found.shape[-1])).values[..., -1:]
    return found.where(found >= least, 0)


MISTAKES = (
    Mistake(
        "fused projection cut head by head",
        "The fused query, key and value are cut as if each head had its three side by side.",
        "Megatron's or GPT-NeoX's order of the fused projection, read for weights that are fused one after the other",
        "first",
        (_QUERY, _KEY, _VALUE),
        "says that query, key and value are cut in another order, or that their features are interleaved",
        {part: _interleaved(part) for part in _PARTS},
    ),
    Mistake(
        "keys and values of pairs of heads averaged",
        "Each pair of heads has the mean of its keys and of its values.",
        "a conversion to grouped-query attention that pools heads, without training afterwards",
        "all",
        (_KEY, _VALUE),
        "says that heads share their keys and values, or that they are means over heads",
        {"key": _of_pairs("key"), "value": _of_pairs("value")},
    ),
    Mistake(
        "scores capped",
        "The scores are 50·tanh(score / 50).",
        "an attention kernel with the soft cap of Gemma 2, left at its default",
        "all",
        (_SCORES,),
        "says that the scores are capped, or pass through tanh",
        {"scores": _capped},
    ),
    Mistake(
        "scale folded into the weight alone",
        "The query's bias is multiplied by √(head size), because 1/√(head size) was folded into its weight alone.",
        "an export that folds the scores' scale into the query's projection",
        "all",
        (_QUERY,),
        "says that the query's bias is multiplied by a constant",
        {"query": _bias_not_folded},
    ),
    Mistake(
        "softmax over the heads",
        "The softmax of the scores is over the heads instead of the keys.",
        "F.softmax without a dimension, which takes axis 1 of a tensor of four axes",
        "all",
        (_PROBS,),
        "says that the softmax is over another axis, or over the heads",
        {"probs": _over_heads},
    ),
    Mistake(
        "heads interleaved",
        "Feature i of the projections belongs to head i mod h, in splitting and in merging.",
        "einops with `(d h)` for `(h d)`, or a view to (B, S, d, h)",
        "all",
        (_SCORES, _CONTEXT),
        "says that the heads are split in another layout, or interleaved",
        {"scores": _features_first_scores, "context": _features_first_context},
    ),
    Mistake(
        "online softmax without rescaling",
        "The sum over earlier blocks of 4 keys is not multiplied by exp(old maximum - new maximum).",
        "a hand-written flash attention that rescales the denominator but not the accumulator",
        "last",
        (_CONTEXT,),
        "says that the context is not the probabilities times the values, or that blocks of keys weigh too much",
        {"context": _not_rescaled},
    ),
    Mistake(
        "ranks averaged",
        "The context is the mean of two, each of which is normalised over its half of the keys.",
        "context parallelism or ring attention that does not combine by the log-sum-exp",
        "all",
        (_CONTEXT,),
        "says that the halves of the keys are normalised apart, or weigh the same",
        {"context": _mean_of_ranks},
    ),
    Mistake(
        "rows and heads mixed",
        "The context of row b and head i is put where that of another row and head belongs.",
        "attention in (B·h, S, d) that is reshaped as (h, B, S, d)",
        "first",
        (_CONTEXT,),
        "says that heads and rows are mixed, or that the context is of other rows",
        {"context": _heads_as_rows},
    ),
    Mistake(
        "four greatest probabilities",
        "Only the four greatest probabilities of each query are kept, and they are not normalised again.",
        "sparse top-k attention as an optimisation",
        "all",
        (_PROBS,),
        "says that small probabilities are zero, or that the probabilities do not sum to 1",
        {"probs": _greatest},
    ),
)
