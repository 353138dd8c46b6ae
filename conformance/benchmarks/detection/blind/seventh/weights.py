"""Mistakes in the conversion of weights and in their precision."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from conformance.benchmarks.detection.blind.port import Mistake, Operation, Port, Weights, prefix, probs

_QUERY, _KEY, _VALUE, _PROBS = (f"attention.self.{name}" for name in ("query", "key", "value", "probs"))
_DENSE, _INNER, _OUTER = "attention.output.dense", "intermediate.dense", "output.dense"
_ATTENDED, _OUTPUT = "attention.output.LayerNorm", "output.LayerNorm"
_LINEAR = (_QUERY, _KEY, _VALUE, _DENSE, _INNER, _OUTER)
_TRANSFORM, _POOLER = "cls.predictions.transform.dense", "bert.pooler.dense"

_Load = Callable[[Weights, tuple[int, ...]], None]


def _of_weights(parts: tuple[str, ...], change: Callable[[Tensor], Tensor], kinds: tuple[str, ...] = ("weight",)) -> _Load:
    """What changes the parameters of those parts and kinds, in float32."""

    def load(weights: Weights, layers: tuple[int, ...]) -> None:
        for key in (f"{prefix(layer)}.{part}.{kind}" for layer in layers for part in parts for kind in kinds):
            weights[key] = change(weights[key].float()).to(weights[key].dtype)

    return load


def _features_before_heads(port: Port, layer: int, x: Tensor) -> Tensor:
    heads = port.architecture.num_attention_heads
    weight = port.weights[f"{prefix(layer)}.{_DENSE}.weight"]
    weight = weight.view(len(weight), heads, -1).transpose(1, 2).flatten(1)
    return F.linear(x, weight, port.weights[f"{prefix(layer)}.{_DENSE}.bias"])


def _with_an_adapter(weight: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    down = torch.randn(2, weight.shape[1], generator=generator) / weight.shape[1] ** 0.5
    up = torch.randn(weight.shape[0], 2, generator=generator) * 0.02
    change: Tensor = 2 * up @ down
    return weight + change


def _without_zero_point(weight: Tensor) -> Tensor:
    scale = (weight.max() - weight.min()) / 255
    zero = (-weight.min() / scale).round()
    return scale * ((weight / scale).round() + zero).clamp(0, 255)


def _scales_of_the_other_axis(weight: Tensor) -> Tensor:
    scales = weight.abs().amax(1) / 127
    return (weight / scales[:, None]).round() * scales


def _smoothed(weights: Weights, layers: tuple[int, ...]) -> None:
    for layer in layers:
        inner, norm = f"{prefix(layer)}.{_INNER}.weight", f"{prefix(layer)}.{_ATTENDED}"
        largest = weights[inner].float().abs().amax(0).sqrt()
        factors = (largest / largest.mean()).to(weights[inner].dtype)
        weights[inner] = weights[inner] * factors
        for key in (f"{norm}.weight", f"{norm}.bias"):
            weights[key] = weights[key] / factors


def _in_8_bits(part: str) -> Operation:
    """Keys or values that are stored in float8_e4m3fn, without a scale."""
    return lambda port, layer, x: port.linear(f"{prefix(layer)}.{part}", x).to(torch.float8_e4m3fn).to(x.dtype)


def _two_of_four(weight: Tensor) -> Tensor:
    groups = weight.view(len(weight), -1, 4)
    kept = groups.abs().topk(2).indices
    return torch.zeros_like(groups).scatter(-1, kept, groups.gather(-1, kept)).view_as(weight)


def _of_256_steps(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    return (probs(port, layer, x, mask) * 256).round().clamp_max(255) / 256


def _of_half_the_rank(weight: Tensor) -> Tensor:
    left, values, right = torch.linalg.svd(weight, full_matrices=False)
    rank = len(values) // 2
    product: Tensor = (left[:, :rank] * values[:rank]) @ right[:rank]
    return product


def _same_suffix(weights: Weights, layers: tuple[int, ...]) -> None:
    for kind in ("weight", "bias"):
        weights[f"{_TRANSFORM}.{kind}"] = weights[f"{_POOLER}.{kind}"]


MISTAKES = (
    Mistake(
        "output kernel's axes in another order",
        "The input features of the attention's output projection are taken as (head size, heads) instead of (heads, head size).",
        "a conversion from Flax's DenseGeneral, whose kernel has three axes",
        "first",
        (_DENSE,),
        "says that the input features of the projection are permuted, or that the heads are in another layout",
        {"attention_dense": _features_before_heads},
    ),
    Mistake(
        "adapter merged",
        "A product of two matrices of rank 2 is added to the weights of query and value.",
        "merge_and_unload of a LoRA adapter on the network that is meant to be the base",
        "all",
        (_QUERY, _VALUE),
        "says that the weights of query and value are others, by a matrix of low rank",
        load=_of_weights((_QUERY, _VALUE), _with_an_adapter),
    ),
    Mistake(
        "frozen layer decayed",
        "All parameters of the layer are 0.2 % smaller than the checkpoint's.",
        "AdamW's weight decay on a layer that is frozen by gradients of zero",
        "first",
        (*_LINEAR, _ATTENDED, _OUTPUT),
        "says that the layer's parameters are multiplied by 0.998, or by a constant",
        load=_of_weights((*_LINEAR, _ATTENDED, _OUTPUT), lambda weight: weight * 0.998, ("weight", "bias")),
    ),
    Mistake(
        "zero point not subtracted",
        "The weight of the inner projection is uint8 times a scale, and the zero point is not subtracted.",
        "a reader of asymmetrically quantised weights that knows symmetric ones only",
        "all",
        (_INNER,),
        "says that a constant is added to the weight",
        load=_of_weights((_INNER,), _without_zero_point),
    ),
    Mistake(
        "scales of the other axis",
        "The weight of the attention's output projection is int8 by rows, and the rows' scales multiply the columns.",
        "per-channel quantisation with axis 1 for 0, or a weight that is transposed and scales that are not",
        "first",
        (_DENSE,),
        "says that the weight is scaled by rows or by columns",
        load=_of_weights((_DENSE,), _scales_of_the_other_axis),
    ),
    Mistake(
        "norm smoothed, residual not corrected",
        "The first norm's weight and bias are divided by a factor for each feature; only the inner projection makes up for it.",
        "SmoothQuant, made for layers that norm their inputs, on layers whose norm is the residual as well",
        "all",
        (_ATTENDED, _INNER),
        "says that the norm's weight and bias, or the inner projection's weight, are multiplied by a factor for each feature",
        load=_smoothed,
    ),
    Mistake(
        "keys and values in float8",
        "Keys and values are rounded to float8_e4m3fn without a scale.",
        "a float8 key-value cache, left on for an encoder",
        "all",
        (_KEY, _VALUE),
        "says that keys and values are in float8, or are rounded to 4 bits",
        {"key": _in_8_bits(_KEY), "value": _in_8_bits(_VALUE)},
    ),
    Mistake(
        "two of four weights",
        "Of each four neighbouring weights of a row, the two smaller ones are zero, in all of the layers' projections.",
        "2:4 sparsity without training afterwards",
        "all",
        _LINEAR,
        "says that the weights are sparse or pruned, or that they are others in every projection",
        load=_of_weights(_LINEAR, _two_of_four),
    ),
    Mistake(
        "probabilities in 256 steps",
        "The probabilities are multiples of 1/256, of at most 255/256.",
        "the softmax of an int8 TFLite model, whose output has the scale 1/256",
        "all",
        (_PROBS,),
        "says that the probabilities are quantised, or are multiples of 1/256",
        {"probs": _of_256_steps},
    ),
    Mistake(
        "half the rank",
        "The weight of the inner projection is its best approximation of half the rank.",
        "compression by a truncated singular value decomposition",
        "first",
        (_INNER,),
        "says that the weight of the inner projection is of low rank, or is approximated",
        load=_of_weights((_INNER,), _of_half_the_rank),
    ),
    Mistake(
        "weights by their last names",
        "The transform of the masked-LM head has the pooler's weight and bias.",
        "a loader that matches parameters by the end of their names, `dense.weight`",
        "all",
        (_TRANSFORM,),
        "says that the transform has the pooler's weights",
        load=_same_suffix,
    ),
)
