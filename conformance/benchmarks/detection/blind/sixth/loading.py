"""Parameters that are loaded wrongly."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from conformance.benchmarks.detection.blind.port import Mistake, Port, Weights, prefix

_PARTS = tuple(f"attention.self.{part}" for part in ("query", "key", "value"))
_KINDS = ("weight", "bias")
_NORMS = ("attention.output.LayerNorm", "output.LayerNorm")
_LAYER = (*_PARTS, "attention.output.dense", _NORMS[0], "intermediate.dense", "output.dense", _NORMS[1])


def _in_each(change: Callable[[Weights, str], None]) -> Callable[[Weights, tuple[int, ...]], None]:
    """A change of the weights of each layer, which gets what their names begin with."""

    def load(weights: Weights, layers: tuple[int, ...]) -> None:
        for layer in layers:
            change(weights, prefix(layer))

    return load


def _exchange(weights: Weights, one: str, other: str) -> None:
    weights[one], weights[other] = weights[other], weights[one]


def _exchanged_biases(weights: Weights, of: str) -> None:
    _exchange(weights, f"{of}.{_PARTS[0]}.bias", f"{of}.{_PARTS[1]}.bias")


def _exchanged_norms(weights: Weights, of: str) -> None:
    for kind in _KINDS:
        _exchange(weights, *(f"{of}.{norm}.{kind}" for norm in _NORMS))


def _halves_exchanged(weights: Weights, of: str) -> None:
    for name in (f"{of}.{part}.{kind}" for part in _PARTS for kind in _KINDS):
        weights[name] = weights[name].roll(len(weights[name]) // 2, 0)


def _by_head(weights: Weights, of: str) -> None:
    """The rows of the fused weights, (3, h, d), read as (h, 3, d)."""
    for kind in _KINDS:
        names = [f"{of}.{part}.{kind}" for part in _PARTS]
        fused = torch.cat([weights[name] for name in names])
        read = fused.reshape(-1, 3, _head_size(len(fused) // 3), *fused.shape[1:])
        weights.update({name: read[:, i].flatten(0, 1) for i, name in enumerate(names)})


def _head_size(hidden: int) -> int:
    """The size of a head in the goldens: 8 of 32, 64 of 768."""
    return min(64, hidden // 4)


def _interleaved(weights: Weights, of: str) -> None:
    for name in (f"{of}.{part}.weight" for part in _PARTS[:2]):
        heads = weights[name].reshape(-1, 2, _head_size(len(weights[name])) // 2, weights[name].shape[1])
        weights[name] = heads.transpose(1, 2).flatten(0, 2)


def _merged_again(weights: Weights, of: str) -> None:
    generator = torch.Generator().manual_seed(0)
    for name in (f"{of}.{part}.weight" for part in (_PARTS[0], _PARTS[2])):
        weight = weights[name]
        down, up = (torch.randn(4, len(weight), generator=generator) for _ in range(2))
        weights[name] = (weight.float() + up.T @ down * weight.float().std() / 20).to(weight.dtype)


def _next_layer(weights: Weights, of: str) -> None:
    following = f"{prefix(int(of.rpartition('.')[2]) + 1)}."
    weights.update({name.replace(following, f"{of}."): value for name, value in weights.items() if name.startswith(following)})


def _folded_scale(weights: Weights, of: str) -> None:
    name = f"{of}.{_PARTS[0]}.weight"
    weights[name] = weights[name] / math.sqrt(_head_size(len(weights[name])))


def _without_scale(port: Port, layer: int, query: Tensor, key: Tensor) -> Tensor:
    return port.split(query) @ port.split(key).transpose(-1, -2)


MISTAKES = (
    Mistake(
        "fused weights read by head",
        "Fused query, key and value weights, one after the other, are read as three parts of each head.",
        "a converter from or to Megatron, whose fused weights are by head",
        "all",
        _PARTS,
        "says that the rows of the fused query, key and value are permuted, or that their weights are not the checkpoint's",
        load=_in_each(_by_head),
    ),
    Mistake(
        "biases of query and key exchanged",
        "Query has the bias of key, and the other way round; their weights are right.",
        "a converter that concatenates fused biases in the order of their names",
        "all",
        _PARTS[:2],
        "says that the biases of query and key are exchanged",
        load=_in_each(_exchanged_biases),
    ),
    Mistake(
        "weights permuted for rotary, biases not",
        "Rows of the query and key weights are permuted within heads as for rotary pairs; biases are as they were.",
        "a converter to GGUF with the permutation of Llama",
        "all",
        _PARTS[:2],
        "says that rows of the query and key weights are permuted within heads, or that weights are not the checkpoint's",
        load=_in_each(_interleaved),
    ),
    Mistake(
        "shards gathered in the wrong order",
        "Query, key and value have the second half of the heads before the first; the projection of the context has not.",
        "a converter that merges the shards of two ranks in the order in which it finds the files",
        "all",
        _PARTS,
        "says that the halves of query, key and value are exchanged, or heads are permuted",
        load=_in_each(_halves_exchanged),
    ),
    Mistake(
        "weights of the next layer",
        "The first layer has the weights of the second.",
        "a converter from names that count layers from 1",
        "first",
        _LAYER,
        "says that the layer's weights are those of the next layer",
        load=_in_each(_next_layer),
    ),
    Mistake(
        "norms of a layer exchanged",
        "The two norms of a layer have each other's weight and bias.",
        "a converter whose source calls them norm1 and norm2 in the order of another architecture",
        "all",
        _NORMS,
        "says that the two norms are exchanged",
        load=_in_each(_exchanged_norms),
    ),
    Mistake(
        "adapter merged a second time",
        "A matrix of rank 4 is added to the weights of query and value.",
        "LoRA that is merged into weights which it had been merged into",
        "all",
        (_PARTS[0], _PARTS[2]),
        "says that the weights are off by a matrix of rank 4, or are not the checkpoint's",
        load=_in_each(_merged_again),
    ),
    Mistake(
        "scale folded into the query's weight alone",
        "The query's weight is divided by √d and its bias is not; scores are not divided.",
        "an export that folds the scale into the projection and forgets the bias",
        "all",
        (_PARTS[0], "attention.self.scores"),
        "says that the query's weight is divided by √d and its bias is not, and that scores are not divided",
        {"scores": _without_scale},
        _in_each(_folded_scale),
    ),
)
