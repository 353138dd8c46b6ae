"""Mistakes in the norms and in the residuals that they are applied to."""

import torch
from torch import Tensor
from torch.nn import functional as F

from conformance.benchmarks.detection.blind.port import Mistake, Operation, Port, Weights, prefix

_NORMS = ("attention.output.LayerNorm", "output.LayerNorm")
_ATTENDED = ("attention.output.LayerNorm",)
_OUTPUT = ("output.LayerNorm",)


def _parameters(port: Port, name: str) -> tuple[Tensor, Tensor]:
    return port.weights[f"{name}.weight"], port.weights[f"{name}.bias"]


def _bias_first(port: Port, layer: int | None, name: str, x: Tensor) -> Tensor:
    weight, bias = _parameters(port, name)
    return (F.layer_norm(x, x.shape[-1:], eps=port.architecture.layer_norm_eps) + bias) * weight


def _residuals(norm: Operation) -> dict[str, Operation]:
    """Both residuals of a layer with another norm, which gets the module's name and the sum."""

    def of(name: str) -> Operation:
        return lambda port, layer, x, skip, *_: norm(port, f"{prefix(layer)}.{name}", x + skip)

    return {"attention_norm": of(_NORMS[0]), "output_norm": of(_NORMS[1])}


def _scaled(port: Port, name: str, centred: Tensor, variance: Tensor) -> Tensor:
    weight, bias = _parameters(port, name)
    normed = centred / (variance + port.architecture.layer_norm_eps).sqrt()
    return (normed * weight.float() + bias.float()).to(weight.dtype)


def _halves(x: Tensor) -> Tensor:
    return x.float().view(*x.shape[:-1], 2, -1)


def _within_halves(port: Port, name: str, x: Tensor) -> Tensor:
    halves = _halves(x)
    variance = halves.var(-1, unbiased=False).mean(-1, keepdim=True)
    return _scaled(port, name, x.float() - x.float().mean(-1, keepdim=True), variance)


def _of_each_half(port: Port, layer: int, x: Tensor, skip: Tensor, hidden: Tensor) -> Tensor:
    halves = _halves(x + skip)
    centred = (halves - halves.mean(-1, keepdim=True)).flatten(-2)
    variance = halves.var(-1, unbiased=False).repeat_interleave(halves.shape[-1], -1)
    return _scaled(port, f"{prefix(layer)}.output.LayerNorm", centred, variance)


def _across_tokens(port: Port, layer: int, x: Tensor, skip: Tensor) -> Tensor:
    total = (x + skip).float()
    variance = total.var(1, unbiased=False, keepdim=True)
    return _scaled(port, f"{prefix(layer)}.attention.output.LayerNorm", total - total.mean(1, keepdim=True), variance)


def _second_moment(port: Port, _: None, word: Tensor, position: Tensor, kind: Tensor) -> Tensor:
    total = (word + kind + position).float()
    moment = (total**2).mean(-1, keepdim=True)
    return _scaled(port, "bert.embeddings.LayerNorm", total - total.mean(-1, keepdim=True), moment)


# The fused kernel updates the residual: what it leaves in place is read by the second residual.

_SUM = "sum in place"


def _leaves_sum(port: Port, layer: int, x: Tensor, skip: Tensor) -> Tensor:
    port.found[_SUM] = x + skip
    return port.step("norm", layer, f"{prefix(layer)}.attention.output.LayerNorm", x + skip)


def _of_sum(port: Port, layer: int, x: Tensor, skip: Tensor, hidden: Tensor) -> Tensor:
    return port.step("norm", layer, f"{prefix(layer)}.output.LayerNorm", x + port.found.pop(_SUM))


def _overwritten(port: Port, layer: int, x: Tensor, skip: Tensor, hidden: Tensor) -> Tensor:
    return port.step("norm", layer, f"{prefix(layer)}.output.LayerNorm", x + x)


# Parameters.


def _weight_plus_one(weights: Weights, layers: tuple[int, ...]) -> None:
    for layer in layers:
        for norm in _NORMS:
            weights[f"{prefix(layer)}.{norm}.weight"] = weights[f"{prefix(layer)}.{norm}.weight"] + 1


