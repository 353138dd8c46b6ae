"""Mistakes in a layer's linear products and in their parameters."""

from collections.abc import Callable
from itertools import permutations

import torch
from torch import Tensor

from conformance.benchmarks.detection.bert import Bert, SelfAttention
from conformance.benchmarks.detection.planted.plant import (
    Plant,
    after,
    in_layer,
    in_place,
    kept,
    many_heads,
    masked_lm,
    override,
    parameter,
)

QUERY, KEY, VALUE = ("query", "key", "value")
THREE = tuple(f"attention.self.{name}" for name in (QUERY, KEY, VALUE))


def _projection(own: SelfAttention, name: str) -> tuple[Tensor, Tensor]:
    linear = {QUERY: own.query, KEY: own.key, VALUE: own.value}[name]
    return linear.weight, linear.bias


def _set_projection(own: SelfAttention, name: str, weight: Tensor, bias: Tensor) -> None:
    linear = {QUERY: own.query, KEY: own.key, VALUE: own.value}[name]
    linear.weight, linear.bias = parameter(weight), parameter(bias)


def _exchanged(name: str, description: str, taken_from: dict[str, str]) -> Plant:
    """Return a mistake in which projections have the parameters of others."""

    def install(model: Bert, layer: int) -> None:
        own = model.layer(layer).attention.self
        found = {to: _projection(own, origin) for to, origin in taken_from.items()}
        for to, (weight, bias) in found.items():
            _set_projection(own, to, weight, bias)

    return in_layer(name, description, install, *(f"attention.self.{to}" for to in taken_from))


def _interleaved(model: Bert, layer: int) -> None:
    """Read parameters fused as query, key, value as if query, key and value of each head followed each other."""
    own, heads = model.layer(layer).attention.self, model.architecture.num_attention_heads
    weights, biases = zip(*(_projection(own, name) for name in (QUERY, KEY, VALUE)), strict=True)
    weight, bias = torch.cat(weights), torch.cat(biases)
    by_turns = weight.view(heads, 3, -1, weight.shape[-1]).transpose(0, 1).flatten(1, 2)  # (3, H, H)
    offsets = bias.view(heads, 3, -1).transpose(0, 1).flatten(1, 2)  # (3, H)
    for index, name in enumerate((QUERY, KEY, VALUE)):
        _set_projection(own, name, by_turns[index], offsets[index])


def _read_by_part(model: Bert, layer: int) -> None:
    """Read parameters fused with query, key and value of each head together as if all of query came first, then key, then value."""
    own, heads = model.layer(layer).attention.self, model.architecture.num_attention_heads
    weights, biases = zip(*(_projection(own, name) for name in (QUERY, KEY, VALUE)), strict=True)
    weight = torch.stack([w.view(heads, -1, w.shape[-1]) for w in weights], 1).flatten(0, 2)
    bias = torch.stack([b.view(heads, -1) for b in biases], 1).flatten()
    for name, w, b in zip((QUERY, KEY, VALUE), weight.chunk(3), bias.chunk(3), strict=True):
        _set_projection(own, name, w, b)


def _rows_in_turn(model: Bert, layer: int) -> None:
    """Read parameters fused with row i of query, key and value in turn as if all of query came first, then key, then value."""
    own = model.layer(layer).attention.self
    weights, biases = zip(*(_projection(own, name) for name in (QUERY, KEY, VALUE)), strict=True)
    weight, bias = torch.stack(weights, 1).flatten(0, 1), torch.stack(biases, 1).flatten()
    for name, w, b in zip((QUERY, KEY, VALUE), weight.chunk(3), bias.chunk(3), strict=True):
        _set_projection(own, name, w, b)


def _product_scaled(model: Bert) -> None:
    """Compute x (E/√H)ᵀ + b in the decoder."""
    assert model.cls.predictions
    decoder = model.cls.predictions.decoder
    override(decoder, "product", lambda x: x * x.shape[-1] ** -0.5 @ decoder.weight.T + decoder.bias)


def _result_scaled(model: Bert, layer: int) -> None:
    """Divide the query by √d."""
    root = model.architecture.head_size**0.5
    after(model.layer(layer).attention.self.query, lambda x: x / root)


def _reads_input(model: Bert, layer: int) -> None:
    """Let the feed-forward network read the layer's input."""
    changed = model.layer(layer)

    def forward(hidden: Tensor, mask: Tensor) -> Tensor:
        middle = changed.attention(hidden, mask)
        out: Tensor = changed.output(changed.intermediate(hidden), middle)
        return out

    override(changed, "forward", forward)


