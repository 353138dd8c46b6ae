"""Correct dropouts, each written in an unusual way in the modules of `making-bert`."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from conformance import Architecture, TorchImplementation
from conformance.benchmarks.training.wrong import Drop, Dropping, kept
from conformance.implementations.making_bert import Bert, BertLayer, making_bert

Change = Callable[[Any], None]


def _every(change: Callable[[nn.Dropout], nn.Module]) -> Change:
    """Return a change that replaces every dropout."""

    def plant(model: Any) -> None:
        for path, module in list(model.named_modules()):
            if isinstance(module, nn.Dropout):
                parent, _, name = path.rpartition(".")
                setattr(model.get_submodule(parent), name, change(module))

    return plant


def _by_hand(drop: Drop) -> Change:
    return _every(lambda dropout: Dropping(dropout.p, drop))


def _in_place(model: Any) -> None:
    """Make every dropout operate in place, except on the probabilities, which the backward pass of a softmax reads."""
    for path, module in model.named_modules():
        if isinstance(module, nn.Dropout):
            module.inplace = not path.endswith("attention.attention.dropout")


def _filled(x: Tensor, p: float) -> Tensor:
    return x.masked_fill(torch.rand(x.shape, device=x.device) < p, 0.0) * (1.0 / (1.0 - p))


def _of_indices(x: Tensor, p: float) -> Tensor:
    """Drop elements by index, as a sparse kernel does."""
    flat = (x / (1.0 - p)).flatten()
    return flat.index_fill(0, (kept(flat, p) == 0.0).nonzero().squeeze(1), 0.0).view_as(x)


def _recomputed(model: Any) -> None:
    """Apply gradient checkpointing: the backward pass recomputes each layer with the random state of the forward pass."""

    class Checkpointed(BertLayer):
        def forward(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
            if not torch.is_grad_enabled():
                return super().forward(hidden, mask)
            found: Tensor = checkpoint(super().forward, hidden, mask, use_reentrant=False)
            return found

    for layer in model.transformer:
        layer.__class__ = Checkpointed


def _uneven(x: Tensor, p: float) -> Tensor:
    """Draw the mask of each row of the batch separately."""
    masks = [kept(row, p) for row in x]
    return x * torch.stack(masks) / (1.0 - p)


def _in_float32(x: Tensor, p: float) -> Tensor:
    return nn.functional.dropout(x.float() if x.dtype != torch.float64 else x, p).to(x.dtype)


CHANGES: Mapping[str, Change] = {
    "in place": _in_place,
    "a mask in the activations' format": _by_hand(lambda x, p: x * torch.empty_like(x).bernoulli_(1.0 - p).div_(1.0 - p)),
    "a mask of booleans, the kept ones divided": _by_hand(
        lambda x, p: torch.where(torch.rand_like(x) < 1.0 - p, x / (1.0 - p), 0.0)
    ),
    "filled, then multiplied": _by_hand(_filled),
    "divided, then filled by index": _by_hand(_of_indices),
    "in float32": _by_hand(_in_float32),
    "drawn row by row": _by_hand(_uneven),
    "gradient checkpointing": _recomputed,
}


def _changed(name: str, change: Change) -> TorchImplementation:
    def build(a: Architecture) -> Bert:
        model = making_bert.build(a)
        assert isinstance(model, Bert)
        change(model)
        return model

    return replace(making_bert, build=build, name=name)


CORRECT: Mapping[str, TorchImplementation] = {name: _changed(name, change) for name, change in CHANGES.items()}
