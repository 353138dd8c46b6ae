"""Mistakes in the pooler and in the heads."""

import torch
from torch import Tensor
from torch.nn import functional as F

from conformance.benchmarks.detection.blind.port import Mistake, Port

_POOLER, _POOLED = "pooler.dense", "pooler.activation"
_DECODER, _NEXT = "cls.predictions.decoder", "cls.seq_relationship"
_TABLE, _BIAS = "bert.embeddings.word_embeddings.weight", "cls.predictions.bias"


def _weighted_mean(port: Port, _: None, hidden: Tensor) -> Tensor:
    weights = torch.arange(1, hidden.shape[1] + 1, dtype=hidden.dtype)[:, None]
    return port.linear("bert.pooler.dense", (hidden * weights).sum(1) / weights.sum())


def _rational(port: Port, _: None, x: Tensor) -> Tensor:
    return (x * (27 + x**2) / (27 + 9 * x**2)).clamp(-1, 1)


def _of_unit_length(port: Port, _: None, x: Tensor) -> Tensor:
    return F.normalize(x.tanh(), dim=-1)


def _pooled_again(port: Port, _: None, pooled: Tensor, hidden: Tensor) -> Tensor:
    return port.linear(_NEXT, port.linear("bert.pooler.dense", pooled).tanh())


def _without_special_tokens(port: Port, _: None, x: Tensor) -> Tensor:
    logits = F.linear(x, port.weights[_TABLE], port.weights[_BIAS])
    logits[..., :5] = -10000
    return logits


def _table_of_unit_length(port: Port, _: None, x: Tensor) -> Tensor:
    return F.linear(x, F.normalize(port.weights[_TABLE], dim=-1), port.weights[_BIAS])


MISTAKES = (
    Mistake(
        "pooler reads a weighted mean",
        "The pooler reads the mean of all tokens with the weights 1, 2, 3 and so on instead of the first token.",
        "the pooling of SGPT, for networks that are causal",
        "all",
        (_POOLER,),
        "says that the pooler reads a mean, or not the first token",
        {"pooler": _weighted_mean},
    ),
    Mistake(
        "rational tanh",
        "The pooler's tanh is x (27 + x²) / (27 + 9 x²), limited to ±1.",
        "an embedded or vectorized runtime with a Padé approximant of tanh",
        "all",
        (_POOLED,),
        "says that the pooler's tanh is approximated, or is another function",
        {"pooler_activation": _rational},
    ),
    Mistake(
        "pooled output of unit length",
        "The pooled output is divided by its length.",
        "the Normalize module of sentence-transformers, kept when a classifier is put on top",
        "all",
        (_POOLED,),
        "says that the pooled output is normalised",
        {"pooler_activation": _of_unit_length},
    ),
    Mistake(
        "pooled twice",
        "The next-sentence head reads the pooled output after the pooler's projection and tanh once more.",
        "a head that has a pooler of its own, given the pooled output",
        "all",
        (_NEXT,),
        "says that the pooler is applied twice",
        {"next_sentence": _pooled_again},
    ),
    Mistake(
        "special tokens suppressed",
        "The logits of the first five token ids are -10000.",
        "a fill-mask service that must not predict [PAD] or [CLS], in the network instead of the service",
        "all",
        (_DECODER,),
        "says that the logits of some tokens are others, or constant",
        {"decoder": _without_special_tokens},
    ),
    Mistake(
        "decoder's rows of unit length",
        "The rows of the decoder's weight are divided by their lengths.",
        "the NormHead of Baichuan 2, or a cosine classifier, on a table that was trained without",
        "all",
        (_DECODER,),
        "says that the decoder's weight is normalised, or that logits are multiplied by a factor for each token",
        {"decoder": _table_of_unit_length},
    ),
)
