"""Wrong dropouts in the modules of `making-bert`; all are correct in eval mode."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from conformance import Architecture, TorchImplementation
from conformance.implementations.making_bert import Bert, making_bert

Drop = Callable[[Tensor, float], Tensor]

LAYER = 1
_PATH = f"encoder.layer.{LAYER}"
PROBS = f"{_PATH}.attention.self.dropout"
OUTPUT = f"{_PATH}.output.dropout"
EMBEDDINGS = "embeddings.dropout"


@dataclass(frozen=True)
class Wrong:
    """A mistake in a dropout.

    Attributes:
        plant: changes the model.
        at: first activation that is wrong.
        named: name of the fault found there, or part of the message about its mask.
    """

    plant: Callable[[Any], None]
    at: str
    named: str

    @property
    def candidate(self) -> TorchImplementation:
        """The candidate `making-bert` with this mistake."""

        def build(a: Architecture) -> Bert:
            model = making_bert.build(a)
            assert isinstance(model, Bert)
            self.plant(model)
            return model

        return replace(making_bert, build=build, name="planted")


class Dropping(nn.Module):
    """A dropout that calls `drop(x, p)` in training mode."""

    def __init__(self, p: float, drop: Drop) -> None:
        super().__init__()
        self.p, self.drop = p, drop

    def forward(self, x: Tensor) -> Tensor:
        """Return the dropped x in training mode, and x in eval mode."""
        return self.drop(x, self.p) if self.training else x


def kept(x: Tensor, p: float, *shape: int) -> Tensor:
    """Return a random mask of this shape, or of the shape of x."""
    return (torch.rand(shape or x.shape, device=x.device) >= p).to(x.dtype)


def layer(model: Any) -> Any:
    """Return the layer that is changed."""
    return model.transformer[LAYER]


def _by_hand(drop: Drop) -> Callable[[Any], None]:
    """Return a change that replaces the dropout after the layer's MLP."""

    def plant(model: Any) -> None:
        layer(model).residual.dropout = Dropping(layer(model).residual.dropout.p, drop)

    return plant


def _at_rate(rate: Callable[[Any], float]) -> Callable[[Any], None]:
    def plant(model: Any) -> None:
        layer(model).residual.dropout.p = rate(model)

    return plant


def _none_on_probs(model: Any) -> None:
    layer(model).attention.attention.dropout = nn.Identity()


def _not_reached(model: Any) -> None:
    dropout = layer(model).residual.dropout.eval()
    dropout.train = lambda mode=True: dropout


def _of_hidden_on_probs(model: Any) -> None:
    layer(model).attention.attention.dropout.p = model.embedding.dropout.p


def _for_all_calls(model: Any) -> None:
    """Make the embeddings' dropout draw from the same random state at each call."""

    def drop(x: Tensor, p: float) -> Tensor:
        same = torch.rand(x.shape, generator=torch.Generator().manual_seed(0)).to(x.device)
        return x * (same >= p).to(x.dtype) / (1.0 - p)

    model.embedding.dropout = Dropping(model.embedding.dropout.p, drop)


def _for_all_layers(model: Any) -> None:
    """Make all layers use the mask that the first layer draws."""
    first: list[Tensor] = []

    def drop(x: Tensor, p: float) -> Tensor:
        return x * first[0] / (1.0 - p)

    def draw(x: Tensor, p: float) -> Tensor:
        first[:] = [kept(x, p)]
        return drop(x, p)

    for index, each in enumerate(model.transformer):
        each.residual.dropout = Dropping(each.residual.dropout.p, drop if index else draw)


def _same(axis: int, where: str) -> Callable[[Any], None]:
    """Return a change that uses one mask for a whole axis."""

    def drop(x: Tensor, p: float) -> Tensor:
        return x * kept(x, p, *(1 if i == axis else n for i, n in enumerate(x.shape))) / (1.0 - p)

    def plant(model: Any) -> None:
        inner = layer(model).attention.attention if where == "probs" else layer(model).residual
        inner.dropout = Dropping(inner.dropout.p, drop)

    return plant


def _after_residual(model: Any) -> None:
    def forward(self: Any, hidden: Tensor) -> Tensor:
        inner = torch.nn.functional.gelu(self.mlp1(hidden))
        summed: Tensor = self.dropout(hidden + self.mlp2(inner))
        found: Tensor = self.layer_norm(summed)
        return found

    layer(model).residual.forward = MethodType(forward, layer(model).residual)


