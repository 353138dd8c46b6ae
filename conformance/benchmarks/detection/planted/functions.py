"""Mistakes in the activation function between the two feed-forward products."""

import math
from collections.abc import Callable
from typing import Unpack

import torch
from torch import Tensor
from torch.nn import functional as F

from conformance.benchmarks.detection.bert import Bert
from conformance.benchmarks.detection.planted.plant import Options, Plant, after, gelu, in_layer, override, widely
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


def _function(name: str, description: str, wrong: Callable[[Function], Function], **options: Unpack[Options]) -> Plant:
    """Return a mistake in the activation function; `wrong` returns the incorrect function, given the correct one."""

    def install(model: Bert, layer: int) -> None:
        step = model.layer(layer).intermediate.intermediate_act_fn
        step.function = widely(wrong(step.function))

    return in_layer(name, description, install, "intermediate.intermediate_act_fn", **options)


def _unsigned_bytes(y: Tensor) -> Tensor:
    level = y.amax() / 255
    return (y / level).round().clamp(0, 255) * level


def _bias_after(model: Bert, layer: int) -> None:
    """Add the bias of the product once more after the activation function."""
    own = model.layer(layer).intermediate
    after(own.intermediate_act_fn, lambda y: y + own.dense.bias)


def _late(model: Bert, layer: int) -> None:
    """Apply the activation function to the result of the second linear layer as well."""
    changed = model.layer(layer)
    function, right = changed.intermediate.intermediate_act_fn.function, changed.output.dense.forward
    override(changed.output.dense, "forward", lambda x: widely(function)(right(x)))


def _bias_again(model: Bert, layer: int) -> None:
    """Add the bias of the product once more before the activation function."""
    own = model.layer(layer).intermediate
    right = own.intermediate_act_fn.function
    own.intermediate_act_fn.function = lambda x: right(x + own.dense.bias)


def _bias_moved(model: Bert, layer: int) -> None:
    """Apply the function to the product without its bias, and add the bias afterwards; the product is shown with it."""
    own, inputs = model.layer(layer).intermediate, list[Tensor]()
    own.dense.register_forward_pre_hook(lambda _, given: inputs.append(given[0]))
    right = own.intermediate_act_fn.forward
    override(own.intermediate_act_fn, "forward", lambda _: right(F.linear(inputs.pop(), own.dense.weight)) + own.dense.bias)


def _again(model: Bert, layer: int) -> None:
    """Apply the activation function to its result once more, inside of the product after it."""
    changed = model.layer(layer)
    function, right = changed.intermediate.intermediate_act_fn.function, changed.output.dense.forward
    override(changed.output.dense, "forward", lambda x: right(widely(function)(x)))


PLANTS = (
    _function("gelu-variant", "GELU by tanh where the architecture has erf, or the other way round", _other_form, suits=gelu),
    _function("activation-quick-gelu", "x · sigmoid(1.702 x)", lambda _: lambda x: x * torch.sigmoid(1.702 * x)),
    _function("activation-relu", "max(x, 0)", lambda _: torch.relu, suits=_is_no_relu),
    _function("activation-missing", "x itself", lambda _: lambda x: x),
    _function("gelu-argument", "erf(k x) with k = 1 for 1/√2", lambda _: _gelu_of_argument, suits=_is_erf, value=1.0),
    _function("gelu-tanh-constant", "0.44715 for 0.044715 in the tanh form; only where the architecture has that form",
              lambda _: _gelu_with_constant, suits=_is_tanh, value=0.44715),
    _function("activation-silu", "x · sigmoid(x)", lambda _: F.silu),
    _function("activation-twice", "GELU(GELU(x))", lambda right: lambda x: right(right(x)), suits=gelu),
    _function("activation-leaky-relu", "x for x > 0, else 0.01 x", lambda _: F.leaky_relu),
    _function("activation-softplus", "log(1 + exp(x))", lambda _: F.softplus),
    _function("activation-squared-relu", "max(x, 0)²", lambda _: lambda x: torch.relu(x) ** 2),
    _function("activation-tanh", "tanh(x)", lambda _: torch.tanh),
    _function("result-clipped", "at most half of the largest result", lambda right: lambda x: _limited(right(x))),
    _function("gelu-tanh-cubic", "the tanh form with 0.04715 for 0.044715; only where the architecture has the erf form",
              lambda _: lambda x: _tanh_form(x, math.sqrt(2.0 / math.pi), 0.04715), suits=_is_erf),
    _function("gelu-tanh-outer", "the tanh form with 0.8 for √(2/π)",
              lambda _: lambda x: _tanh_form(x, 0.8, 0.044715), suits=gelu),
    _function("gelu-tanh-eight-digits", "the tanh form with 0.79788456 for √(2/π), in float64",
              lambda _: lambda x: _tanh_form(x, 0.79788456, 0.044715), suits=gelu, dtypes=("float64",)),
    _function("gelu-of-magnitude", "x Φ(|x|)", lambda right: lambda x: torch.where(x < 0, x - right(x), right(x)), suits=gelu),
    _function("gelu-sigmoid-factor", "x · sigmoid(1.7 x)", lambda _: lambda x: x * torch.sigmoid(1.7 * x), suits=gelu),
    _function("result-unsigned-bytes", "f(x) rounded to 256 multiples of max f / 255 from 0 up",
              lambda right: lambda x: _unsigned_bytes(right(x))),
    _function("gelu-half-missing", "x · (1 + erf(x/√2))", lambda right: lambda x: 2.0 * right(x), suits=gelu),
    in_layer("activation-again", "GELU(GELU(x)) W + b, with GELU(x) exposed", _again, "output.dense", suits=gelu),
    in_layer("activation-late", "GELU(x W + b) at the output dense as well", _late, "output.dense", suits=gelu),
    in_layer("bias-again-before-activation", "f(W x + b + b), the product shown as W x + b",
             _bias_again, "intermediate.intermediate_act_fn"),
    in_layer("bias-moved-after-activation", "f(W x) + b, the product shown as W x + b",
             _bias_moved, "intermediate.intermediate_act_fn"),
    in_layer("bias-after-activation", "f(W x + b) + b", _bias_after, "intermediate.intermediate_act_fn"),
)  # fmt: skip
