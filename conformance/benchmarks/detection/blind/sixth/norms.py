"""Mistakes in the norms and in the residuals."""

import torch
from torch import Tensor
from torch.nn import functional as F

from conformance.benchmarks.detection.blind.port import Mistake, Operation, Port, prefix

_ATTENDED, _OUTPUT = "attention.output.LayerNorm", "output.LayerNorm"
_EVERY = ("embeddings.LayerNorm", _ATTENDED, _OUTPUT, "cls.predictions.transform.LayerNorm")


def _with_keras_epsilon(port: Port, layer: int | None, name: str, x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], port.weights[f"{name}.weight"], port.weights[f"{name}.bias"], 1e-3)


def _fast_root(x: Tensor) -> Tensor:
    guess = (0x5F3759DF - (x.view(torch.int32) >> 1)).view(torch.float32)
    return guess * (1.5 - 0.5 * x * guess * guess)


def _approximate(port: Port, layer: int | None, name: str, x: Tensor) -> Tensor:
    centred = x.float() - x.float().mean(-1, keepdim=True)
    variance = (centred**2).mean(-1, keepdim=True) + port.architecture.layer_norm_eps
    normed = centred * _fast_root(variance.contiguous())
    return (normed * port.weights[f"{name}.weight"].float() + port.weights[f"{name}.bias"].float()).to(x.dtype)


def _weighted(name: str) -> Operation:
    """The residual of that norm, multiplied as in DeepNorm."""

    def normed(port: Port, layer: int, x: Tensor, skip: Tensor, *_: Tensor) -> Tensor:
        alpha = (2 * port.architecture.num_hidden_layers) ** 0.25
        return port.step("norm", layer, f"{prefix(layer)}.{name}", x + alpha * skip)

    return normed


def _parallel(port: Port, layer: int, x: Tensor, skip: Tensor, hidden: Tensor) -> Tensor:
    return port.step("norm", layer, f"{prefix(layer)}.{_OUTPUT}", x + hidden)


def _on_both_ranks(port: Port, layer: int, x: Tensor, skip: Tensor) -> Tensor:
    return port.step("norm", layer, f"{prefix(layer)}.{_ATTENDED}", x + skip + skip)


def _stale(port: Port, layer: int, x: Tensor, skip: Tensor, hidden: Tensor) -> Tensor:
    before = port.found[f"encoder.layer.{layer - 1}.{_ATTENDED}"]
    return port.step("norm", layer, f"{prefix(layer)}.{_OUTPUT}", x + before)


MISTAKES = (
    Mistake(
        "Keras's epsilon",
        "The norms' epsilon is 0.001.",
        "keras.layers.LayerNormalization without an argument",
        "all",
        _EVERY,
        "says that the epsilon is 0.001, or too large",
        {"norm": _with_keras_epsilon},
    ),
    Mistake(
        "approximate root",
        "The reciprocal root of the variance is from the bits of the number and one Newton step.",
        "an embedded or vectorized runtime, with an estimate of the reciprocal root",
        "all",
        _EVERY,
        "says that the normed values are off by a common factor near 1 for each token",
        {"norm": _approximate},
    ),
    Mistake(
        "residual weighted by depth",
        "Both residuals are multiplied by the fourth root of twice the number of layers.",
        "DeepNorm's alpha, left on for a checkpoint that was trained without",
        "all",
        (_ATTENDED, _OUTPUT),
        "says that the residual is multiplied by a constant",
        {"attention_norm": _weighted(_ATTENDED), "output_norm": _weighted(_OUTPUT)},
    ),
    Mistake(
        "second residual from the layer's input",
        "The second residual is the input of the layer instead of the attention output.",
        "a layer in the form of GPT-J's, or a variable that is not reassigned",
        "all",
        (_OUTPUT,),
        "says that the second residual is the layer's input",
        {"output_norm": _parallel},
    ),
    Mistake(
        "residual on both ranks",
        "The first residual is added twice.",
        "tensor parallelism over two ranks that adds the residual before the all-reduce",
        "all",
        (_ATTENDED,),
        "says that the residual is added twice",
        {"attention_norm": _on_both_ranks},
    ),
    Mistake(
        "residual's buffer not updated",
        "The second residual is the attention output of the layer before.",
        "a captured CUDA graph, or a static buffer, that later layers do not write to",
        "later",
        (_OUTPUT,),
        "says that the residual is of the layer before, or another tensor",
        {"output_norm": _stale},
    ),
)
