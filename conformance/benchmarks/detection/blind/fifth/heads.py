"""Mistakes in the pooler and the pre-training heads."""

import torch
from torch import Tensor
from torch.nn import functional as F

from conformance.benchmarks.detection.blind.port import Mistake, Port, Weights

_POOLER = ("pooler.dense",)
_DECODER = ("cls.predictions.decoder",)


def _attended(port: Port) -> Tensor:
    """The mask, (B, S): what the first layer attends to."""
    return port.found["encoder.layer.0.attention.self.probs"].amax((1, 2)) > 0


def _pooled(port: Port, hidden: Tensor, index: Tensor) -> Tensor:
    rows = torch.arange(len(hidden), device=hidden.device)
    return port.linear("bert.pooler.dense", hidden[rows, index])


def _first_attended(port: Port, _: None, hidden: Tensor) -> Tensor:
    return _pooled(port, hidden, _attended(port).int().argmax(1))


def _last_by_length(port: Port, _: None, hidden: Tensor) -> Tensor:
    return _pooled(port, hidden, _attended(port).sum(1) - 1)


def _weights_of_transform(weights: Weights, layers: tuple[int, ...]) -> None:
    for part in ("weight", "bias"):
        weights[f"bert.pooler.dense.{part}"] = weights[f"cls.predictions.transform.dense.{part}"]


def _before_tanh(port: Port, _: None, pooled: Tensor, hidden: Tensor) -> Tensor:
    return port.linear("cls.seq_relationship", port.step("pooler", None, hidden))


def _logits(port: Port, x: Tensor) -> Tensor:
    return F.linear(x, port.weights["bert.embeddings.word_embeddings.weight"], port.weights["cls.predictions.bias"])


def _bias_twice(port: Port, _: None, x: Tensor) -> Tensor:
    return _logits(port, x) + port.weights["cls.predictions.bias"]


def _log_probabilities(port: Port, _: None, x: Tensor) -> Tensor:
    return _logits(port, x).log_softmax(-1)


def _interleaved(port: Port, _: None, x: Tensor) -> Tensor:
    return torch.stack(_logits(port, x).chunk(2, -1), -1).flatten(-2)


MISTAKES = (
    Mistake(
        "pooler of the first attended token",
        "The pooler reads the first token that is attended to, which is not the first of the row where padding is before it.",
        "a server that pads on the left and finds [CLS] by the mask, given batches with other masks",
        "all",
        _POOLER,
        "says that the pooler reads another token",
        {"pooler": _first_attended},
    ),
    Mistake(
        "pooler of the last token",
        "The pooler reads the token whose index is the number of attended ones less one.",
        "a classification head taken over from a decoder",
        "all",
        _POOLER,
        "says that the pooler reads another token, or the last one",
        {"pooler": _last_by_length},
    ),
    Mistake(
        "pooler with the transform's parameters",
        "The pooler has the weight and bias of the masked-LM head's transform.",
        "a loader that keys parameters by their last two names and keeps the last",
        "all",
        _POOLER,
        "says that the pooler's parameters are not the checkpoint's",
        load=_weights_of_transform,
    ),
    Mistake(
        "next sentence before the tanh",
        "The next-sentence head reads the pooler's product, not its tanh.",
        "a port that returns the pooler's linear layer for embeddings, and whose head uses what is returned",
        "all",
        ("cls.seq_relationship",),
        "says that the head's input is not the pooled output, or is without tanh",
        {"next_sentence": _before_tanh},
    ),
    Mistake(
        "decoder's bias twice",
        "The masked-LM head's bias is added twice.",
        "a port that loads cls.predictions.bias and cls.predictions.decoder.bias and adds both",
        "all",
        _DECODER,
        "says that the bias is added twice",
        {"decoder": _bias_twice},
    ),
    Mistake(
        "log-probabilities for logits",
        "The masked-LM head returns the logarithm of the softmax.",
        "Google's get_masked_lm_output, which returns log_probs",
        "all",
        _DECODER,
        "says that logits are normalised, or log-probabilities",
        {"decoder": _log_probabilities},
    ),
    Mistake(
        "shards of the vocabulary interleaved",
        "The logits of two shards are interleaved instead of concatenated.",
        "an all-gather along a new last axis, flattened",
        "all",
        _DECODER,
        "says that logits are permuted, or of other words",
        {"decoder": _interleaved},
    ),
)
