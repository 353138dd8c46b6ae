"""Mistakes in what is read from a checkpoint."""

import torch
from torch import Tensor

from conformance.benchmarks.detection.blind.port import OPERATIONS, Mistake, Port, Weights, prefix

_QUERY, _KEY, _VALUE = (f"attention.self.{name}" for name in ("query", "key", "value"))
_LINEAR = (_QUERY, _KEY, _VALUE, "attention.output.dense", "intermediate.dense", "output.dense")
_ATTENDED, _OUTPUT = "attention.output.LayerNorm", "output.LayerNorm"
_POSITIONS = "bert.embeddings.position_embeddings.weight"
_POOLER = "bert.pooler.dense"
_INITIAL = 0.02
"""The standard deviation of BERT's initial weights, `initializer_range`."""


def _initial(like: Tensor, generator: torch.Generator) -> Tensor:
    return (torch.randn(like.shape, generator=generator) * _INITIAL).to(like.dtype)


def _leave_initial(weights: Weights, layers: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    for layer in layers:
        for name in (f"{prefix(layer)}.{part}" for part in _LINEAR):
            weights[f"{name}.weight"] = _initial(weights[f"{name}.weight"], generator)
            weights[f"{name}.bias"] = torch.zeros_like(weights[f"{name}.bias"])
        for name in (f"{prefix(layer)}.{part}" for part in (_ATTENDED, _OUTPUT)):
            weights[f"{name}.weight"] = torch.ones_like(weights[f"{name}.weight"])
            weights[f"{name}.bias"] = torch.zeros_like(weights[f"{name}.bias"])


def _reshape_kernels(weights: Weights, layers: tuple[int, ...]) -> None:
    for layer in layers:
        for name in (f"{prefix(layer)}.{part}.weight" for part in ("intermediate.dense", "output.dense")):
            kernel = weights[name].mT.contiguous()
            weights[name] = kernel.reshape(weights[name].shape)


def _swap_biases(weights: Weights, layers: tuple[int, ...]) -> None:
    for layer in layers:
        key, value = (f"{prefix(layer)}.{part}.bias" for part in (_KEY, _VALUE))
        weights[key], weights[value] = weights[value], weights[key]


def _permuted_query(port: Port, layer: int, x: Tensor) -> Tensor:
    """The query with the halves of each head interleaved, as the rows of its weight and bias would be."""
    query = OPERATIONS["query"](port, layer, x)
    halves = query.view(*query.shape[:-1], port.architecture.num_attention_heads, 2, -1)
    return halves.transpose(-1, -2).flatten(-3)


def _norm_by_ending(weights: Weights, layers: tuple[int, ...]) -> None:
    for layer in layers:
        for kind in ("weight", "bias"):
            weights[f"{prefix(layer)}.{_ATTENDED}.{kind}"] = weights[f"{prefix(layer)}.{_OUTPUT}.{kind}"]


def _reverse_layers(weights: Weights, layers: tuple[int, ...]) -> None:
    given = dict(weights)
    for layer, other in zip(layers, reversed(layers), strict=True):
        for name in (name for name in given if name.startswith(f"{prefix(layer)}.")):
            weights[name] = given[name.replace(prefix(layer), prefix(other), 1)]


def _other_half_precision(weights: Weights, layers: tuple[int, ...]) -> None:
    table = weights[_POSITIONS]
    weights[_POSITIONS] = table.bfloat16().view(torch.float16).to(table.dtype)


def _initial_pooler(weights: Weights, layers: tuple[int, ...]) -> None:
    weights[f"{_POOLER}.weight"] = _initial(weights[f"{_POOLER}.weight"], torch.Generator().manual_seed(0))
    weights[f"{_POOLER}.bias"] = torch.zeros_like(weights[f"{_POOLER}.bias"])


MISTAKES = (
    Mistake(
        "first layer left as it was initialised",
        "No parameter of the first layer is read: its weights are random, its biases 0, its norms' weights 1.",
        "names that count the layers from 1, and strict=False; common in exercises",
        "first",
        (*_LINEAR, _ATTENDED, _OUTPUT),
        "says that the layer's parameters are not loaded, are random, or are not the checkpoint's",
        load=_leave_initial,
    ),
    Mistake(
        "kernels reshaped",
        "The kernels of the feed-forward, inputs first as in TensorFlow, are reshaped to outputs first, not transposed.",
        "weight.reshape(out, in) so that the shapes fit; common in exercises",
        "all",
        ("intermediate.dense", "output.dense"),
        "says that the weights are reshaped rather than transposed, are in the wrong order, or are not the checkpoint's",
        load=_reshape_kernels,
    ),
    Mistake(
        "biases of key and value swapped",
        "The key has the value's bias and the value has the key's.",
        "biases joined in the order query, value, key beside weights in the order query, key, value; common in exercises",
        "last",
        (_KEY, _VALUE),
        "says that the biases of key and value are swapped, or that the biases are wrong",
        load=_swap_biases,
    ),
    Mistake(
        "query permuted for a rotary embedding",
        "The query's features are permuted within each head, the key's are not.",
        "the permutation of a converter for Llama, of which gpt-fast issue 190 and llama.cpp pull request 7481 are the like",
        "all",
        (_QUERY,),
        "says that the query's features are permuted, or are in the wrong order within the heads",
        {"query": _permuted_query},
    ),
    Mistake(
        "norm found by the end of its name",
        "The norm after the attention has the parameters of the norm after the feed-forward.",
        'name.endswith("output.LayerNorm.weight"), which is true of attention.output.LayerNorm.weight too; common in exercises',
        "all",
        (_ATTENDED,),
        "says that the norm has the other norm's weight and bias, or not the checkpoint's",
        load=_norm_by_ending,
    ),
    Mistake(
        "layers in reverse order",
        "The first layer has the last layer's parameters, and so on.",
        "a list of parameters from which pop() takes the last; common in exercises",
        "all",
        (*_LINEAR, _ATTENDED, _OUTPUT),
        "says that the layers are in another order, or that a layer has another layer's weights",
        load=_reverse_layers,
    ),
    Mistake(
        "bfloat16 read as float16",
        "The bits of the position embeddings, written as bfloat16, are read as float16.",
        "loaders without a bfloat16, as in modular issue 6660, tinygrad pull request 3310 and rust-bert pull request 396",
        "all",
        ("embeddings.position_embeddings",),
        "says that the position embeddings are not the checkpoint's, or are read in another format",
        load=_other_half_precision,
    ),
    Mistake(
        "pooler left as it was initialised",
        "The pooler's weight is random and its bias is 0.",
        "transformers issue 8887, SimCSE issue 194: a checkpoint without a pooler",
        "all",
        ("pooler.dense",),
        "says that the pooler's parameters are not loaded, are random, or are not the checkpoint's",
        load=_initial_pooler,
    ),
)
