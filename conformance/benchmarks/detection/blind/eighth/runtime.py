"""Mistakes in how the network is run: modes, number formats, batches, shapes and the order of layers."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from conformance.benchmarks.detection.blind.eighth.fused import fused
from conformance.benchmarks.detection.blind.port import OPERATIONS, Mistake, Operation, Port, Weights, prefix

_QKV = ("attention.self.query", "attention.self.key", "attention.self.value")
_DENSE = (*_QKV, "attention.output.dense", "intermediate.dense", "output.dense")
_HEADS_INPUT = ("pooler.dense", "cls.predictions.transform.dense")
# How many bits of a float32's fraction TensorFloat-32, with 10 of 23, does without.
_LESS = 13


def _drop(x: Tensor, rate: float) -> Tensor:
    """Dropout of a fixed seed, so that every run is the same."""
    kept = torch.rand(x.shape, generator=torch.Generator().manual_seed(0)) >= rate
    return x * kept.to(x.device) / (1 - rate)


def _dropped_hidden(port: Port, _: None, x: Tensor) -> Tensor:
    return _drop(x, port.architecture.hidden_dropout_prob)


def _dropped_probs(port: Port, layer: int, x: Tensor) -> Tensor:
    return _drop(x, port.architecture.attention_probs_dropout_prob)


def _dropped_before(step: str) -> Operation:
    """That norm, of which the first input, the sublayer's output, is dropped from."""

    def replaced(port: Port, layer: int, x: Tensor, *others: Tensor) -> Tensor:
        return OPERATIONS[step](port, layer, _drop(x, port.architecture.hidden_dropout_prob), *others)

    return replaced


def _eight_bits(weights: Weights, layers: tuple[int, ...]) -> None:
    for layer in layers:
        for name in _DENSE:
            key = f"{prefix(layer)}.{name}.weight"
            step = weights[key].abs().max() / 127
            weights[key] = (weights[key] / step).round() * step


def _short(x: Tensor) -> Tensor:
    """Rounded to TensorFloat-32."""
    if x.dtype != torch.float32:
        return x
    half, kept = 1 << (_LESS - 1), -(1 << _LESS)
    return ((x.contiguous().view(torch.int32) + half) & kept).view(torch.float32)


def _short_linear(name: str) -> Operation:
    """The dense layer of that name, in its layer if the name is of a layer, with factors in TensorFloat-32."""

    def replaced(port: Port, layer: int | None, x: Tensor) -> Tensor:
        full = name if layer is None else f"{prefix(layer)}.{name}"
        return F.linear(_short(x), _short(port.weights[f"{full}.weight"])) + port.weights[f"{full}.bias"]

    return replaced


def _short_scores(port: Port, layer: int, query: Tensor, key: Tensor) -> Tensor:
    q, k = (_short(port.split(x)) for x in (query, key))
    return q @ k.transpose(-1, -2) / math.sqrt(port.architecture.head_size)


def _short_context(port: Port, layer: int, weights: Tensor, value: Tensor) -> Tensor:
    return (_short(weights) @ _short(port.split(value))).transpose(1, 2).flatten(2)


def _short_decoder(port: Port, _: None, x: Tensor) -> Tensor:
    table = port.weights["bert.embeddings.word_embeddings.weight"]
    return F.linear(_short(x), _short(table)) + port.weights["cls.predictions.bias"]