def _after_norm(model: Any) -> None:
    def forward(self: Any, hidden: Tensor) -> Tensor:
        inner = torch.nn.functional.gelu(self.mlp1(hidden))
        found: Tensor = self.dropout(self.layer_norm(hidden + self.mlp2(inner)))
        return found

    layer(model).residual.forward = MethodType(forward, layer(model).residual)


def _before_norm(model: Any) -> None:
    def forward(self: Any, input_ids: Tensor, token_type_ids: Tensor) -> Tensor:
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)
        summed = self.token_embedding(input_ids) + self.token_type_embedding(token_type_ids)
        found: Tensor = self.layer_norm(self.dropout(summed + self.position_embedding(positions)))
        return found

    model.embedding.forward = MethodType(forward, model.embedding)


class _Rewritten(torch.autograd.Function):
    """Dropout with another gradient."""

    @staticmethod
    def forward(context: Any, x: Tensor, p: float, gradient: Callable[[Tensor, Tensor, float], Tensor]) -> Tensor:
        context.mask, context.p, context.gradient = kept(x, p), p, gradient
        found: Tensor = x * context.mask / (1.0 - p)
        return found

    @staticmethod
    def backward(context: Any, upstream: Tensor) -> Any:
        return context.gradient(upstream, context.mask, context.p), None, None


def _differentiated(gradient: Callable[[Tensor, Tensor, float], Tensor]) -> Callable[[Any], None]:
    def drop(x: Tensor, p: float) -> Tensor:
        apply: Any = _Rewritten.apply
        found: Tensor = apply(x, p, gradient)
        return found

    return _by_hand(drop)


_OUTPUT_GRADIENT = f"{_PATH}.output.dense.grad"

WRONG: Mapping[str, Wrong] = {
    "none on the probabilities": Wrong(_none_on_probs, PROBS, "dropout-missing"),
    "not reached by train()": Wrong(_not_reached, OUTPUT, "dropout-missing"),
    "rate doubled": Wrong(_at_rate(lambda model: 2.0 * model.embedding.dropout.p), OUTPUT, "dropout-rate"),
    "rate hard-coded": Wrong(_at_rate(lambda _: 0.5), OUTPUT, "dropout-rate"),
    "the hidden states' rate for the probabilities": Wrong(_of_hidden_on_probs, PROBS, "dropout-rate"),
    "not scaled": Wrong(_by_hand(lambda x, p: x * kept(x, p)), OUTPUT, "dropout-not-scaled"),
    "divided by p": Wrong(_by_hand(lambda x, p: x * kept(x, p) / p), OUTPUT, "dropout-scaled-by-rate"),
    "on the sum of the residual": Wrong(_after_residual, OUTPUT, "dropout-after-residual"),
    "after the norm": Wrong(_after_norm, OUTPUT, "dropout-after-norm"),
    "of the embeddings before their norm": Wrong(_before_norm, "embeddings.LayerNorm", "dropout-before-norm"),
    "drawn right, kept with another probability": Wrong(_by_hand(lambda x, p: x * kept(x, 1.5 * p) / (1.0 - p)), OUTPUT, "dropped"),
    "one mask for all layers": Wrong(_for_all_layers, OUTPUT, "encoder.layer.0.output.dropout"),
    "one mask for all calls": Wrong(_for_all_calls, EMBEDDINGS, "the call before"),
    "one mask for all rows": Wrong(_same(0, "output"), OUTPUT, "`batch`"),
    "one mask for all tokens": Wrong(_same(1, "output"), OUTPUT, "`position`"),
    "whole tokens": Wrong(_same(2, "output"), OUTPUT, "`feature`"),
    "one mask for all heads": Wrong(_same(1, "probs"), PROBS, "`head`"),
    "whole keys": Wrong(_same(2, "probs"), PROBS, "`query`"),
    "gradient without the mask": Wrong(
        _differentiated(lambda upstream, _, p: upstream / (1.0 - p)), _OUTPUT_GRADIENT, "dropout-gradient-unmasked"
    ),
    "gradient not scaled": Wrong(
        _differentiated(lambda upstream, mask, _: upstream * mask), _OUTPUT_GRADIENT, "dropout-gradient-not-scaled"
    ),
    "gradient straight through": Wrong(
        _differentiated(lambda upstream, *_: upstream), _OUTPUT_GRADIENT, "dropout-gradient-identity"
    ),
}
