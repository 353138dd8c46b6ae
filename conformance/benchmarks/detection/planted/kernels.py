"""Mistakes in the call of a fused kernel that computes the context, beside scores and probabilities that are right."""

import math
from collections.abc import Callable
from functools import partial
from typing import Unpack

import torch
from torch import Tensor
from torch.nn import functional as F

from conformance.benchmarks.detection.bert import Bert
from conformance.benchmarks.detection.planted.plant import Options, Plant, in_layer, many_heads, override
from conformance.benchmarks.detection.steps import hidden_keys
from conformance.model.architecture import Architecture

# A function from the products q kᵀ, (B, h, S, S), whether each key is attended to, (B, 1, 1, S), and √d to the probabilities.
Softmax = Callable[[Tensor, Tensor, float], Tensor]


# In float64, the kernel's own rounding would be taken for an effect where a tile is full.
SHORT = ("float32", "bfloat16", "float16")


def _of_one_product(a: Architecture) -> bool:
    return not (a.is_decoder or a.has_relative_positions)


def _even_heads(a: Architecture) -> bool:
    return _of_one_product(a) and a.num_attention_heads % 2 == 0


def _even_sizes(a: Architecture) -> bool:
    return _of_one_product(a) and a.head_size % 2 == 0


def _kernel(name: str, description: str, softmax: Softmax, heads: float = 1.0, **options: Unpack[Options]) -> Plant:
    """Return a mistake of a kernel with `heads` times as many heads; what is exposed besides its result remains right."""

    def install(model: Bert, layer: int) -> None:
        own = model.layer(layer).attention.self
        count = int(own.scores.heads * heads)

        def split(x: Tensor) -> Tensor:
            return x.view(*x.shape[:-1], count, -1).transpose(1, 2)

        def forward(hidden: Tensor, mask: Tensor) -> Tensor:
            query, key, value = own.query(hidden), own.key(hidden), own.value(hidden)
            own.dropout(own.probs(own.scores(query, key), mask))
            probs = softmax(split(query) @ split(key).mT, mask[:, None, None, :] == 1, math.sqrt(query.shape[-1] // count))
            found.append((probs @ split(value)).transpose(1, 2).flatten(2))
            context: Tensor = own.context(None, None)
            return context

        found = list[Tensor]()
        override(own.context, "forward", lambda _, __: found.pop())
        override(own, "forward", forward)

    return in_layer(name, description, install, "attention.self.context", **(Options(suits=_of_one_product) | options))


def _softmax(scores: Tensor, keep: Tensor, root: float) -> Tensor:
    return torch.softmax(hidden_keys(scores / root, keep), -1)


def _of_width(scores: Tensor, keep: Tensor, root: float) -> Tensor:
    """Divide by √H: the heads are a factor h = H / d of it."""
    return _softmax(scores, keep, root * math.sqrt(scores.shape[1]))


def _inverted(scores: Tensor, keep: Tensor, root: float) -> Tensor:
    """Attend to padded keys, or to all keys in a row without padding."""
    return _softmax(scores, ~keep | keep.all(-1, keepdim=True), root)


def _causal(scores: Tensor, keep: Tensor, root: float) -> Tensor:
    return _softmax(scores, keep & torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), root)


def _in_tile(size: int, scores: Tensor, keep: Tensor, root: float) -> Tensor:
    """Fill the keys up to a multiple of `size` with scores of 0."""
    filled = F.pad(hidden_keys(scores / root, keep), (0, -scores.shape[-1] % size))
    return torch.softmax(filled, -1)[..., : scores.shape[-1]]


PLANTS = (
    _kernel("kernel-scale-missing", "a kernel called with scale=1", lambda s, keep, _: _softmax(s, keep, 1.0)),
    _kernel("kernel-scale-of-width", "a kernel called with scale=1/√H", _of_width, suits=many_heads),
    _kernel("kernel-mask-ignored", "a kernel called without a mask",
            lambda s, keep, root: _softmax(s, torch.ones_like(keep), root)),
    _kernel("kernel-mask-inverted", "a kernel to which True means padding", _inverted),
    _kernel("kernel-mask-added-raw", "a kernel that adds the ones and zeros of the mask",
            lambda s, keep, root: torch.softmax(s / root + keep.to(s.dtype), -1)),
    *(_kernel(f"kernel-tile-{size}", f"a kernel that attends to the zeros that fill up a tile of {size} keys",
              partial(_in_tile, size), dtypes=SHORT) for size in (32, 64, 128)),
    _kernel("kernel-causal", "a kernel called with is_causal=True and the mask", _causal),
    _kernel("heads-halved", "a kernel with half as many heads", _softmax, 0.5, suits=_even_heads),
    _kernel("heads-doubled", "a kernel with twice as many heads", _softmax, 2.0, suits=_even_sizes),
)  # fmt: skip
