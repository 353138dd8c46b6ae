"""Mistakes in the pooler and in the heads of pretraining."""

from torch import Tensor
from torch.nn import functional as F

from conformance.benchmarks.detection.blind.port import OPERATIONS, Mistake, Port, Weights
from conformance.benchmarks.detection.blind.third.tools import noise

_POOLER = ("pooler.dense",)
_POOLED = ("pooler.activation",)
_DECODER = ("cls.predictions.decoder",)
_SENTENCE = ("cls.seq_relationship",)
_ACTIVATION = ("cls.predictions.transform.transform_act_fn",)
_NORM = ("cls.predictions.transform.LayerNorm",)
_WORDS = "bert.embeddings.word_embeddings.weight"


def _mean(port: Port, _: None, hidden: Tensor) -> Tensor:
    return port.linear("bert.pooler.dense", hidden.mean(1))


def _last_token(port: Port, _: None, hidden: Tensor) -> Tensor:
    return port.linear("bert.pooler.dense", hidden[:, -1])


def _fresh_pooler(weights: Weights, layers: tuple[int, ...]) -> None:
    weight, bias = weights["bert.pooler.dense.weight"], weights["bert.pooler.dense.bias"]
    weights["bert.pooler.dense.weight"] = 0.02 * noise(weight, 31)
    weights["bert.pooler.dense.bias"] = 0 * bias


def _unpooled(port: Port, _: None, pooled: Tensor, hidden: Tensor) -> Tensor:
    return port.linear("cls.seq_relationship", hidden[:, 0])


def _labels_exchanged(port: Port, _: None, pooled: Tensor, hidden: Tensor) -> Tensor:
    return port.linear("cls.seq_relationship", pooled).flip(-1)


def _without_bias(port: Port, _: None, x: Tensor) -> Tensor:
    return F.linear(x, port.weights[_WORDS])


def _untied(port: Port, _: None, x: Tensor) -> Tensor:
    return F.linear(x, 0.02 * noise(port.weights[_WORDS], 32), port.weights["cls.predictions.bias"])


def _logarithms(port: Port, _: None, x: Tensor) -> Tensor:
    return OPERATIONS["decoder"](port, None, x).log_softmax(-1)


def _cooled(port: Port, _: None, x: Tensor) -> Tensor:
    return OPERATIONS["decoder"](port, None, x) / 2


def _norm_before(port: Port, _: None, x: Tensor) -> Tensor:
    return OPERATIONS["transform_norm"](port, None, x)


MISTAKES = (
    Mistake(
        "pooler of the mean",
        "The pooler is given the mean of the tokens.",
        "sentence embeddings, whose pooling is taken for the pooler",
        "all",
        _POOLER,
        "says that the pooler takes the mean of the tokens",
        {"pooler": _mean},
    ),
    Mistake(
        "pooler of the last token",
        "The pooler is given the last token.",
        "a decoder's class of classification",
        "all",
        _POOLER,
        "says that the pooler takes the last token",
        {"pooler": _last_token},
    ),
    Mistake(
        "pooler newly initialised",
        "The pooler has initial weights.",
        "'some weights were not initialized from the checkpoint', unread",
        "all",
        _POOLER,
        "says that the pooler's weights are not those of the checkpoint, or are initial ones",
        load=_fresh_pooler,
    ),
    Mistake(
        "pooler without tanh",
        "The pooler has no activation.",
        "a port that keeps the linear step alone",
        "all",
        _POOLED,
        "says that tanh is missing",
        {"pooler_activation": lambda port, _, x: x},
    ),
    Mistake(
        "next sentence without the pooler",
        "Next-sentence logits are of the first token's hidden state.",
        "a head written as in RoBERTa",
        "all",
        _SENTENCE,
        "says that the head takes the hidden state, or skips the pooler",
        {"next_sentence": _unpooled},
    ),
    Mistake(
        "next sentence's labels exchanged",
        "The two logits are exchanged.",
        "is_next = 1 in one's own data",
        "all",
        _SENTENCE,
        "says that the two logits, labels or classes are exchanged",
        {"next_sentence": _labels_exchanged},
    ),
    Mistake(
        "decoder without bias",
        "The decoder has no bias.",
        "x @ wte.T, from a port of GPT-2",
        "all",
        _DECODER,
        "says that the decoder's bias is missing",
        {"decoder": _without_bias},
    ),
    Mistake(
        "decoder not tied",
        "The decoder has initial weights rather than the word embeddings.",
        "a converter that leaves out tied tensors, for a model that does not tie",
        "all",
        _DECODER,
        "says that the decoder is not tied, or has other weights than the word embeddings",
        {"decoder": _untied},
    ),
    Mistake(
        "logarithms of probabilities",
        "The decoder gives log-probabilities.",
        "Flax examples, and heads made for NLLLoss",
        "all",
        _DECODER,
        "says that a log-softmax is applied",
        {"decoder": _logarithms},
    ),
    Mistake(
        "logits at temperature two",
        "The decoder's logits are divided by 2.",
        "distillation, its temperature left in the export",
        "all",
        _DECODER,
        "says that the logits are divided by 2, scaled, or have a temperature",
        {"decoder": _cooled},
    ),
    Mistake(
        "transform without activation",
        "The transform has no activation.",
        "a port that knows of hidden_act in the layers alone",
        "all",
        _ACTIVATION,
        "says that the activation is missing",
        {"transform_activation": lambda port, _, x: x},
    ),
    Mistake(
        "transform's norm before its activation",
        "The transform applies its norm first, then GELU.",
        "the order of convolutional networks",
        "all",
        (*_ACTIVATION, *_NORM),
        "says that norm and activation are in the wrong order",
        {"transform_activation": _norm_before, "transform_norm": lambda port, _, x: F.gelu(x)},
    ),
)
"""All of this theme."""
