"""Mistakes in the heads."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from conformance.benchmarks.detection.blind.port import OPERATIONS, Mistake, Port, Weights

_POOLER, _POOLED, _NEXT, _DECODER = "pooler.dense", "pooler.activation", "cls.seq_relationship", "cls.predictions.decoder"
_TABLE, _BIAS = "bert.embeddings.word_embeddings.weight", "cls.predictions.bias"
_INITIAL = 0.02
"""The standard deviation of BERT's initial weights, `initializer_range`."""


def _last_token(port: Port, _: None, hidden: Tensor) -> Tensor:
    return port.linear("bert.pooler.dense", hidden[:, -1])


def _no_tanh(port: Port, _: None, x: Tensor) -> Tensor:
    return x


def _of_first_token(port: Port, _: None, pooled: Tensor, hidden: Tensor) -> Tensor:
    return port.linear("cls.seq_relationship", hidden[:, 0])


def _swap_labels(weights: Weights, layers: tuple[int, ...]) -> None:
    for name in ("cls.seq_relationship.weight", "cls.seq_relationship.bias"):
        weights[name] = weights[name].flip(0)


def _bias_again(port: Port, _: None, x: Tensor) -> Tensor:
    return F.linear(x, port.weights[_TABLE], port.weights[_BIAS]) + port.weights[_BIAS]


def _not_tied(port: Port, _: None, x: Tensor) -> Tensor:
    table = port.weights[_TABLE]
    initial = torch.randn(table.shape, generator=torch.Generator().manual_seed(0)) * _INITIAL
    return F.linear(x, initial.to(table.dtype), port.weights[_BIAS])


def _scaled(port: Port, _: None, x: Tensor) -> Tensor:
    return OPERATIONS["decoder"](port, None, x / math.sqrt(port.architecture.hidden_size))


MISTAKES = (
    Mistake(
        "pooler of the last token",
        "The pooler reads the last token of a row, padding or not.",
        "pooling of models that end in a token for it, of which xlnet issue 73 speaks",
        "all",
        (_POOLER,),
        "says that the pooler reads the last token, or the wrong token",
        {"pooler": _last_token},
    ),
    Mistake(
        "no tanh in the pooler",
        "The pooled output is the pooler's linear layer, without the tanh.",
        "a pooler that is one linear layer; common in exercises",
        "all",
        (_POOLED,),
        "says that the tanh of the pooler is missing, or that its activation is the identity",
        {"pooler_activation": _no_tanh},
    ),
    Mistake(
        "next sentence from the first token",
        "The head of the next sentence reads the encoder's first token, not the pooled output.",
        "a classifier on hidden[:, 0]; common in exercises",
        "all",
        (_NEXT,),
        "says that the head does not read the pooled output, or reads the wrong tensor",
        {"next_sentence": _of_first_token},
    ),
    Mistake(
        "labels of the next sentence swapped",
        "The logit of label 0 stands second, that of label 1 stands first.",
        "1 taken for the sentence that follows, as transformers issues 836 and 524 ask about",
        "all",
        (_NEXT,),
        "says that the two logits, or the rows of the weight, are swapped",
        load=_swap_labels,
    ),
    Mistake(
        "bias of the vocabulary twice",
        "The bias of the masked-LM head is added by its linear layer, and then once more.",
        "transformers issue 2957, FARM issue 533",
        "all",
        (_DECODER,),
        "says that the bias is added twice",
        {"decoder": _bias_again},
    ),
    Mistake(
        "decoder not tied",
        "The masked-LM head has a random weight in place of the word embeddings.",
        "checkpoints without the tied weight: transformers issues 38870 and 34759",
        "all",
        (_DECODER,),
        "says that the decoder's weight is not tied to the word embeddings, is random, or is not loaded",
        {"decoder": _not_tied},
    ),
    Mistake(
        "decoder scaled as in T5",
        "The masked-LM head's input is divided by the root of the hidden size.",
        "the scale of T5's tied embeddings, which mlx-examples pull request 591 explains",
        "all",
        (_DECODER,),
        "says that the logits, or the head's input, are scaled or divided by the root of the hidden size",
        {"decoder": _scaled},
    ),
)
