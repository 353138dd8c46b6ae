"""Mistakes in what is read from a checkpoint, converted, quantised, pruned or sharded."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from conformance.benchmarks.detection.blind.port import Mistake, Weights, prefix

_QUERY, _KEY, _VALUE = (f"attention.self.{name}" for name in ("query", "key", "value"))
_SQUARE = (_QUERY, _KEY, _VALUE, "attention.output.dense")
_INNER, _OUTER = "intermediate.dense", "output.dense"
_LINEAR = (*_SQUARE, _INNER, _OUTER)
_NORMS = ("attention.output.LayerNorm", "output.LayerNorm")
_TABLE = "bert.embeddings.word_embeddings.weight"
_INT8 = 127
_OF_FOUR = 2


def _change(weights: Weights, layers: Iterable[int], names: Iterable[str], kind: str, to: Callable[[Tensor], Tensor]) -> None:
    """Puts another tensor of the same dtype in the place of each of those parameters."""
    for full in (f"{prefix(layer)}.{name}.{kind}" for layer in layers for name in names):
        weights[full] = to(weights[full].float()).to(weights[full].dtype)


def _not_loaded(weights: Weights, layers: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    _change(weights, layers, _LINEAR, "weight", lambda x: torch.randn(x.shape, generator=generator) * 0.02)
    _change(weights, layers, _NORMS, "weight", torch.ones_like)
    _change(weights, layers, (*_LINEAR, *_NORMS), "bias", torch.zeros_like)


def _exchange_key_and_value(weights: Weights, layers: tuple[int, ...]) -> None:
    for layer in layers:
        for kind in ("weight", "bias"):
            key, value = (f"{prefix(layer)}.{name}.{kind}" for name in (_KEY, _VALUE))
            weights[key], weights[value] = weights[value], weights[key]


def _reshape(weights: Weights, layers: tuple[int, ...]) -> None:
    _change(weights, layers, (_INNER, _OUTER), "weight", lambda x: x.mT.reshape(x.shape))


def _one_scale(weights: Weights, layers: tuple[int, ...]) -> None:
    def to(x: Tensor) -> Tensor:
        scale = x.abs().max() / _INT8
        return (x / scale).round() * scale

    _change(weights, layers, _LINEAR, "weight", to)


def _scales_of_other_axis(weights: Weights, layers: tuple[int, ...]) -> None:
    """A scale for each output, with which the inputs are multiplied."""

    def to(x: Tensor) -> Tensor:
        scale = x.abs().amax(1, keepdim=True) / _INT8
        return (x / scale).round() * scale.mT

    _change(weights, layers, _SQUARE, "weight", to)


def _two_of_four(weights: Weights, layers: tuple[int, ...]) -> None:
    def to(x: Tensor) -> Tensor:
        groups = x.reshape(-1, 4)
        smallest = groups.abs().topk(4 - _OF_FOUR, largest=False).indices
        return groups.scatter(1, smallest, 0.0).view(x.shape)

    _change(weights, layers, (_INNER, _OUTER), "weight", to)


def _no_bias(weights: Weights, layers: tuple[int, ...]) -> None:
    _change(weights, layers, (_QUERY, _KEY, _VALUE), "bias", torch.zeros_like)


def _shift_vocabulary(weights: Weights, layers: tuple[int, ...]) -> None:
    weights[_TABLE] = weights[_TABLE].roll(1, 0)


def _exchange_shards(weights: Weights, layers: tuple[int, ...]) -> None:
    for kind in ("weight", "bias"):
        _change(weights, layers, (_INNER,), kind, lambda x: torch.cat(x.chunk(2)[::-1]))


MISTAKES = (
    Mistake(
        "last layer left at its initial values",
        "The last layer's weights are drawn from N(0, 0.02²), its biases are 0, and its norms do nothing.",
        "strict=False and names that do not match; a loop over the layers that ends one too early",
        "last",
        (*_LINEAR, *_NORMS),
        "says that the layer's parameters are not loaded, or not the checkpoint's",
        load=_not_loaded,
    ),
    Mistake(
        "key and value exchanged",
        "The key has the value's parameters, and the value the key's.",
        "a fused projection cut in another order than that in which it was joined; common in exercises",
        "all",
        (_KEY, _VALUE),
        "says that the parameters of key and value are swapped",
        load=_exchange_key_and_value,
    ),
    Mistake(
        "kernels reshaped",
        "The feed-forward's kernels, inputs first, are reshaped to outputs first, not transposed.",
        "conversions from TensorFlow with reshape or view to make the shape fit",
        "all",
        (_INNER, _OUTER),
        "says that the feed-forward's weights are reshaped instead of transposed, or in the wrong layout",
        load=_reshape,
    ),
    Mistake(
        "int8 with one scale",
        "The weights of the layers are rounded to 8 bits with one scale for a matrix.",
        "post-training quantisation per tensor, as onnxruntime's quantize_dynamic does by default",
        "all",
        _LINEAR,
        "says that the weights are rounded, or quantised",
        load=_one_scale,
    ),
    Mistake(
        "scales along the inputs",
        "The attention's weights have a scale for each output, by which the inputs are multiplied; the first layer is right.",
        "a wrong axis of DequantizeLinear, which square weights let pass; the first layer is often left as it is",
        "later",
        _SQUARE,
        "says that the scales, or the weights, are wrong along an axis",
        load=_scales_of_other_axis,
    ),
    Mistake(
        "two of four weights",
        "Of every four weights of the feed-forward the two smallest are zero.",
        "2:4 sparsity, as of NVIDIA's ASP, without the training after it",
        "some",
        (_INNER, _OUTER),
        "says that half of the weights are zero, or pruned",
        load=_two_of_four,
    ),
    Mistake(
        "projections without bias",
        "Query, key and value have no bias.",
        "nn.Linear(bias=False), as in many a tutorial and in Llama; common in exercises",
        "all",
        (_QUERY, _KEY, _VALUE),
        "says that the biases of query, key and value are missing",
        load=_no_bias,
    ),
    Mistake(
        "vocabulary shifted by one",
        "Every token has the row of the token before it.",
        "a vocabulary with a token more at its beginning, as when ids are counted from one",
        "all",
        ("embeddings.word_embeddings", "cls.predictions.decoder"),
        "says that the rows of the word embeddings are shifted, or those of other tokens",
        load=_shift_vocabulary,
    ),
    Mistake(
        "shards in the wrong order",
        "The first linear layer of the feed-forward has its second half of outputs first.",
        "shards of a column-parallel layer joined in the order in which files are listed",
        "first",
        (_INNER,),
        "says that the rows of the first linear layer are permuted, or its halves swapped",
        load=_exchange_shards,
    ),
)