def _without_function(model: Bert, layer: int) -> None:
    """Compute the activation function but do not use its result."""
    own = model.layer(layer).intermediate

    def forward(x: Tensor) -> Tensor:
        product: Tensor = own.dense(x)
        own.intermediate_act_fn(product)
        return product

    override(own, "forward", forward)


def _values_alone(model: Bert, layer: int) -> None:
    """Return the values as the result of attention; everything else is computed but not used."""
    own = model.layer(layer).attention.self
    right, values = own.forward, kept(own.value)

    def forward(hidden: Tensor, mask: Tensor) -> Tensor:
        right(hidden, mask)
        return values.pop()

    override(own, "forward", forward)


def _bias_of_output(model: Bert, layer: int) -> None:
    """Give the attention output projection the bias of the feed-forward output."""
    own = model.layer(layer)
    own.attention.output.dense.bias = parameter(own.output.dense.bias)


def _reordered(model: Bert, layer: int) -> None:
    """Put the first half of the output features after the second."""
    dense = model.layer(layer).output.dense
    half = len(dense.bias) // 2
    dense.weight, dense.bias = parameter(dense.weight.roll(half, 0)), parameter(dense.bias.roll(half, 0))


def _last_chunk(x: Tensor) -> Tensor:
    """Process chunks of five tokens, and leave the remaining tokens zero."""
    whole = x.shape[1] // 5 * 5
    return torch.cat([x[:, :whole], torch.zeros_like(x[:, whole:])], 1)


def _transposed(model: Bert, layer: int) -> None:
    """Compute x W + b."""
    dense = model.layer(layer).attention.output.dense
    dense.weight = parameter(dense.weight.T)


def _bias_missing(model: Bert, layer: int) -> None:
    """Set the bias to zero."""
    dense = model.layer(layer).intermediate.dense
    dense.bias = parameter(torch.zeros_like(dense.bias))


def _bias_negated(model: Bert, layer: int) -> None:
    """Compute x Wᵀ − b."""
    dense = model.layer(layer).intermediate.dense
    dense.bias = parameter(-dense.bias)


def _bias_twice(model: Bert) -> None:
    """Add the bias in the decoder and once more to its result."""
    assert model.cls.predictions
    decoder = model.cls.predictions.decoder
    after(decoder, lambda logits: logits + decoder.bias)


def _reversed(model: Bert, layer: int) -> None:
    """Reverse the order of the output features, with their biases."""
    dense = model.layer(layer).output.dense
    dense.weight, dense.bias = parameter(dense.weight.flip(0)), parameter(dense.bias.flip(0))


def _half_dropped(model: Bert, layer: int) -> None:
    """Set the second half of the intermediate features to zero."""

    def halved(x: Tensor) -> Tensor:
        kept = x.shape[-1] // 2
        return torch.cat([x[..., :kept], torch.zeros_like(x[..., kept:])], -1)

    after(model.layer(layer).intermediate.dense, halved)


def _reshaped(model: Bert, layer: int) -> None:
    """Reshape a kernel of (in, out) to (out, in) instead of transposing it."""
    dense = model.layer(layer).intermediate.dense
    dense.weight = parameter(dense.weight.T.reshape(dense.weight.shape))


def _scales_of_inputs(model: Bert, layer: int) -> None:
    """Round to 255 levels of each output feature, and multiply by the scale of the input feature."""
    dense = model.layer(layer).attention.output.dense
    scale = dense.weight.abs().amax(-1) / 127
    dense.weight = parameter(torch.round(dense.weight / scale[:, None]) * scale)


