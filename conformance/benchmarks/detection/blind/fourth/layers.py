"""Mistakes in the norms, in the residual sums, in the feed-forward network and in the stack of layers."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from conformance.benchmarks.detection.blind.port import OPERATIONS, Mistake, Operation, Port, prefix
from conformance.benchmarks.detection.blind.third.tools import parameters

_ATTENTION = ("attention.output.LayerNorm",)
_OUTPUT = ("output.LayerNorm",)
_EVERY = ("embeddings.LayerNorm", *_ATTENTION, *_OUTPUT, "cls.predictions.transform.LayerNorm")
_ACTIVATION = ("intermediate.intermediate_act_fn",)
_AFTER_LAST = ("pooler.dense", "cls.predictions.transform.dense")


def _divided(port: Port, name: str, centred: Tensor, variance: Tensor) -> Tensor:
    weight, bias = parameters(port, name)
    return centred * torch.rsqrt(variance + port.architecture.layer_norm_eps) * weight + bias


def _unbiased(port: Port, layer: int | None, name: str, x: Tensor) -> Tensor:
    return _divided(port, name, x - x.mean(-1, keepdim=True), x.var(-1, keepdim=True))


def _half_moments(port: Port, layer: int, x: Tensor, attended: Tensor, hidden: Tensor) -> Tensor:
    half = (x + attended).bfloat16()
    mean, square = half.mean(-1, keepdim=True), half.square().mean(-1, keepdim=True)
    variance = (square - mean.square()).clamp(min=0).to(x.dtype)
    return _divided(port, f"{prefix(layer)}.output.LayerNorm", x + attended - mean.to(x.dtype), variance)


def _keras_epsilon(port: Port, layer: int | None, name: str, x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], *parameters(port, name), 1e-3)


def _without_residual(port: Port, layer: int, x: Tensor, skip: Tensor) -> Tensor:
    return port.step("norm", layer, f"{prefix(layer)}.attention.output.LayerNorm", x)


def _residual_of_input(port: Port, layer: int, x: Tensor, attended: Tensor, hidden: Tensor) -> Tensor:
    return port.step("norm", layer, f"{prefix(layer)}.output.LayerNorm", x + hidden)


def _bias_again(port: Port, layer: int, x: Tensor, attended: Tensor, hidden: Tensor) -> Tensor:
    bias = port.weights[f"{prefix(layer)}.output.dense.bias"]
    return port.step("norm", layer, f"{prefix(layer)}.output.LayerNorm", x + bias + attended)


def _of_normed(name: str, norm: str) -> Operation:
    return lambda port, layer, x: port.linear(
        f"{prefix(layer)}.{name}", port.step("norm", layer, f"{prefix(layer)}.{norm}.LayerNorm", x)
    )


def _plain_sum(port: Port, layer: int, x: Tensor, skip: Tensor, *_: Tensor) -> Tensor:
    return x + skip


def _without_bias(port: Port, layer: int, x: Tensor) -> Tensor:
    return F.linear(x, port.weights[f"{prefix(layer)}.intermediate.dense.weight"])


def _unsigned(port: Port, layer: int, x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.erf(x.abs() / math.sqrt(2)))


def _misread_constant(port: Port, layer: int, x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.44715 * x**3)))


def _last_chunk_lost(port: Port, layer: int, x: Tensor) -> Tensor:
    out = OPERATIONS["outer"](port, layer, x)
    out[:, x.shape[1] // 3 * 3 :] = 0
    return out


MISTAKES = (
    Mistake(
        "variance over n - 1",
        "The variance of every norm is divided by H - 1.",
        "torch.var, Julia's var, MLX with ddof=1",
        "all",
        _EVERY,
        "says that the variance is unbiased, or divided by n - 1",
        {"norm": _unbiased},
    ),
    Mistake(
        "moments in bfloat16",
        "The mean and the mean square, of which the last norm's variance is made, are in bfloat16.",
        "mixed precision without float32 statistics",
        "all",
        _OUTPUT,
        "says that the norm, its statistics or its variance are of low precision",
        {"output_norm": _half_moments},
    ),
    Mistake(
        "epsilon of Keras",
        "The epsilon of every norm is 1e-3.",
        "tf.keras.layers.LayerNormalization's default",
        "all",
        _EVERY,
        "says that the epsilon is 1e-3, or larger than the right one",
        {"norm": _keras_epsilon},
    ),
    Mistake(
        "no residual after attention",
        "The norm after attention is of the projection alone.",
        "an optimiser that fuses SkipLayerNorm and loses an input",
        "some",
        _ATTENTION,
        "says that the residual is missing",
        {"attention_norm": _without_residual},
    ),
    Mistake(
        "residual from the layer's input",
        "The second residual is the input of the layer, not what the first norm gave.",
        "a rewrite that reuses the variable 'residual'",
        "all",
        _OUTPUT,
        "says that the residual is the layer's input",
        {"output_norm": _residual_of_input},
    ),
    Mistake(
        "bias added again by the fused norm",
        "The bias of the layer's last linear step is added again in the norm.",
        "SkipLayerNormalization of ONNX Runtime with a bias, after an Add that stayed",
        "all",
        _OUTPUT,
        "says that a bias is added twice",
        {"output_norm": _bias_again},
    ),
    Mistake(
        "norms before",
        "The norms are applied to the inputs of attention and feed-forward, not to the residual sums.",
        "norm_first=True, or a GPT that was made a BERT",
        "all",
        ("attention.self.query", "attention.self.key", "attention.self.value", *_ATTENTION, "intermediate.dense", *_OUTPUT),
        "says that norms come before, or that the layer is pre-norm",
        {
            "query": _of_normed("attention.self.query", "attention.output"),
            "key": _of_normed("attention.self.key", "attention.output"),
            "value": _of_normed("attention.self.value", "attention.output"),
            "attention_norm": _plain_sum,
            "inner": _of_normed("intermediate.dense", "output"),
            "output_norm": _plain_sum,
        },
    ),
    Mistake(
        "heads on the layer before the last",
        "The heads are given what goes into the last layer.",
        "hidden_states[-2], after bert-as-service",
        "all",
        _AFTER_LAST,
        "says that the heads take an earlier layer, or that the last layer is left out",
        {"last": lambda port, _, hidden: port.layer_before()},
    ),
    Mistake(
        "a norm after the last layer",
        "A norm without parameters follows the last layer.",
        "torch.nn.TransformerEncoder(norm=nn.LayerNorm(H))",
        "all",
        _AFTER_LAST,
        "says that there is an additional norm before the heads, or after the last layer",
        {"last": lambda port, _, hidden: F.layer_norm(hidden, hidden.shape[-1:], eps=port.architecture.layer_norm_eps)},
    ),
    Mistake(
        "ReLU in the layers",
        "The feed-forward network uses ReLU.",
        "torch.nn.TransformerEncoderLayer's default",
        "all",
        _ACTIVATION,
        "says that the activation is ReLU",
        {"activation": lambda port, layer, x: x.relu()},
    ),
    Mistake(
        "GELU of a sigmoid",
        "GELU is x σ(1.702 x).",
        "ggml's gelu_quick, CLIP's text tower",
        "all",
        _ACTIVATION,
        "says that GELU is approximated by a sigmoid",
        {"activation": lambda port, layer, x: x * (1.702 * x).sigmoid()},
    ),
    Mistake(
        "GELU of a tanh",
        "GELU is its tanh form.",
        "jax.nn.gelu's default, ggml_gelu",
        "all",
        _ACTIVATION,
        "says that GELU is approximated by tanh",
        {"activation": lambda port, layer, x: F.gelu(x, approximate="tanh")},
    ),
    Mistake(
        "GELU with 0.44715",
        "The constant of GELU's tanh form is 0.44715, not 0.044715.",
        "a typing error in a shader",
        "all",
        _ACTIVATION,
        "says that a constant, or the cubic term, of GELU's tanh form is wrong",
        {"activation": _misread_constant},
    ),
    Mistake(
        "GELU without the sign",
        "GELU's error function is of |x|.",
        "the polynomial of Abramowitz and Stegun in WGSL, for x ≥ 0 only",
        "all",
        _ACTIVATION,
        "says that GELU is wrong for negative x, or that the sign is lost in it",
        {"activation": _unsigned},
    ),
    Mistake(
        "no bias before GELU",
        "The first linear step of the feed-forward network has no bias.",
        "a fused bias-GELU replaced by a GELU",
        "all",
        ("intermediate.dense",),
        "says that the bias is missing",
        {"inner": _without_bias},
    ),
    Mistake(
        "last chunk of tokens lost",
        "The feed-forward network goes through tokens in chunks of three; the rest gives zeros.",
        "chunks to save memory, of a length that does not divide the row's",
        "all",
        ("output.dense",),
        "says that the last tokens are zero, missing or not processed",
        {"outer": _last_chunk_lost},
    ),
)
"""All of this theme."""
