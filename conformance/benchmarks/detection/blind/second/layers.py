"""Feed-forward, its activation function, residuals, dropout, and the order of these."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from conformance.benchmarks.detection.blind.port import Mistake, Operation, Port, norm, prefix

_ACT, _INNER, _OUTER = ("intermediate.intermediate_act_fn",), ("intermediate.dense",), ("output.dense",)
_NORMS = ("attention.output.LayerNorm", "output.LayerNorm")
_CHUNK = 5


def _pointwise(function: Operation) -> Operation:
    return lambda port, layer, x: function(x)


def _gelu_polynomial(x: Tensor) -> Tensor:
    scaled = x.float() / math.sqrt(2)
    error_function = scaled.sign() * (-0.2888 * (scaled.abs().clamp(max=1.769) - 1.769) ** 2 + 1)
    return (x.float() * 0.5 * (1 + error_function)).to(x.dtype)


def _bias_twice(port: Port, layer: int, x: Tensor) -> Tensor:
    name = f"{prefix(layer)}.intermediate.dense"
    return port.linear(name, x) + port.weights[f"{name}.bias"]


def _last_chunk_lost(port: Port, layer: int, x: Tensor) -> Tensor:
    whole = x.shape[1] // _CHUNK * _CHUNK
    result = port.linear(f"{prefix(layer)}.output.dense", x)
    return torch.cat([result[:, :whole], torch.zeros_like(result[:, whole:])], 1)


def _saturated(port: Port, layer: int, x: Tensor) -> Tensor:
    unit = 1.5 / 127
    return port.linear(f"{prefix(layer)}.output.dense", ((x.float() / unit).round().clamp(-127, 127) * unit).to(x.dtype))


def _input(port: Port, layer: int) -> Tensor:
    return port.found[f"encoder.layer.{layer - 1}.output.LayerNorm" if layer else "embeddings.dropout"]


def _parallel(port: Port, layer: int, x: Tensor) -> Tensor:
    return port.linear(f"{prefix(layer)}.intermediate.dense", _input(port, layer))


def _skip_input(port: Port, layer: int, x: Tensor, skip: Tensor, hidden: Tensor) -> Tensor:
    return norm(port, layer, f"{prefix(layer)}.output.LayerNorm", x + hidden)


def _added_after(port: Port, layer: int, x: Tensor, skip: Tensor) -> Tensor:
    return norm(port, layer, f"{prefix(layer)}.attention.output.LayerNorm", x) + skip


def _normed_first(name: str, normed: str) -> Operation:
    return lambda port, layer, x: port.linear(f"{prefix(layer)}.{name}", norm(port, layer, f"{prefix(layer)}.{normed}", x))


def _sum_only(port: Port, layer: int, x: Tensor, skip: Tensor, *_: Tensor) -> Tensor:
    return x + skip


def _dropped(x: Tensor) -> Tensor:
    kept = torch.rand(x.shape, generator=torch.Generator().manual_seed(x.numel())) >= 0.1
    return x * kept / 0.9


def _drop_then_norm(name: str) -> Operation:
    return lambda port, layer, x, skip, *_: norm(port, layer, f"{prefix(layer)}.{name}", _dropped(x) + skip)


def _keep_share(name: str) -> Operation:
    return lambda port, layer, x, skip, *_: norm(port, layer, f"{prefix(layer)}.{name}", 0.9 * x + skip)


_TANH = _pointwise(lambda x: F.gelu(x, approximate="tanh"))

MISTAKES = (
    Mistake(
        "tanh form everywhere", "Every GELU is the tanh form, the head's too.", "engines whose only gelu is GPT-2's", "all",
        (*_ACT, "cls.predictions.transform.transform_act_fn"), "GELU has the tanh form",
        {"activation": _TANH, "transform_activation": _TANH},
    ),
    Mistake(
        "ReLU in every layer", "The activation is ReLU.", "nn.TransformerEncoderLayer, whose default it is", "all", _ACT,
        "ReLU, not GELU", {"activation": _pointwise(F.relu)},
    ),
    Mistake(
        "quick GELU", "The activation is x · sigmoid(1.702 x).", "engines that have run CLIP", "some", _ACT,
        "the sigmoid form of GELU", {"activation": _pointwise(lambda x: x * torch.sigmoid(1.702 * x))},
    ),
    Mistake(
        "GELU twice", "GELU is applied by the fused product, and again.", "cuBLASLt epilogues", "all", _ACT,
        "the activation is applied twice", {"activation": _pointwise(lambda x: F.gelu(F.gelu(x)))},
    ),
    Mistake(
        "GELU by a polynomial", "The error function is a polynomial of second degree.", "I-BERT and integer engines", "all", _ACT,
        "GELU or its error function is approximate", {"activation": _pointwise(_gelu_polynomial)},
    ),
    Mistake(
        "bias twice", "The bias of the first feed-forward product is added twice.", "a fused epilogue beside the old addition",
        "all", _INNER, "the bias is added twice", {"inner": _bias_twice},
    ),
    Mistake(
        "last chunk lost", "The feed-forward runs in chunks of five tokens; what is left over stays zero.",
        "feed-forward chunking by hand", "some", _OUTER, "the result is zero (not computed) at the last positions",
        {"outer": _last_chunk_lost},
    ),
    Mistake(
        "static scale saturates", "The input of the second product has eight bits that end at 1.5.",
        "static quantisation with too few calibration texts", "all", _OUTER, "the operand is quantised or clipped",
        {"outer": _saturated},
    ),
    Mistake(
        "feed-forward beside attention", "The feed-forward reads the layer's input.", "GPT-J's and PaLM's parallel layers", "all",
        _INNER, "the product reads the layer's input, not the attention's output", {"inner": _parallel},
    ),
    Mistake(
        "residual of the layer's input", "The second residual is the layer's input.", "a variable that was not renamed", "all",
        ("output.LayerNorm",), "the residual comes from the wrong place (the layer's input)", {"output_norm": _skip_input},
    ),
    Mistake(
        "residual after the norm", "The attention's residual is added to the normed result.", "ports from a paper's figure", "all",
        ("attention.output.LayerNorm",), "the residual is added after the norm", {"attention_norm": _added_after},
    ),
    Mistake(
        "norm first", "Norms stand before the sub-layers.", "nn.TransformerEncoderLayer with norm_first, GPT-2's layers", "all",
        ("attention.self.query", "attention.self.key", "attention.self.value", *_INNER, *_NORMS),
        "the norm is missing after the sums (or before the sub-layers); a step that reads normed inputs is wrong or unnamed",
        {
            **{part: _normed_first(f"attention.self.{part}", _NORMS[0]) for part in ("query", "key", "value")},
            "inner": _normed_first("intermediate.dense", _NORMS[1]), "attention_norm": _sum_only, "output_norm": _sum_only,
        },
    ),
    Mistake(
        "training mode", "All dropouts drop a tenth.", "model.eval() left out", "all",
        ("embeddings.dropout", "attention.self.dropout", *_NORMS), "dropout is on",
        {
            "embedding_dropout": _pointwise(_dropped), "attention_dropout": _pointwise(_dropped),
            "attention_norm": _drop_then_norm(_NORMS[0]), "output_norm": _drop_then_norm(_NORMS[1]),
        },
    ),
    Mistake(
        "kept share at inference", "What dropout would have dropped is multiplied by 0.9.", "dropout as its first paper had it",
        "all", _NORMS, "the sub-layer's result is scaled by 0.9 (the share that dropout keeps)",
        {"attention_norm": _keep_share(_NORMS[0]), "output_norm": _keep_share(_NORMS[1])},
    ),
)  # fmt: skip
