"""Candidates made from Hugging Face's modules: some with planted mistakes, some correct but computed in an unusual way."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from conformance.implementations.hugging_face import HuggingFace, run

Plant = Callable[[Any], None]


class Planted(HuggingFace):
    """Hugging Face's BERT with the given mistakes applied to the whole model."""

    def __init__(self, *plants: Plant, attention: str = "eager") -> None:
        super().__init__(attention)
        self.plants = plants

    def prepare(self, checkpoint: Any, device: str, dtype: str) -> Any:
        model = self.build(checkpoint).to(device=device, dtype=getattr(torch, dtype)).eval()
        for plant in self.plants:
            plant(model)
        return lambda batch: run(model, batch)


def epsilon(layer: int, value: float = 1e-5) -> Plant:
    return lambda model: setattr(model["bert"].encoder.layer[layer].attention.output.LayerNorm, "eps", value)


def tanh_gelu(layer: int) -> Plant:
    return lambda model: setattr(model["bert"].encoder.layer[layer].intermediate, "intermediate_act_fn", nn.GELU("tanh"))


def unscaled(layer: int) -> Plant:
    return lambda model: setattr(model["bert"].encoder.layer[layer].attention.self, "scaling", 1.0)


class ShortConstantGelu(nn.Module):
    """GELU with 0.70711 in place of 1/√2."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 0.5 * (1.0 + torch.erf(x * 0.70711))


def short_constant_gelu(layer: int) -> Plant:
    return lambda model: setattr(model["bert"].encoder.layer[layer].intermediate, "intermediate_act_fn", ShortConstantGelu())


class MadeOf:
    """A candidate that yields `change` of the correct activations by name."""

    def __init__(self, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        self.change = change

    def prepare(self, checkpoint: Any, device: str, dtype: str) -> Any:
        runner = HuggingFace("eager").prepare(checkpoint, device, dtype)
        return lambda batch: self.change(dict(runner(batch)))


class NativeNorm(nn.Module):
    """LayerNorm written out, with every operation rounded to the storage format."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = norm.weight, norm.bias, norm.eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        centred = x - x.mean(-1, keepdim=True)
        variance = (centred * centred).mean(-1, keepdim=True)
        return centred / torch.sqrt(variance + self.eps) * self.weight + self.bias


def native_norms(model: Any) -> None:
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.LayerNorm):
                setattr(module, name, NativeNorm(child))
