"""Mistakes in a layer's norms and residuals; in the norm of attention, unless the definition names the other."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from conformance.benchmarks.detection.bert import Bert, Layer
from conformance.benchmarks.detection.planted.plant import Plant, Suits, always, in_layer, many_heads, override, parameter, widely
from conformance.benchmarks.detection.steps import LayerNorm
from conformance.model.architecture import Architecture

FIRST, SECOND = "attention.output.LayerNorm", "output.LayerNorm"
EPSILON = 1e-5


def _variance(x: Tensor) -> Tensor:
    return x.var(-1, keepdim=True, unbiased=False)


def _centred(x: Tensor) -> Tensor:
    return x - x.mean(-1, keepdim=True)


def _plain(norm: LayerNorm, x: Tensor) -> Tensor:
    """Return the normalized values without γ and β."""
    return _centred(x) / torch.sqrt(_variance(x) + norm.eps)


def _per_head(norm: LayerNorm, x: Tensor, heads: int) -> Tensor:
    """Compute mean and variance over each head's features."""
    return _plain(norm, x.view(*x.shape[:-1], heads, -1)).flatten(-2) * norm.weight + norm.bias


def _over_positions(norm: LayerNorm, x: Tensor) -> Tensor:
    """Compute mean and variance over the positions, including padding."""
    centred = x - x.mean(1, keepdim=True)
    return centred / torch.sqrt(x.var(1, keepdim=True, unbiased=False) + norm.eps) * norm.weight + norm.bias


def _over_sequence(norm: LayerNorm, x: Tensor) -> Tensor:
    """Compute mean and variance over positions and features together."""
    return F.layer_norm(x, x.shape[1:], eps=norm.eps) * norm.weight + norm.bias


def _twice(norm: LayerNorm, x: Tensor) -> Tensor:
    """Compute LayerNorm(LayerNorm(x)), with γ and β each time."""
    once = _plain(norm, x) * norm.weight + norm.bias
    return _plain(norm, once) * norm.weight + norm.bias


# Incorrect norms of the residual sum.
_NORMALISED: dict[str, Callable[[LayerNorm, Tensor], Tensor]] = {
    "epsilon-outside-root": lambda n, x: _centred(x) / (_variance(x).sqrt() + EPSILON) * n.weight + n.bias,
    "norm-variance": lambda n, x: _centred(x) / torch.sqrt(x.var(-1, keepdim=True) + n.eps) * n.weight + n.bias,
    "norm-missing": lambda n, x: x,
    "norm-without-mean": lambda n, x: x / torch.sqrt((x * x).mean(-1, keepdim=True) + n.eps) * n.weight + n.bias,
    "norm-affine-missing": _plain,
    "norm-bias-missing": lambda n, x: _plain(n, x) * n.weight,
    "norm-weight-missing": lambda n, x: _plain(n, x) + n.bias,
    "norm-affine-exchanged": lambda n, x: _plain(n, x) * n.bias + n.weight,
    "norm-statistics-other": lambda n, x: _centred(x) / x.abs().mean(-1, keepdim=True) * n.weight + n.bias,
    "norm-weight-plus-one": lambda n, x: _plain(n, x) * (1.0 + n.weight) + n.bias,
    "norm-second-moment": lambda n, x: _centred(x) / torch.sqrt((x * x).mean(-1, keepdim=True) + n.eps) * n.weight + n.bias,
    "norm-by-halves": lambda n, x: _per_head(n, x, 2),
    "norm-bias-first": lambda n, x: (_plain(n, x) + n.bias) * n.weight,
    "norm-over-positions": _over_positions,
    "norm-twice": _twice,
    "norm-over-sequence": _over_sequence,
    "norm-unbiased-deviation": lambda n, x: _centred(x) / (x.std(-1, keepdim=True) + 100.0 * EPSILON) * n.weight + n.bias,
    "norm-by-variance": lambda n, x: _centred(x) / (_variance(x) + n.eps) * n.weight + n.bias,
}

# Incorrect inputs of the norm, from a sublayer's result and the skip connection.
_ADDED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "residual-missing": lambda x, skip: x,
    "residual-doubled": lambda x, skip: x + 2.0 * skip,
    "residual-subtracted": lambda x, skip: x - skip,
    "residual-scaled": lambda x, skip: x + skip * 0.5**0.5,
    "sublayer-missing": lambda x, skip: skip,
    "sublayer-scaled": lambda x, skip: 0.9 * x + skip,
    "sublayer-doubled": lambda x, skip: 2.0 * x + skip,
}


def _first(model: Bert, layer: int) -> LayerNorm:
    return model.layer(layer).attention.output.LayerNorm


def _normalised(name: str, wrong: Callable[[LayerNorm, Tensor], Tensor]) -> Plant:
    def install(model: Bert, layer: int) -> None:
        norm = _first(model, layer)
        override(norm, "normalise", widely(lambda x: wrong(norm, x)))

    return in_layer(name, install, FIRST)


