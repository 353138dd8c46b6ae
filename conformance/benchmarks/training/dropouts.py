"""Dropouts in the modules of `making-bert`, all correct in eval mode: unusual ones that are correct, and mistakes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from conformance import Architecture, TorchImplementation
from conformance.benchmarks.planted import kept, plant
from conformance.implementations.making_bert import Bert, making_bert

LAYER = 1
_PATH, _MODULES = f"encoder.layer.{LAYER}", f"transformer.{LAYER}"
PROBS = f"{_PATH}.attention.self.dropout"
OUTPUT = f"{_PATH}.output.dropout"
EMBEDDINGS = "embeddings.dropout"
_EVERY = "*dropout"


@dataclass(frozen=True)
class Dropout:
    """A change of `making-bert` that concerns its dropouts.

    Attributes:
        modules: paths of the changed modules, a shell pattern.
        expression: what they return (`benchmarks.planted`); `hidden` is the rate of hidden states.
        at: first activation that is wrong; empty if the dropout is correct.
        named: name of the fault there, or part of the message about its mask.
    """

    modules: str
    expression: str
    at: str = ""
    named: str = ""

    @property
    def candidate(self) -> TorchImplementation:
        """The candidate `making-bert` with this dropout."""

        def build(a: Architecture) -> Bert:
            model = making_bert.build(a)
            assert isinstance(model, Bert)
            names = {"checkpoint": checkpoint, "masked": masked, "of_first": _OfFirst(), "hidden": a.hidden_dropout_prob}
            plant(model, self.modules, self.expression, **names)
            return model

        return replace(making_bert, build=build, name="planted")


class _Masked(torch.autograd.Function):
    """Dropout with another gradient."""

    @staticmethod
    def forward(context: Any, x: Tensor, p: float, gradient: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        context.mask, context.gradient = kept(x, p), gradient
        result: Tensor = x * context.mask / (1.0 - p)
        return result

    @staticmethod
    def backward(context: Any, upstream: Tensor) -> Any:
        return context.gradient(upstream, context.mask), None, None


def masked(x: Tensor, p: float, gradient: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Return the dropped x, with the gradient gradient(upstream, mask)."""
    apply: Any = _Masked.apply
    result: Tensor = apply(x, p, gradient)
    return result


class _OfFirst:
    """Maps the masks of several modules to that of the first one."""

    def __call__(self, mask: Tensor, number: int) -> Tensor:
        if number == 0:
            self.mask = mask
        return self.mask


def _when_training(modules: str, expression: str, at: str = "", named: str = "") -> Dropout:
    return Dropout(modules, f"({expression}) if training else x", at, named)


def _correct(expression: str) -> Dropout:
    return _when_training(_EVERY, expression)


CORRECT: Mapping[str, Dropout] = {
    # The backward pass of a softmax reads the probabilities, the only input of a dropout with four axes.
    "in place": _correct("F.dropout(x, p, inplace=x.ndim == 3)"),
    "a mask in the activations' format": _correct("x * torch.empty_like(x).bernoulli_(1 - p).div_(1 - p)"),
    "a mask of booleans, the kept ones divided": _correct("where(torch.rand_like(x) < 1 - p, x / (1 - p), 0.0)"),
    "filled, then multiplied": _correct("x.masked_fill(torch.rand(x.shape, device=x.device) < p, 0.0) * (1 / (1 - p))"),
    "divided, then filled by index": _correct(  # As a sparse kernel does.
        "(x / (1 - p)).flatten().index_fill(0, (kept(x.flatten(), p) == 0).nonzero()[:, 0], 0.0).view_as(x)"
    ),
    "in float32": _correct("F.dropout(widened(x), p).to(x.dtype)"),
    "drawn row by row": _correct("x * torch.stack([kept(row, p) for row in x]) / (1 - p)"),
    # The backward pass computes each layer again, with the random state of the forward pass.
    "gradient checkpointing": Dropout(
        "transformer.[0-9]", "checkpoint(right, x, y, use_reentrant=False) if torch.is_grad_enabled() else right(x, y)"
    ),
}


def _output(expression: str, named: str) -> Dropout:
    """Return a change of the dropout after the layer's MLP."""
    return _when_training(f"{_MODULES}.residual.dropout", expression, OUTPUT, named)


def _probs(expression: str, named: str) -> Dropout:
    return _when_training(f"{_MODULES}.attention.attention.dropout", expression, PROBS, named)


def _residual(expression: str, named: str) -> Dropout:
    return Dropout(f"{_MODULES}.residual", expression, OUTPUT, named)


def _gradient(gradient: str, named: str) -> Dropout:
    """Return another gradient, an expression of the upstream gradient w and of the mask m."""
    return replace(_output(f"masked(x, p, lambda w, m: {gradient})", named), at=f"{_PATH}.output.dense.grad")


WRONG: Mapping[str, Dropout] = {
    "none on the probabilities": _probs("x", "dropout-missing"),
    "not reached by train()": _output("x", "dropout-missing"),
    "rate doubled": _output("F.dropout(x, 2 * hidden)", "dropout-rate"),
    "rate hard-coded": _output("F.dropout(x, 0.5)", "dropout-rate"),
    "the hidden states' rate for the probabilities": _probs("F.dropout(x, hidden)", "dropout-rate"),
    "not scaled": _output("x * kept(x, p)", "dropout-not-scaled"),
    "divided by p": _output("x * kept(x, p) / p", "dropout-scaled-by-rate"),
    "on the sum of the residual": _residual("layer_norm(dropout(x + mlp2(gelu(mlp1(x)))))", "dropout-after-residual"),
    "after the norm": _residual("dropout(layer_norm(x + mlp2(gelu(mlp1(x)))))", "dropout-after-norm"),
    "of the embeddings before their norm": Dropout(
        "embedding",
        "layer_norm(dropout(token_embedding(x) + token_type_embedding(y) + position_embedding(arange(x.shape[1]).to(x))))",
        "embeddings.LayerNorm",
        "dropout-before-norm",
    ),
    "drawn right, kept with another probability": _output("x * kept(x, 1.5 * p) / (1 - p)", "dropped"),
    "one mask for all layers": _when_training(
        "transformer.*.residual.dropout",
        "x * of_first(kept(x, p), number) / (1 - p)",
        OUTPUT,
        "encoder.layer.0.output.dropout",
    ),
    "one mask for all calls": _when_training(
        "embedding.dropout",
        "x * (torch.rand(x.shape, generator=torch.Generator().manual_seed(0)).to(x.device) >= p) / (1 - p)",
        EMBEDDINGS,
        "the call before",
    ),
    "one mask for all rows": _output("x * kept(x[:1], p) / (1 - p)", "`batch`"),
    "one mask for all tokens": _output("x * kept(x[:, :1], p) / (1 - p)", "`position`"),
    "whole tokens": _output("x * kept(x[..., :1], p) / (1 - p)", "`feature`"),
    "one mask for all heads": _probs("x * kept(x[:, :1], p) / (1 - p)", "`head`"),
    "whole keys": _probs("x * kept(x[:, :, :1], p) / (1 - p)", "`query`"),
    "gradient without the mask": _gradient("w / (1 - p)", "dropout-gradient-unmasked"),
    "gradient not scaled": _gradient("w * m", "dropout-gradient-not-scaled"),
    "gradient straight through": _gradient("w", "dropout-gradient-identity"),
}