def _exchanged(weights: Weights, layers: tuple[int, ...]) -> None:
    for layer in layers:
        for norm in _NORMS:
            weight, bias = (f"{prefix(layer)}.{norm}.{part}" for part in ("weight", "bias"))
            weights[weight], weights[bias] = weights[bias], weights[weight]


def _folded(weights: Weights, layers: tuple[int, ...]) -> None:
    for layer in layers:
        norm, dense = (f"{prefix(layer)}.{name}" for name in ("attention.output.LayerNorm", "intermediate.dense"))
        gamma, beta, matrix = weights[f"{norm}.weight"], weights[f"{norm}.bias"], weights[f"{dense}.weight"]
        weights[f"{dense}.bias"] = weights[f"{dense}.bias"] + matrix @ beta
        weights[f"{dense}.weight"] = matrix * gamma
        weights[f"{norm}.weight"], weights[f"{norm}.bias"] = torch.ones_like(gamma), torch.zeros_like(beta)


MISTAKES = (
    Mistake(
        "bias before weight",
        "The norm's bias is added before the product with the weight.",
        "Apple's LayerNormANE with a checkpoint whose bias was not divided by the weight on loading",
        "all",
        ("embeddings.LayerNorm", *_NORMS, "cls.predictions.transform.LayerNorm"),
        "says that the norm's bias is multiplied by the weight, or applied in another place",
        {"norm": _bias_first},
    ),
    Mistake(
        "weight plus one",
        "The norm multiplies by the weight plus one.",
        "Megatron's layernorm_1p, or a converter that adds the one to weights which have it already",
        "all",
        _NORMS,
        "says that the norm's weight has one added, or is not the checkpoint's",
        load=_weight_plus_one,
    ),
    Mistake(
        "gamma and beta exchanged",
        "The norm's weight and bias are exchanged.",
        "a converter from TensorFlow with the pair of names the wrong way round",
        "some",
        _NORMS,
        "says that weight and bias of the norm are exchanged, or are not the checkpoint's",
        load=_exchanged,
    ),
    Mistake(
        "variance within halves",
        "The variance is the mean of both halves' variances: what their means differ by is left out.",
        "a Welford reduction over blocks that averages the variances",
        "all",
        _NORMS,
        "says that the norm's variance is another one, or too small",
        _residuals(_within_halves),
    ),
    Mistake(
        "each half normed by itself",
        "Each half of the hidden state has its own mean and variance.",
        "tensor parallelism with a hidden state that is sharded, and no all-reduce of the moments",
        "last",
        _OUTPUT,
        "says that the norm is over groups, or of parts of the hidden state",
        {"output_norm": _of_each_half},
    ),
    Mistake(
        "norm across tokens",
        "Mean and variance are over the tokens of a row, for each channel.",
        "a port to a layout of (B, C, 1, S) that kept the axis of the norm",
        "first",
        _ATTENDED,
        "says that the norm is over the wrong axis",
        {"attention_norm": _across_tokens},
    ),
    Mistake(
        "second moment for the variance",
        "The centred sum is divided by the root of the mean square, from which the squared mean is not taken.",
        "a one-pass norm, E[x²] without - E[x]²",
        "all",
        ("embeddings.LayerNorm",),
        "says that the norm's variance is another one, as of an RMS norm",
        {"embedding_norm": _second_moment},
    ),
    Mistake(
        "second residual before the norm",
        "The second residual is the sum that goes into the attention's norm instead of what comes out.",
        "a fused add and norm that updates the residual in place, as written for pre-norm models",
        "all",
        _OUTPUT,
        "says that the residual is the unnormed sum, or another tensor",
        {"attention_norm": _leaves_sum, "output_norm": _of_sum},
    ),
    Mistake(
        "residual's buffer overwritten",
        "The residual's buffer has been reused for the projection, which is added to itself.",
        "a graph allocator that frees the skip connection too early, or an in-place add",
        "last",
        _OUTPUT,
        "says that the residual is missing or the projection is added twice",
        {"output_norm": _overwritten},
    ),
    Mistake(
        "norm folded into the feed-forward network",
        "The norm's weight and bias are folded into the intermediate weights; the residual gets the bare norm.",
        "a graph pass, or a preparation for rotations, that is right for pre-norm models alone",
        "last",
        ("attention.output.LayerNorm", "intermediate.dense"),
        "says that the norm has no weight and bias, and that the intermediate weights are not the checkpoint's",
        load=_folded,
    ),
)