def _saturated(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Multiply bytes, and limit the sum of each two products to 16 bits."""
    low, high = x.min().clamp(max=0), x.max().clamp(min=0)
    level, of_weight = (high - low) / 255, weight.abs().amax(-1) / 127
    zero = torch.round(-low / level)
    bytes_, integers = torch.clamp(torch.round(x / level) + zero, 0, 255), torch.round(weight / of_weight[:, None])
    products = bytes_[..., None, :] * integers
    pairs = (products[..., ::2] + products[..., 1::2]).clamp(-32768, 32767)
    made: Tensor = (pairs.sum(-1) - zero * integers.sum(-1)) * level * of_weight + bias
    return made


def _saturates(model: Bert, layer: int) -> None:
    """Compute the product as an integer kernel without 32-bit sums of products of bytes."""
    dense = model.layer(layer).intermediate.dense
    override(dense, "product", lambda x: _saturated(x, dense.weight, dense.bias))


def _parameters_of_value(model: Bert, layer: int) -> None:
    """Give the attention output projection the weight and bias of the values."""
    own = model.layer(layer).attention
    own.output.dense.weight, own.output.dense.bias = (parameter(p) for p in _projection(own.self, VALUE))


def _rotary(*order: int) -> Callable[[Bert, int], None]:
    """Return an install function that reorders the rows of query and key of each head from `order` to its transpose."""

    def install(model: Bert, layer: int) -> None:
        own, width = model.layer(layer).attention.self, model.architecture.head_size
        for name in (QUERY, KEY):
            weight, bias = _projection(own, name)
            split = weight.view(-1, *(n if n > 0 else width // 2 for n in order), weight.shape[1])
            _set_projection(own, name, split.transpose(1, 2).reshape(weight.shape), bias)

    return install


PLANTS = (
    _exchanged("query-key-swapped", "query has key's parameters and key query's", {QUERY: KEY, KEY: QUERY}),
    _exchanged("query-value-swapped", "query has value's parameters and value query's", {QUERY: VALUE, VALUE: QUERY}),
    _exchanged("key-value-swapped", "key has value's parameters and value key's", {KEY: VALUE, VALUE: KEY}),
    _exchanged("qkv-rotated", "query has key's parameters, key value's, value query's", {QUERY: KEY, KEY: VALUE, VALUE: QUERY}),
    *(_exchanged(f"{a}-from-{b}", f"{a} has {b}'s parameters", {a: b}) for a, b in permutations((QUERY, KEY, VALUE), 2)),
    in_layer("qkv-interleaved-file",
             "a fused matrix of query, key and value of a head, then of the next, is read as all of each in turn",
             _read_by_part, *THREE, suits=many_heads),
    in_layer("qkv-interleaved-rows", "rows of query, key and value in turn are read in thirds",
             _rows_in_turn, *THREE),
    in_layer("qkv-interleaved", "rows of the fused matrix are read head by head as q, k, v in turns",
             _interleaved, *THREE, suits=many_heads),
    in_layer("precision-int8-saturated", "the intermediate product is one of bytes whose sums of two are limited to 16 bits",
             _saturates, "intermediate.dense", dtypes=("float32",)),
    in_layer("precision-int8-scales-of-inputs",
             "the attention's output weights of 255 levels an output feature, times the scale of the input feature",
             _scales_of_inputs, "attention.output.dense", dtypes=("float32",)),
    in_layer("rotary-rows", "rows (2, d/2) of query and key of each head are read as (d/2, 2), the biases are not",
             _rotary(2, -1), *THREE[:2]),
    in_layer("rotary-rows-back", "rows (d/2, 2) of query and key of each head are read as (2, d/2), the biases are not",
             _rotary(-1, 2), *THREE[:2]),
    in_layer("weight-transposed", "x W + b for x Wᵀ + b in a square attention output projection",
             _transposed, "attention.output.dense"),
    in_layer("projection-missing", "the context itself, without the attention's output dense",
             lambda model, layer: override(model.layer(layer).attention.output.dense, "forward", lambda x: x),
             "attention.output.dense"),
    in_layer("bias-missing", "no bias in the intermediate dense", _bias_missing, "intermediate.dense"),
    in_layer("bias-negated", "x Wᵀ − b", _bias_negated, "intermediate.dense", reported_as="bias-other"),
    in_layer("weight-reversed", "output features in reverse order", _reversed, "output.dense"),
    in_layer("weight-reshaped", "the transposed of the intermediate dense's weight, reshaped", _reshaped, "intermediate.dense"),
    in_layer("parameters-of-module", "the attention output projection has the parameters of the values",
             _parameters_of_value, "attention.output.dense"),
    in_layer("result-scaled", "the query is divided by √d, and the scores too", _result_scaled, "attention.self.query"),
    in_layer("feed-forward-parallel", "the intermediate dense reads the layer's input", _reads_input, "intermediate.dense"),
    in_layer("activation-bypassed", "the output dense reads the intermediate dense", _without_function, "output.dense"),
    in_layer("attention-bypassed", "the attention's output dense reads the values", _values_alone, "attention.output.dense"),
    in_layer("bias-other", "the attention's output dense has the feed-forward network's bias",
             _bias_of_output, "attention.output.dense"),
    in_layer("features-reordered", "the halves of the output dense's features are exchanged", _reordered, "output.dense"),
    in_layer("features-dropped", "the second half of the intermediate features is zero", _half_dropped, "intermediate.dense"),
    in_place("product-scaled", "the masked-LM decoder's input is divided by √H",
             _product_scaled, "cls.predictions.decoder", suits=masked_lm),
    in_layer("tokens-zero", "the output dense runs in chunks of five tokens, what is left over stays zero",
             lambda model, layer: after(model.layer(layer).output.dense, _last_chunk), "output.dense"),
    in_place("bias-twice", "the bias of the masked-LM decoder is added twice",
             _bias_twice, "cls.predictions.decoder", suits=masked_lm),
)  # fmt: skip
