"""Planted mistakes, and the ways to plant one: override a method, change the result of a module, or set a parameter."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypedDict, Unpack

import torch
from torch import Tensor, nn

from conformance.benchmarks.detection.bert import Bert
from conformance.model.architecture import Architecture

DTYPES = ("float64", "float32", "bfloat16", "float16")

Install = Callable[[Bert, int], None]
Suits = Callable[[Architecture], bool]


def always(a: Architecture) -> bool:
    """Return True, for mistakes that every architecture can have."""
    return True


def many_heads(a: Architecture) -> bool:
    """Return whether there are several heads, so that their order can be wrong."""
    return a.num_attention_heads > 1


def many_layers(a: Architecture) -> bool:
    """Return whether there are several layers, so that a layer can use the parameters of another."""
    return a.num_hidden_layers > 1


def gelu(a: Architecture) -> bool:
    """Return whether the activation function is GELU in either form."""
    return a.hidden_act.startswith("gelu")


def masked_lm(a: Architecture) -> bool:
    """Return whether there is a masked-LM head in either form."""
    return bool({"masked_lm", "plain_masked_lm"} & set(a.heads))


def next_sentence(a: Architecture) -> bool:
    """Return whether there is a next-sentence head in either form."""
    return bool({"next_sentence", "plain_next_sentence"} & set(a.heads))


@dataclass(frozen=True)
class Plant:
    """A mistake that can be planted.

    Attributes:
        name: name of the mistake, by which its fault is found in the catalogue.
        description: what the incorrect step computes, or what is wrong with it.
        install: plants the mistake in a model, at the given layer.
        layered: whether it can be in any encoder layer; otherwise it has one place, and the layer is ignored.
        origins: returns the activations whose own step is wrong, given its captured inputs.
        suits: returns whether an architecture can have the mistake.
        dtypes: names of the formats in which it is a mistake.
        value: the planted value of the fault's parameter, which its estimate must meet; None for a fault without a parameter.
        reported_as: name of the fault that the suite reports where another one computes the same; empty for the mistake's own.
    """

    name: str
    description: str
    install: Install
    layered: bool
    origins: Callable[[Architecture, int], frozenset[str]]
    suits: Suits = always
    dtypes: tuple[str, ...] = DTYPES
    value: float | None = None
    reported_as: str = ""

    def at(self, layer: int = 0) -> Callable[[Bert], None]:
        """Return a function that plants the mistake at this layer, for `Candidate.plants`."""
        return lambda model: self.install(model, layer)


class Options(TypedDict, total=False):
    """The attributes of `Plant` that have a default."""

    suits: Suits
    dtypes: tuple[str, ...]
    value: float
    reported_as: str


def in_layer(name: str, description: str, install: Install, *steps: str, **options: Unpack[Options]) -> Plant:
    """Return a mistake that can be in any encoder layer; `steps` are its origins, relative to the layer."""

    def origins(_: Architecture, layer: int) -> frozenset[str]:
        return frozenset(f"encoder.layer.{layer}.{step}" for step in steps)

    return Plant(name, description, install, True, origins, **options)


def in_place(name: str, description: str, install: Callable[[Bert], None], *origins: str, **options: Unpack[Options]) -> Plant:
    """Return a mistake that has one place; `origins` are the activations whose own step is wrong."""
    return Plant(name, description, lambda model, _: install(model), False, lambda a, _: frozenset(origins), **options)


def override(module: nn.Module, method: str, function: Callable[..., Any]) -> None:
    """Replace the method of one module by a function."""
    setattr(module, method, function)


def after(module: nn.Module, function: Callable[[Tensor], Tensor]) -> None:
    """Apply a function to the result of a module."""
    right = module.forward
    override(module, "forward", lambda *inputs: function(right(*inputs)))


def kept(module: nn.Module) -> list[Tensor]:
    """Return a list to which every later result of a module is appended."""
    found: list[Tensor] = []
    module.register_forward_hook(lambda _, __, made: found.append(made))
    return found


def parameter(values: Tensor) -> nn.Parameter:
    """Return a new parameter with a copy of these values."""
    return nn.Parameter(values.detach().clone(), requires_grad=False)


def widely(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Return the function computed in at least float32 and rounded once, so that only the mistake is visible.

    torch's own kernels round once as well.
    """

    def wide(x: Tensor) -> Tensor:
        return function(x.to(torch.promote_types(x.dtype, torch.float32))).to(x.dtype)

    return wide