def _over_all_rows(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """Attention of every token to the tokens of all rows: (B, h, S, d) each, (B, S) -> (B, h, S, d)."""
    q, k, v = (x.transpose(0, 1).flatten(1, 2) for x in (query, key, value))
    x = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    x = x.masked_fill(mask.flatten() == 0, torch.finfo(x.dtype).min)
    return (x.softmax(-1) @ v).view(len(x), *mask.shape, -1).transpose(0, 1)


def _layer_before(port: Port, _: None, hidden: Tensor) -> Tensor:
    return port.layer_before()


def _of_embeddings(step: str) -> Operation:
    """That step with the embeddings for the output of the layer before."""
    return lambda port, layer, x: OPERATIONS[step](port, layer, port.found["embeddings.dropout"])


def _residual_of_embeddings(port: Port, layer: int, x: Tensor, skip: Tensor) -> Tensor:
    return OPERATIONS["attention_norm"](port, layer, x, port.found["embeddings.dropout"])


def _first_half(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    keys = torch.arange(mask.shape[1], device=mask.device)
    return OPERATIONS["probs"](port, layer, x, mask * (keys < mask.shape[1] // 2))


MISTAKES = (
    Mistake(
        "evaluation mode forgotten",
        "All dropouts are as in training.",
        "a model without eval(): transformers issues 278 and 9039",
        "all",
        ("embeddings.dropout", "attention.self.dropout", "attention.output.LayerNorm", "output.LayerNorm"),
        "says that dropout is active",
        {
            "embedding_dropout": _dropped_hidden,
            "attention_dropout": _dropped_probs,
            "attention_norm": _dropped_before("attention_norm"),
            "output_norm": _dropped_before("output_norm"),
        },
    ),
    Mistake(
        "eight bits for each matrix",
        "The matrices of every second layer are rounded to 255 steps, with one scale for a matrix.",
        "quantisation of weights by tensor instead of by channel; pytorch issue 27949 reports what 8 bits cost a BERT",
        "some",
        _DENSE,
        "says that the layers' weights are quantised to 8 bits, or rounded",
        load=_eight_bits,
    ),
    Mistake(
        "matrix products in TensorFloat-32",
        "The factors of all matrix products are rounded to 10 bits of fraction.",
        "torch.backends.cuda.matmul.allow_tf32, or a library's default, where float32 is meant",
        "all",
        (
            *_DENSE,
            "attention.self.scores",
            "attention.self.context",
            *_HEADS_INPUT,
            "cls.predictions.decoder",
        ),
        "says that the matrix products are in TensorFloat-32, or in a lower precision",
        {
            "query": _short_linear("attention.self.query"),
            "key": _short_linear("attention.self.key"),
            "value": _short_linear("attention.self.value"),
            "scores": _short_scores,
            "context": _short_context,
            "attention_dense": _short_linear("attention.output.dense"),
            "inner": _short_linear("intermediate.dense"),
            "outer": _short_linear("output.dense"),
            "pooler": lambda port, _, x: _short_linear("bert.pooler.dense")(port, None, x[:, 0]),
            "transform": _short_linear("cls.predictions.transform.dense"),
            "decoder": _short_decoder,
        },
    ),
    Mistake(
        "packed rows attend to each other",
        "Tokens attend to the tokens of all rows of the batch.",
        "rows packed into one sequence, without their limits or a mask of blocks, as in attention-gym issue 98",
        "all",
        ("attention.self.context",),
        "says that rows of the batch attend to each other",
        fused(_over_all_rows),
    ),
    Mistake(
        "hidden state before the last layer",
        "Pooler and heads read the input of the last layer.",
        "bert-as-service, whose default is the second to last layer; LukasHedegaard/continual-inference pull request 70",
        "all",
        _HEADS_INPUT,
        "says that the heads read the output of the layer before the last",
        {"last": _layer_before},
    ),
    Mistake(
        "every layer reads the embeddings",
        "Every layer's input is the embeddings, so that only the last layer has an effect.",
        "simon-ging/coot-videotext issue 5: a loop over layers that passes the first input on",
        "later",
        (*_QKV, "attention.output.LayerNorm"),
        "says that the layer reads the embeddings instead of the layer before",
        {
            "query": _of_embeddings("query"),
            "key": _of_embeddings("key"),
            "value": _of_embeddings("value"),
            "attention_norm": _residual_of_embeddings,
        },
    ),
    Mistake(
        "keys up to a fixed length",
        "Only the first half of the keys is attended to, as many as the example at the export had.",
        "an export whose length became a constant: tensorflow-onnx issue 1810; a length that a plugin lacks: TensorRT issue 2948",
        "all",
        ("attention.self.probs",),
        "says that keys beyond a length are not attended to",
        {"probs": _first_half},
    ),
)
