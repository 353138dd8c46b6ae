"""Mistakes in a layer's linear products and in their parameters."""

from collections.abc import Callable

import torch
from torch import Tensor

from conformance.benchmarks.detection.bert import Bert, SelfAttention
from conformance.benchmarks.detection.planted.plant import Plant, after, in_layer, in_place, many_heads, masked_lm, parameter

QUERY, KEY, VALUE = ("query", "key", "value")


def _projection(own: SelfAttention, name: str) -> tuple[Tensor, Tensor]:
    linear = {QUERY: own.query, KEY: own.key, VALUE: own.value}[name]
    return linear.weight, linear.bias


def _set_projection(own: SelfAttention, name: str, weight: Tensor, bias: Tensor) -> None:
    linear = {QUERY: own.query, KEY: own.key, VALUE: own.value}[name]
    linear.weight, linear.bias = parameter(weight), parameter(bias)


def _exchanged(name: str, taken_from: dict[str, str]) -> Plant:
    """Each projection has the parameters of another."""

    def install(model: Bert, layer: int) -> None:
        own = model.layer(layer).attention.self
        found = {to: _projection(own, origin) for to, origin in taken_from.items()}
        for to, (weight, bias) in found.items():
            _set_projection(own, to, weight, bias)

    return in_layer(name, install, *(f"attention.self.{to}" for to in taken_from))


def _interleaved(model: Bert, layer: int) -> None:
    """Fused as all of query, then key, then value; read as query, key and value of a head, then of the next."""
    own, heads = model.layer(layer).attention.self, model.architecture.num_attention_heads
    weights, biases = zip(*(_projection(own, name) for name in (QUERY, KEY, VALUE)), strict=True)
    weight, bias = torch.cat(weights), torch.cat(biases)
    by_turns = weight.view(heads, 3, -1, weight.shape[-1]).transpose(0, 1).flatten(1, 2)  # (3, H, H)
    offsets = bias.view(heads, 3, -1).transpose(0, 1).flatten(1, 2)  # (3, H)
    for index, name in enumerate((QUERY, KEY, VALUE)):
        _set_projection(own, name, by_turns[index], offsets[index])


def _transposed(model: Bert, layer: int) -> None:
    """x W + b."""
    dense = model.layer(layer).attention.output.dense
    dense.weight = parameter(dense.weight.T)


def _bias_missing(model: Bert, layer: int) -> None:
    """No bias: one of zeros."""
    dense = model.layer(layer).intermediate.dense
    dense.bias = parameter(torch.zeros_like(dense.bias))


def _bias_negated(model: Bert, layer: int) -> None:
    """x Wᵀ − b."""
    dense = model.layer(layer).intermediate.dense
    dense.bias = parameter(-dense.bias)


def _bias_twice(model: Bert) -> None:
    """Once in the decoder, and once more on what it makes."""
    assert model.cls.predictions
    decoder = model.cls.predictions.decoder
    after(decoder, lambda logits: logits + decoder.bias)


def _reversed(model: Bert, layer: int) -> None:
    """Output features in reverse order, with their biases."""
    dense = model.layer(layer).output.dense
    dense.weight, dense.bias = parameter(dense.weight.flip(0)), parameter(dense.bias.flip(0))


def _half_dropped(model: Bert, layer: int) -> None:
    """The second half of the intermediate features is never computed."""

    def halved(x: Tensor) -> Tensor:
        kept = x.shape[-1] // 2
        return torch.cat([x[..., :kept], torch.zeros_like(x[..., kept:])], -1)

    after(model.layer(layer).intermediate.dense, halved)


def _reshaped(model: Bert, layer: int) -> None:
    """A kernel of (in, out) reshaped to (out, in)."""
    dense = model.layer(layer).intermediate.dense
    dense.weight = parameter(dense.weight.T.reshape(dense.weight.shape))


_LAYERED: tuple[tuple[str, Callable[[Bert, int], None], str], ...] = (
    ("weight-transposed", _transposed, "attention.output.dense"),
    ("bias-missing", _bias_missing, "intermediate.dense"),
    ("bias-negated", _bias_negated, "intermediate.dense"),
    ("weight-reversed", _reversed, "output.dense"),
    ("weight-reshaped", _reshaped, "intermediate.dense"),
    ("features-dropped", _half_dropped, "intermediate.dense"),
)

PLANTS = (
    _exchanged("query-key-swapped", {QUERY: KEY, KEY: QUERY}),
    _exchanged("query-value-swapped", {QUERY: VALUE, VALUE: QUERY}),
    _exchanged("key-value-swapped", {KEY: VALUE, VALUE: KEY}),
    _exchanged("qkv-rotated", {QUERY: KEY, KEY: VALUE, VALUE: QUERY}),
    in_layer("qkv-interleaved", _interleaved, *(f"attention.self.{n}" for n in (QUERY, KEY, VALUE)), suits=many_heads),
    *(in_layer(name, install, step) for name, install, step in _LAYERED),
    in_place("bias-twice", _bias_twice, "cls.predictions.decoder", suits=masked_lm),
)
