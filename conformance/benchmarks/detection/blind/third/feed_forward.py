"""Mistakes in the feed-forward networks: their products and their activation functions."""

import math

from torch import Tensor
from torch.nn import functional as F

from conformance.benchmarks.detection.blind.port import Mistake, Operation, Port, prefix
from conformance.benchmarks.detection.blind.third.tools import parameters

_INNER = ("intermediate.dense",)
_ACTIVATION = ("intermediate.intermediate_act_fn",)
_OUTER = ("output.dense",)


def _tanh_gelu(root: float, cubic: float) -> Operation:
    return lambda port, layer, x: 0.5 * x * (1 + (root * (x + cubic * x**3)).tanh())


def _unbiased(name: str) -> Operation:
    return lambda port, layer, x: F.linear(x, port.weights[f"{prefix(layer)}.{name}.weight"])


def _bias_late(port: Port, layer: int, x: Tensor) -> Tensor:
    return F.gelu(x) + port.weights[f"{prefix(layer)}.intermediate.dense.bias"]


def _whole_chunks(port: Port, layer: int, x: Tensor) -> Tensor:
    result = port.linear(f"{prefix(layer)}.intermediate.dense", x)
    result[:, x.shape[1] // 3 * 3 :] = 0
    return result


def _half_step(port: Port, layer: int, x: Tensor) -> Tensor:
    return 0.5 * F.linear(x, port.weights[f"{prefix(layer)}.output.dense.weight"])


def _skipping(port: Port, layer: int, x: Tensor) -> Tensor:
    return port.linear(f"{prefix(layer)}.output.dense", x.relu())


def _half_erf(port: Port, layer: int, x: Tensor) -> Tensor:
    return 0.5 * x * (1 + x.erf())


def _narrow(port: Port, layer: int, x: Tensor) -> Tensor:
    weight, bias = parameters(port, f"{prefix(layer)}.output.dense")
    used = x.shape[-1] * 7 // 8
    return F.linear(x[..., :used], weight[:, :used], bias)


MISTAKES = (
    Mistake(
        "cubic term's digits exchanged", "The tanh form of GELU has 0.04715 for 0.044715.", "a constant typed by hand", "all",
        _ACTIVATION, "says that it is the tanh form of GELU, or that with another constant",
        {"activation": _tanh_gelu(math.sqrt(2 / math.pi), 0.04715)},
    ),
    Mistake(
        "root of two over pi rounded", "The tanh form of GELU has 0.8 for √(2/π).", "constants shortened for a device", "some",
        _ACTIVATION, "says that it is the tanh form of GELU, or that with another constant",
        {"activation": _tanh_gelu(0.8, 0.044715)},
    ),
    Mistake(
        "quick GELU in later layers", "The activation is x · σ(1.702 x).", "CLIP's activation, for speed", "later", _ACTIVATION,
        "says that it is x · σ(1.702 x)", {"activation": lambda port, layer, x: x * (1.702 * x).sigmoid()},
    ),
    Mistake(
        "quick GELU with 1.7", "The activation is x · σ(1.7 x).", "1.702 shortened", "all", _ACTIVATION,
        "says that it is the sigmoid form of GELU, or that with another constant",
        {"activation": lambda port, layer, x: x * (1.7 * x).sigmoid()},
    ),
    Mistake(
        "SiLU", "The activation is x · σ(x).", "configs of LLaMA used for BERT", "all", _ACTIVATION,
        "says that it is SiLU or swish", {"activation": lambda port, layer, x: F.silu(x)},
    ),
    Mistake(
        "ReLU in the first layer", "The first layer's activation is ReLU.", "nn.TransformerEncoderLayer's default, once", "first",
        _ACTIVATION, "says that it is ReLU", {"activation": lambda port, layer, x: x.relu()},
    ),
    Mistake(
        "GELU twice", "GELU is applied to its own result.", "a product with GELU fused in, and GELU after it", "all", _ACTIVATION,
        "says that GELU is applied twice", {"activation": lambda port, layer, x: F.gelu(F.gelu(x))},
    ),
    Mistake(
        "GELU clipped at four", "The activation's result is at most 4.", "GELU10 of quantisation-aware training, tighter", "some",
        _ACTIVATION, "says that the activation is clipped", {"activation": lambda port, layer, x: F.gelu(x).clamp(max=4)},
    ),
    Mistake(
        "erf without the root of two", "GELU has erf(x) for erf(x / √2).", "a formula written from memory", "last", _ACTIVATION,
        "says that the argument of erf is not divided by √2, or is scaled", {"activation": _half_erf},
    ),
    Mistake(
        "tanh GELU, clipped", "GELU has its tanh form and is at most 4: two changes.", "accelerators' GELU with calibrated ranges",
        "first", _ACTIVATION, "says that it is the tanh form of GELU, that it is clipped, or both",
        {"activation": lambda port, layer, x: F.gelu(x, approximate="tanh").clamp(max=4)},
    ),
    Mistake(
        "inner bias after the activation", "The inner bias is added after GELU; each step is wrong.",
        "epilogues of products that were put in the wrong order", "some", (*_INNER, *_ACTIVATION),
        "says that the bias is missing in one and added in the other, or added after the activation",
        {"inner": _unbiased("intermediate.dense"), "activation": _bias_late},
    ),
    Mistake(
        "last chunk of tokens uncomputed", "Tokens beyond a multiple of three have inner products of 0.",
        "apply_chunking_to_forward without a remainder", "first", _INNER,
        "says that the last tokens are zero or left out, or gives no name", {"inner": _whole_chunks},
    ),
    Mistake(
        "inner product without bias", "The inner bias is missing.", "bias=False of newer encoders", "last", _INNER,
        "says that the bias is missing", {"inner": _unbiased("intermediate.dense")},
    ),
    Mistake(
        "half a step", "The outer product is halved and has no bias: two changes.", "Conformer's macaron feed-forward", "all",
        _OUTER, "says that the bias is missing, that the product is scaled by ½, or both", {"outer": _half_step},
    ),
    Mistake(
        "sparse activations", "The outer product ignores negative inputs.", "kernels that skip neurons that are off, as for ReLU",
        "some", _OUTER, "says that negative inputs are left out, or gives no name", {"outer": _skipping},
    ),
    Mistake(
        "last neurons unread", "The outer product reads 7/8 of the neurons.", "loops whose last block is not full", "later", _OUTER,
        "says that the last inputs are left out", {"outer": _narrow},
    ),
)  # fmt: skip
