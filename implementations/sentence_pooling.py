"""Sentence embeddings from BERT's hidden states, computed as sentence-transformers' modules Pooling, Dense and Normalize do."""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from conformance import Architecture

_FUNCTIONS = {"tanh": nn.Tanh, "relu": nn.ReLU, "gelu": nn.GELU, "": nn.Identity}


class Dense(nn.Module):
    """f(x Wᵀ + b): (B, I) -> (B, O), with sentence-transformers' module names.

    Args:
        in_features, out_features: I and O.
        bias: whether there is a bias b.
        activation: f: `tanh`, `relu`, `gelu`, or empty for the identity.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool, activation: str) -> None:
        """Initialize the parameters with torch's defaults."""
        super().__init__()
        self.linear = nn.Linear(in_features, out_features, bias=bias)
        self.activation_function = _FUNCTIONS[activation]()

    def steps(self, x: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Yield the product and, unless f is the identity, the result of f, each under its module's name."""
        product = self.linear(x)
        yield "linear", product
        if not isinstance(self.activation_function, nn.Identity):
            yield "activation_function", self.activation_function(product)


def dense_layers(a: Architecture) -> nn.ModuleList:
    """Return an architecture's dense layers; each layer's input width is the output width of the previous one."""
    widths = [a.hidden_size, *(d.out_features for d in a.dense)]
    return nn.ModuleList(Dense(width, d.out_features, d.bias, d.activation) for width, d in zip(widths, a.dense, strict=False))


def sentence_embedding(
    hidden: Tensor, mask: Tensor | None, pooling: str, dense: Iterable[nn.Module], normalized: bool
) -> dict[str, Tensor]:
    """Return the embeddings (B, O) and the steps to them by activation name; the last one is `sentence_embedding`.

    Args:
        hidden: the last hidden state, (B, S, H).
        mask: (B, S), 1 for tokens and 0 for padding; None if there is no padding.
        pooling: `cls`, `mean`, `mean-sqrt-length`, `weighted-mean`, `max` or `last`.
        dense: `Dense` layers after the pooling.
        normalized: whether each embedding is divided by its length.
    """
    if mask is None:
        mask = hidden.new_ones(hidden.shape[:2])
    made = [("pooled", pool(hidden, mask.to(hidden.dtype)[:, :, None], pooling))]
    for number, layer in enumerate(dense):
        assert isinstance(layer, Dense)
        made += [(f"dense.{number}.{name}", value) for name, value in layer.steps(made[-1][1])]
    if normalized:
        made.append(("normalized", normalize(made[-1][1], p=2, dim=1)))
    *inner, (_, last) = made
    return {**{f"sentence_embedding.{name}": value for name, value in inner}, "sentence_embedding": last}


def pool(hidden: Tensor, mask: Tensor, pooling: str) -> Tensor:
    """Return the pooled hidden states: (B, S, H) and a mask (B, S, 1) -> (B, H)."""
    if pooling == "cls":
        return hidden[:, 0]
    if pooling == "max":
        return hidden.masked_fill(mask == 0, -torch.inf).amax(1)
    if pooling == "last":
        position = torch.arange(mask.shape[1], device=mask.device)[None, :, None]
        last = (position * (mask != 0)).argmax(1, keepdim=True)  # (B, 1, 1)
        return hidden.take_along_dim(last, 1)[:, 0]
    if pooling == "weighted-mean":
        mask = mask * torch.arange(1, mask.shape[1] + 1, device=mask.device, dtype=mask.dtype)[None, :, None]
    total, count = (hidden * mask).sum(1), mask.sum(1).clamp(min=1e-9)
    return total / (count.sqrt() if pooling == "mean-sqrt-length" else count)
