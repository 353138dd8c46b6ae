"""What a planted mistake is, and the ways to plant one: a method overridden, what a module makes changed, a parameter set."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from conformance.benchmarks.detection.bert import Bert
from conformance.model.architecture import Architecture

DTYPES = ("float64", "float32", "bfloat16", "float16")

Install = Callable[[Bert, int], None]
Suits = Callable[[Architecture], bool]


def always(a: Architecture) -> bool:
    """For mistakes that every architecture can have."""
    return True


def many_heads(a: Architecture) -> bool:
    """With a single head their order cannot be wrong."""
    return a.num_attention_heads > 1


def many_layers(a: Architecture) -> bool:
    """With a single layer there is no other to take parameters from."""
    return a.num_hidden_layers > 1


def gelu(a: Architecture) -> bool:
    """GELU in either form."""
    return a.hidden_act.startswith("gelu")


def masked_lm(a: Architecture) -> bool:
    """A masked-LM head in either form."""
    return bool({"masked_lm", "plain_masked_lm"} & set(a.heads))


def next_sentence(a: Architecture) -> bool:
    """A next-sentence head in either form."""
    return bool({"next_sentence", "plain_next_sentence"} & set(a.heads))


@dataclass(frozen=True)
class Plant:
    """A mistake that can be planted.

    Attributes:
        name: as in `names`.
        install: plants it in a model, in the layer given.
        layered: whether it can be in any encoder layer; else it has one place, and the layer is ignored.
        origins: the activations whose own step is wrong, given its own captured inputs.
        suits: whether an architecture can have it.
        dtypes: those in which it is a mistake.
    """

    name: str
    install: Install
    layered: bool
    origins: Callable[[Architecture, int], frozenset[str]]
    suits: Suits = always
    dtypes: tuple[str, ...] = DTYPES

    def at(self, layer: int = 0) -> Callable[[Bert], None]:
        """What plants it there: for `Candidate.plants`."""
        return lambda model: self.install(model, layer)


def in_layer(name: str, install: Install, *steps: str, suits: Suits = always, dtypes: tuple[str, ...] = DTYPES) -> Plant:
    """A mistake that can be in any encoder layer, and its origins there."""
    return Plant(name, install, True, lambda a, layer: frozenset(f"encoder.layer.{layer}.{s}" for s in steps), suits, dtypes)


def in_place(name: str, install: Callable[[Bert], None], *origins: str, suits: Suits = always) -> Plant:
    """A mistake that has one place."""
    return Plant(name, lambda model, _: install(model), False, lambda a, _: frozenset(origins), suits)


def override(module: nn.Module, method: str, function: Callable[..., Any]) -> None:
    """Put a function in the place of one module's method."""
    setattr(module, method, function)


def after(module: nn.Module, function: Callable[[Tensor], Tensor]) -> None:
    """Change what a module makes."""
    right = module.forward
    override(module, "forward", lambda *inputs: function(right(*inputs)))


def kept(module: nn.Module) -> list[Tensor]:
    """Where what a module makes is put from now on."""
    found: list[Tensor] = []
    module.register_forward_hook(lambda _, __, made: found.append(made))
    return found


def parameter(values: Tensor) -> nn.Parameter:
    """A parameter of its own with these values."""
    return nn.Parameter(values.detach().clone(), requires_grad=False)


def widely(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """The function computed in at least float32 and rounded once, as torch's own kernels are: only the mistake is to be seen."""

    def wide(x: Tensor) -> Tensor:
        return function(x.to(torch.promote_types(x.dtype, torch.float32))).to(x.dtype)

    return wide