def _added(name: str, wrong: Callable[[Tensor, Tensor], Tensor]) -> Plant:
    return in_layer(name, lambda model, layer: override(_first(model, layer), "add", wrong), FIRST)


def _heads_apart(model: Bert, layer: int) -> None:
    """Compute mean and variance over each head's features."""
    norm = _first(model, layer)
    override(norm, "normalise", widely(lambda x: _per_head(norm, x, model.architecture.num_attention_heads)))


def _epsilon(model: Bert, layer: int) -> None:
    """Use the epsilon of torch's own LayerNorm."""
    _first(model, layer).eps = EPSILON


def _shared(model: Bert, layer: int) -> None:
    """Give the second norm the γ and β of the first."""
    norm = model.layer(layer).output.LayerNorm
    norm.weight, norm.bias = _first(model, layer).weight, _first(model, layer).bias


def _residual_after_norm(model: Bert, layer: int) -> None:
    """Compute LayerNorm(x) + skip."""
    norm = _first(model, layer)
    override(norm, "forward", lambda x, skip: norm.normalise(x) + skip)


def _residual_from_layer_input(model: Bert, layer: int) -> None:
    """Add the layer's input in the second residual."""
    changed: Layer = model.layer(layer)

    def forward(hidden: Tensor, mask: Tensor) -> Tensor:
        inner: Tensor = changed.intermediate(changed.attention(hidden, mask))
        out: Tensor = changed.output(inner, hidden)
        return out

    override(changed, "forward", forward)


def _layer_input_added(model: Bert, layer: int) -> None:
    """Add the layer's input in the second residual, besides the output of attention."""
    changed: Layer = model.layer(layer)

    def forward(hidden: Tensor, mask: Tensor) -> Tensor:
        attended: Tensor = changed.attention(hidden, mask)
        out: Tensor = changed.output(changed.intermediate(attended), attended + hidden)
        return out

    override(changed, "forward", forward)


def _residual_before_norm(model: Bert, layer: int) -> None:
    """Keep the sum that goes into the first norm, and add it in the second residual."""
    first, second, sums = _first(model, layer), model.layer(layer).output.LayerNorm, list[Tensor]()
    right = first.add

    def add(x: Tensor, skip: Tensor) -> Tensor:
        sums.append(right(x, skip))
        return sums[-1]

    override(first, "add", add)
    override(second, "add", lambda x, skip: x + sums.pop())


def _affine_again(model: Bert, layer: int) -> None:
    """Fold γ and β of the first norm into the product that follows it, but leave them in the norm."""
    norm, dense = _first(model, layer), model.layer(layer).intermediate.dense
    dense.bias = parameter(dense.bias + dense.weight @ norm.bias)
    dense.weight = parameter(dense.weight * norm.weight)


def _bias_again(model: Bert, layer: int) -> None:
    """Add the bias of the preceding product once more before the norm."""
    own = model.layer(layer).attention.output
    override(own.LayerNorm, "add", lambda x, skip: x + own.dense.bias + skip)


def _pre_norm(model: Bert, layer: int) -> None:
    """Let attention read its normalized input, while its residual adds the input unchanged."""
    own, norm = model.layer(layer).attention.self, _first(model, layer)
    right = own.forward
    override(own, "forward", lambda hidden, mask: right(norm.normalise(hidden), mask))


def _other_epsilon(a: Architecture) -> bool:
    return a.layer_norm_eps != EPSILON


def _two_norms(a: Architecture) -> bool:
    return not a.shared_layer_norm


_OTHERS: tuple[tuple[str, Callable[[Bert, int], None], tuple[str, ...], Suits], ...] = (
    ("epsilon", _epsilon, (FIRST,), _other_epsilon),
    ("norm-per-head", _heads_apart, (FIRST,), many_heads),
    ("norm-shared", _shared, (SECOND,), _two_norms),
    ("residual-after-norm", _residual_after_norm, (FIRST,), always),
    ("residual-from-layer-input", _residual_from_layer_input, (SECOND,), always),
    ("sublayer-bias-twice", _bias_again, (FIRST,), always),
    ("residual-before-norm", _residual_before_norm, (SECOND,), always),
    ("norm-affine-again", _affine_again, ("intermediate.dense",), always),
    ("layer-input-added", _layer_input_added, (SECOND,), always),
    ("pre-norm", _pre_norm, tuple(f"attention.self.{n}" for n in ("query", "key", "value")), always),
)

PLANTS = (
    *(_normalised(name, wrong) for name, wrong in _NORMALISED.items()),
    *(_added(name, wrong) for name, wrong in _ADDED.items()),
    *(in_layer(name, install, *steps, suits=suits) for name, install, steps, suits in _OTHERS),
)
