"""Mistakes in the activation function between the two feed-forward products."""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from conformance.benchmarks.detection.bert import Bert
from conformance.benchmarks.detection.planted.plant import (
    Plant,
    Suits,
    after,
    always,
    gelu,
    in_layer,
    override,
    widely,
)
from conformance.benchmarks.detection.steps import erf_gelu, tanh_gelu
from conformance.model.architecture import Architecture

Function = Callable[[Tensor], Tensor]


def _is_erf(a: Architecture) -> bool:
    return a.hidden_act == "gelu"


def _is_tanh(a: Architecture) -> bool:
    return a.hidden_act in ("gelu_new", "gelu_pytorch_tanh")


def _is_no_relu(a: Architecture) -> bool:
    return a.hidden_act != "relu"


def _other_form(right: Function) -> Function:
    return tanh_gelu if right is erf_gelu else erf_gelu


def _gelu_of_argument(x: Tensor) -> Tensor:
    """Compute x/2 · (1 + erf(x))."""
    return x * 0.5 * (1.0 + torch.erf(x))


def _gelu_with_constant(x: Tensor) -> Tensor:
    """Compute x/2 · (1 + tanh(√(2/π) (x + 0.44715 x³)))."""
    return x * 0.5 * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.44715 * x**3)))


def _tanh_form(x: Tensor, outer: float, cubic: float) -> Tensor:
    return x * 0.5 * (1.0 + torch.tanh(outer * (x + cubic * x**3)))


def _limited(y: Tensor) -> Tensor:
    return y.clamp(max=0.5 * float(y.max()))


# The incorrect function, given the correct one; and the architectures that can have the mistake.
_FUNCTIONS: dict[str, tuple[Callable[[Function], Function], Suits]] = {
    "gelu-variant": (_other_form, gelu),
    "activation-quick-gelu": (lambda _: lambda x: x * torch.sigmoid(1.702 * x), always),
    "activation-relu": (lambda _: torch.relu, _is_no_relu),
    "activation-missing": (lambda _: lambda x: x, always),
    "gelu-argument": (lambda _: _gelu_of_argument, _is_erf),
    "gelu-tanh-constant": (lambda _: _gelu_with_constant, _is_tanh),
    "activation-silu": (lambda _: F.silu, always),
    "activation-twice": (lambda right: lambda x: right(right(x)), gelu),
    "activation-leaky-relu": (lambda _: F.leaky_relu, always),  # 0.01 is torch's own slope
    "activation-softplus": (lambda _: F.softplus, always),
    "activation-squared-relu": (lambda _: lambda x: torch.relu(x) ** 2, always),
    "activation-tanh": (lambda _: torch.tanh, always),
    "result-clipped": (lambda right: lambda x: _limited(right(x)), always),
    "gelu-tanh-cubic": (lambda _: lambda x: _tanh_form(x, math.sqrt(2.0 / math.pi), 0.04715), _is_erf),
    "gelu-tanh-outer": (lambda _: lambda x: _tanh_form(x, 0.8, 0.044715), gelu),
    "gelu-of-magnitude": (lambda right: lambda x: torch.where(x < 0, x - right(x), right(x)), gelu),
    "gelu-sigmoid-factor": (lambda _: lambda x: x * torch.sigmoid(1.7 * x), gelu),
    "result-unsigned-bytes": (lambda right: lambda x: _unsigned_bytes(right(x)), always),
    "gelu-half-missing": (lambda right: lambda x: 2.0 * right(x), gelu),
}


def _unsigned_bytes(y: Tensor) -> Tensor:
    level = y.amax() / 255
    return (y / level).round().clamp(0, 255) * level


def _planted(name: str, wrong: Callable[[Function], Function], suits: Suits) -> Plant:
    def install(model: Bert, layer: int) -> None:
        step = model.layer(layer).intermediate.intermediate_act_fn
        step.function = widely(wrong(step.function))

    return in_layer(name, install, "intermediate.intermediate_act_fn", suits=suits)


def _bias_after(model: Bert, layer: int) -> None:
    """Add the bias of the product once more after the activation function."""
    own = model.layer(layer).intermediate
    after(own.intermediate_act_fn, lambda y: y + own.dense.bias)


def _bias_moved(model: Bert, layer: int) -> None:
    """Apply the function to the product without its bias, and add the bias afterwards; the product is shown with it."""
    own, inputs = model.layer(layer).intermediate, list[Tensor]()
    own.dense.register_forward_pre_hook(lambda _, given: inputs.append(given[0]))
    right = own.intermediate_act_fn.forward
    override(own.intermediate_act_fn, "forward", lambda _: right(F.linear(inputs.pop(), own.dense.weight)) + own.dense.bias)


PLANTS = (
    *(_planted(name, wrong, suits) for name, (wrong, suits) in _FUNCTIONS.items()),
    in_layer("bias-moved-after-activation", _bias_moved, "intermediate.intermediate_act_fn"),
    in_layer("bias-after-activation", _bias_after, "intermediate.intermediate_act_fn"),
)
