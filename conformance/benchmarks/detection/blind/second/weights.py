"""Weights that are loaded wrongly, are others than the checkpoint's, or have lost digits."""

import torch
from torch import Tensor
from torch.nn import functional as F

from conformance.benchmarks.detection.blind.port import Mistake, Operation, Port, Weights, prefix

_QKV = ("attention.self.query", "attention.self.key", "attention.self.value")
_DENSE = (*_QKV, "attention.output.dense", "intermediate.dense", "output.dense")
_LAYER = (*_DENSE, "attention.output.LayerNorm", "output.LayerNorm")
_STEPS = dict(zip(("query", "key", "value", "attention_dense", "inner", "outer"), _DENSE, strict=True))


def _no_bias(weights: Weights, layers: tuple[int, ...]) -> None:
    for name in (f"{prefix(layer)}.{part}.bias" for layer in layers for part in _QKV):
        weights[name] = torch.zeros_like(weights[name])


def _not_transposed(weights: Weights, layers: tuple[int, ...]) -> None:
    for name in (f"{prefix(layer)}.attention.output.dense.weight" for layer in layers):
        weights[name] = weights[name].T.contiguous()


def _by_head(weights: Weights, layers: tuple[int, ...]) -> None:
    for layer in layers:
        for kind in ("weight", "bias"):
            names = [f"{prefix(layer)}.{part}.{kind}" for part in _QKV]
            rows = torch.stack([weights[name] for name in names])
            rows = rows.view(3, -1, min(64, rows.shape[1] // 4), *rows.shape[2:])
            weights.update(zip(names, rows.transpose(0, 1).reshape(3, *weights[names[0]].shape), strict=True))


def _of_first(weights: Weights, layers: tuple[int, ...]) -> None:
    first = {name: value for name, value in weights.items() if name.startswith(prefix(0) + ".")}
    for layer in layers:
        weights.update({name.replace(prefix(0), prefix(layer), 1): value for name, value in first.items()})


def _exchange_ends(weights: Weights, layers: tuple[int, ...]) -> None:
    first, last = prefix(layers[0]) + ".", prefix(layers[-1]) + "."
    for name in [name for name in weights if name.startswith(first)] if first != last else []:
        other = name.replace(first, last, 1)
        weights[name], weights[other] = weights[other], weights[name]


def _four_bits(weights: Weights, layers: tuple[int, ...]) -> None:
    for name in (f"{prefix(layer)}.{part}.weight" for layer in layers for part in _DENSE):
        blocks = weights[name].float().view(len(weights[name]), -1, 32)
        largest = blocks.gather(-1, blocks.abs().argmax(-1, keepdim=True))
        scale = (largest / -8).half().float()
        digits = (blocks / scale + 8.5).floor().clamp(0, 15) - 8
        weights[name] = (digits * scale).flatten(-2).to(weights[name].dtype)


def _adapter(weights: Weights, layers: tuple[int, ...]) -> None:
    draw = torch.Generator().manual_seed(17)
    for name in (f"{prefix(layer)}.{part}.weight" for layer in layers for part in _QKV[::2]):
        rows, columns = weights[name].shape
        change = torch.randn(rows, 4, generator=draw) @ torch.randn(4, columns, generator=draw)
        weights[name] = weights[name] + (0.05 * weights[name].float().std() * change).to(weights[name].dtype)


def _fresh_pooler(weights: Weights, layers: tuple[int, ...]) -> None:
    weight, bias = weights["bert.pooler.dense.weight"], weights["bert.pooler.dense.bias"]
    fresh = 0.02 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(3))
    weights["bert.pooler.dense.weight"], weights["bert.pooler.dense.bias"] = fresh.to(weight.dtype), torch.zeros_like(bias)


def _dynamic(name: str) -> Operation:
    """Integer weights with one scale, and inputs of unsigned integers over their range in this call."""

    def product(port: Port, layer: int, x: Tensor) -> Tensor:
        weight, wide = port.weights[f"{prefix(layer)}.{name}.weight"].float(), x.float()
        step = weight.abs().max() / 127
        low, high = wide.min().clamp(max=0), wide.max().clamp(min=0)
        unit = (high - low) / 255
        zero = (-low / unit).round()
        inputs = (((wide / unit).round() + zero).clamp(0, 255) - zero) * unit
        bias = port.weights[f"{prefix(layer)}.{name}.bias"].float()
        return F.linear(inputs, (weight / step).round() * step, bias).to(x.dtype)

    return product


def _ten_bits(x: Tensor) -> Tensor:
    return ((x.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32) if x.dtype == torch.float32 else x


def _tensor_float(name: str) -> Operation:
    def product(port: Port, layer: int, x: Tensor) -> Tensor:
        weight, bias = (port.weights[f"{prefix(layer)}.{name}.{kind}"] for kind in ("weight", "bias"))
        return F.linear(_ten_bits(x), _ten_bits(weight), bias)

    return product


MISTAKES = (
    Mistake(
        "projections without bias", "Query, key and value have no bias.", "attention made for Llama: bias=False", "all", _QKV,
        "the bias is missing", load=_no_bias,
    ),
    Mistake(
        "output kernel not transposed", "The attention's output kernel is transposed.",
        "TensorFlow's square kernels, which fit either way", "all", ("attention.output.dense",), "the weight is transposed",
        load=_not_transposed,
    ),
    Mistake(
        "fused rows by head", "Rows that are interleaved by head are read as query, key, value.", "Megatron's checkpoints", "all",
        _QKV, "the rows of query, key and value are mixed, or the weights are others", load=_by_head,
    ),
    Mistake(
        "first layer everywhere", "All layers have the weights of the first.", "a closure over the loop variable; ALBERT's sharing",
        "later", _LAYER, "these are another layer's weights", load=_of_first,
    ),
    Mistake(
        "first and last layer exchanged", "The first layer has the last one's weights and the last the first's.",
        "stacks that are loaded from the end", "all", _LAYER, "layers are exchanged or reversed, or have another layer's weights",
        load=_exchange_ends,
    ),
    Mistake(
        "four-bit blocks", "Weights are four-bit integers, in blocks of 32 with a scale each.", "ggml's Q4_0", "all", _DENSE,
        "the weights are quantised or have lost precision", load=_four_bits,
    ),
    Mistake(
        "adapter left merged", "A low-rank change is in query's and value's weights.",
        "an adapter merged, then saved over the base",
        "all", _QKV[::2], "the weights are others than the checkpoint's", load=_adapter,
    ),
    Mistake(
        "pooler is fresh", "The pooler has initial weights.", "checkpoints of masked language models, which have none", "first",
        ("pooler.dense",), "the pooler's parameters are others, or initial", load=_fresh_pooler,
    ),
    Mistake(
        "dynamic int8", "Dense layers multiply integers of eight bits, the inputs' scale taken from each call.",
        "torch.ao.quantization.quantize_dynamic, ONNX Runtime's quantize_dynamic", "all", _DENSE,
        "the product is quantised to eight bits", {step: _dynamic(name) for step, name in _STEPS.items()},
    ),
    Mistake(
        "products of ten bits", "Operands of dense layers are rounded to TensorFloat-32.", "GPUs with allow_tf32", "all", _DENSE,
        "operands are rounded to TF32 (ten bits)", {step: _tensor_float(name) for step, name in _STEPS.items()},
    ),
)  # fmt: skip
