"""Mistakes in what is read from a checkpoint, converted, pruned or merged."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from conformance.benchmarks.detection.blind.port import OPERATIONS, Mistake, Operation, Port, Weights, prefix

_PROJECTIONS = ("query", "key", "value")
_QUERY, _KEY, _VALUE = (f"attention.self.{name}" for name in _PROJECTIONS)
_DENSE = "attention.output.dense"
_LINEAR = (_QUERY, _KEY, _VALUE, _DENSE, "intermediate.dense", "output.dense")
_NORMS = ("attention.output.LayerNorm", "output.LayerNorm")
_TABLE = "bert.embeddings.word_embeddings.weight"
_PADDING = 0
_RANK = 2


def _transpose_square(weights: Weights, layers: tuple[int, ...]) -> None:
    for layer in layers:
        for name in (_QUERY, _KEY, _VALUE, _DENSE):
            full = f"{prefix(layer)}.{name}.weight"
            weights[full] = weights[full].mT.contiguous()


def _of_head_by_head(part: int) -> Operation:
    """That projection, of a matrix with query, key and value one after another, cut as if each head had its three together."""

    def replaced(port: Port, layer: int, x: Tensor) -> Tensor:
        def cut(kind: str) -> Tensor:
            of_kind = [port.weights[f"{prefix(layer)}.attention.self.{name}.{kind}"] for name in _PROJECTIONS]
            joined = torch.cat(of_kind)
            by_head = joined.view(port.architecture.num_attention_heads, 3, -1, *joined.shape[1:])
            return by_head[:, part].flatten(0, 1)

        return F.linear(x, cut("weight"), cut("bias"))

    return replaced


def _scaled_query(port: Port, layer: int, x: Tensor) -> Tensor:
    return OPERATIONS["query"](port, layer, x) / math.sqrt(port.architecture.head_size)


def _first_head_cut(port: Port, layer: int, x: Tensor) -> Tensor:
    rest = x[..., port.architecture.head_size :]
    return OPERATIONS["attention_dense"](port, layer, F.pad(rest, (port.architecture.head_size, 0)))


def _merge_adapter(weights: Weights, layers: tuple[int, ...]) -> None:
    """An update of low rank, a tenth as large as the weights, of query and value."""
    generator = torch.Generator().manual_seed(0)
    for layer in layers:
        for name in (_QUERY, _VALUE):
            full = f"{prefix(layer)}.{name}.weight"
            weight = weights[full]
            up, down = (torch.randn(size, generator=generator) for size in ((weight.shape[0], _RANK), (_RANK, weight.shape[1])))
            update = up @ down / math.sqrt(_RANK) * weight.float().std() / 10
            weights[full] = (weight.float() + update).to(weight.dtype)


def _alias_of_second(weights: Weights, layers: tuple[int, ...]) -> None:
    for layer in layers:
        own = [name for name in weights if name.startswith(f"{prefix(layer)}.")]
        for name in own:
            weights[name] = weights.get(name.replace(prefix(layer), prefix(layer + 1)), weights[name])


def _zero_padding(weights: Weights, layers: tuple[int, ...]) -> None:
    weights[_TABLE] = weights[_TABLE].clone()
    weights[_TABLE][_PADDING] = 0


MISTAKES = (
    Mistake(
        "square kernels not transposed",
        "The square weights of the attention are used as they are in TensorFlow, inputs first.",
        "conversions that transpose where the shape does not fit; transformers issue 47031 is the like",
        "all",
        (_QUERY, _KEY, _VALUE, _DENSE),
        "says that the attention's weights are transposed",
        load=_transpose_square,
    ),
    Mistake(
        "fused projections cut head by head",
        "Query, key and value lie one after another in one matrix, which is cut as if each head had its three together.",
        "Megatron's layout against PyTorch's, as in apex issue 1131 and sglang issue 40127",
        "all",
        (_QUERY, _KEY, _VALUE),
        "says that the fused query, key and value are split by head, interleaved, or in the wrong order",
        {name: _of_head_by_head(part) for part, name in enumerate(_PROJECTIONS)},
    ),
    Mistake(
        "scale folded in and applied again",
        "The query's weights have the scale of the scores folded in, and the attention scales once more.",
        "a conversion for a kernel that does not scale, run with one that does",
        "all",
        (_QUERY,),
        "says that the query is already scaled, or that the scores are scaled twice",
        {"query": _scaled_query},
    ),
    Mistake(
        "first head pruned",
        "The output projection lacks the columns of the first head.",
        "head pruning, as with prune_heads, of which the result is taken for the whole model",
        "last",
        (_DENSE,),
        "says that a head is missing, or that the first head does not reach the output",
        {"attention_dense": _first_head_cut},
    ),
    Mistake(
        "adapter left in",
        "Query and value have an update of low rank added to their weights.",
        "LoRA merged into the base model, as merge_and_unload does, and saved over it",
        "all",
        (_QUERY, _VALUE),
        "says that the weights of query and value are not the checkpoint's, or differ by a low rank",
        load=_merge_adapter,
    ),
    Mistake(
        "layers that are one object",
        "The first layer has the parameters of the second.",
        "nn.ModuleList([layer] * n), in which the layer that is loaded last overwrites the others",
        "first",
        (*_LINEAR, *_NORMS),
        "says that the layer has another layer's weights, or that the layers share weights",
        load=_alias_of_second,
    ),
    Mistake(
        "row of the padding zeroed",
        "Row 0 of the word embeddings is zero, so the logit of token 0 is its bias.",
        "nn.Embedding with padding_idx=0, of which the row is reset after loading",
        "all",
        ("cls.predictions.decoder",),
        "says that the embedding of the padding token, row 0, is zero",
        load=_zero_padding,
    ),
)
