"""Mistakes in the conversion and loading of the weights."""

import torch
from torch import Tensor
from torch.nn import functional as F

from conformance.benchmarks.detection.blind.port import Mistake, Operation, Port, Weights, prefix

_SQUARE = ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense")
_NORMS = ("attention.output.LayerNorm", "output.LayerNorm")
_OF_LAYER = (*_SQUARE, "intermediate.dense", "output.dense", *_NORMS)
_PARTS = ("query", "key", "value")
# `initializer_range` of the paper.
_DEVIATION = 0.02


def _initial(weight: Tensor, generator: torch.Generator) -> Tensor:
    return (torch.randn(weight.shape, generator=generator) * _DEVIATION).to(weight)


def _norms_not_found(weights: Weights, layers: tuple[int, ...]) -> None:
    for name in [name for name in weights if "LayerNorm." in name]:
        weights[name] = torch.full_like(weights[name], float(name.endswith(".weight")))


def _untransposed(weights: Weights, layers: tuple[int, ...]) -> None:
    for layer in layers:
        for name in _SQUARE:
            key = f"{prefix(layer)}.{name}.weight"
            weights[key] = weights[key].T.contiguous()


def _last_in_all(weights: Weights, layers: tuple[int, ...]) -> None:
    start = f"{prefix(0)}."
    numbers = [int(name.split(".")[3]) for name in weights if name.startswith("bert.encoder.layer.")]
    for name in [name for name in weights if name.startswith(start)]:
        weights[name] = weights[f"{prefix(max(numbers))}.{name.removeprefix(start)}"]


def _layer_not_found(weights: Weights, layers: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    for layer in layers:
        for name in _OF_LAYER:
            weight, bias = f"{prefix(layer)}.{name}.weight", f"{prefix(layer)}.{name}.bias"
            weights[bias] = torch.zeros_like(weights[bias])
            weights[weight] = torch.ones_like(weights[weight]) if name in _NORMS else _initial(weights[weight], generator)


def _pooler_not_found(weights: Weights, layers: tuple[int, ...]) -> None:
    weight, bias = "bert.pooler.dense.weight", "bert.pooler.dense.bias"
    weights[weight] = _initial(weights[weight], torch.Generator().manual_seed(0))
    weights[bias] = torch.zeros_like(weights[bias])


def _no_biases(weights: Weights, layers: tuple[int, ...]) -> None:
    for layer in layers:
        for name in _SQUARE:
            key = f"{prefix(layer)}.{name}.bias"
            weights[key] = torch.zeros_like(weights[key])


def _by_heads(port: Port, layer: int, parameter: str, part: int) -> Tensor:
    """Of the query's, key's and value's rows, one below the other, those that the part has if each head's three are adjacent."""
    rows = torch.cat([port.weights[f"{prefix(layer)}.attention.self.{name}.{parameter}"] for name in _PARTS])
    return rows.view(port.architecture.num_attention_heads, 3, -1, *rows.shape[1:])[:, part].flatten(0, 1)


def _interleaved(part: int) -> Operation:
    """The dense layer of query, key or value, by number, with rows of a fused matrix in the order of heads."""
    return lambda port, layer, x: F.linear(x, *(_by_heads(port, layer, parameter, part) for parameter in ("weight", "bias")))


MISTAKES = (
    Mistake(
        "gamma and beta not found",
        "All norms have weight 1 and bias 0, as they are initially.",
        "checkpoints whose norms have gamma and beta for weight and bias; transformers pull request 11394",
        "all",
        ("embeddings.LayerNorm", *_NORMS, "cls.predictions.transform.LayerNorm"),
        "says that the norms' weights and biases are missing, or initial",
        load=_norms_not_found,
    ),
    Mistake(
        "square matrices not transposed",
        "The square matrices of the attention are transposed; those of other shapes, which would not fit, are right.",
        "kernels of TensorFlow or Flax read as weights of PyTorch; IndicoDataSolutions/finetune pull request 518 in a head",
        "all",
        _SQUARE,
        "says that the attention's matrices are transposed",
        load=_untransposed,
    ),
    Mistake(
        "fused rows by heads",
        "The fused matrix of query, key and value, one below the other, is read as query, key and value of each head in turn.",
        "layouts of Megatron, apex and BLOOM: apex issue 1131 and DeepSpeed pull request 3844",
        "all",
        _SQUARE[:3],
        "says that query, key and value are mixed up by heads, as in an interleaved fused matrix",
        {name: _interleaved(number) for number, name in enumerate(_PARTS)},
    ),
    Mistake(
        "one instance for all layers",
        "The first layer has the last layer's weights, which were loaded into the instance that all layers are.",
        "superbenchmark pull request 461; [layer] * n, common in exercises",
        "first",
        _OF_LAYER,
        "says that the layer has the weights of another layer",
        load=_last_in_all,
    ),
    Mistake(
        "last layer not loaded",
        "The last layer has its initial values: random matrices, no biases, and norms with weight 1.",
        "a conversion whose loop ends one layer early, with the warning about new weights overlooked",
        "last",
        _OF_LAYER,
        "says that the last layer's weights are not the checkpoint's, or are initial",
        load=_layer_not_found,
    ),
    Mistake(
        "pooler not loaded",
        "The pooler's dense layer has its initial values: a random matrix and no bias.",
        "checkpoints and loaders without the pooler: kpe/bert-for-tf2 pull request 82",
        "all",
        ("pooler.dense",),
        "says that the pooler's weights are not the checkpoint's, or are initial",
        load=_pooler_not_found,
    ),
    Mistake(
        "attention without biases",
        "The four dense layers of the attention have no bias.",
        "a library's attention without biases, as MLX's was: mlx-examples pull requests 43 and 51",
        "all",
        _SQUARE,
        "says that the biases of the attention's dense layers are missing",
        load=_no_biases,
    ),
)
