"""Mistakes in the norms and in the residuals."""

from torch import Tensor
from torch.nn import functional as F

from conformance.benchmarks.detection.blind.port import Mistake, Operation, Port, Weights, norm, prefix

_ATTENDED, _OUTPUT = "attention.output.LayerNorm", "output.LayerNorm"
_EVERY = ("embeddings.LayerNorm", _ATTENDED, _OUTPUT, "cls.predictions.transform.LayerNorm")
_BLOCK = 1024


def _over_zeros_too(port: Port, layer: int | None, name: str, x: Tensor) -> Tensor:
    """The variance of a row that is filled up with zeros to a block, divided by the row's own size."""
    wide, size = x.float(), x.shape[-1]
    mean = wide.mean(-1, keepdim=True)
    centred = F.pad(wide, (0, _BLOCK - size)) - mean
    variance = centred.square().sum(-1, keepdim=True) / size
    normed = centred[..., :size] * (variance + port.architecture.layer_norm_eps).rsqrt()
    return normed.to(x.dtype) * port.weights[f"{name}.weight"] + port.weights[f"{name}.bias"]


def _keras_epsilon(port: Port, layer: int | None, name: str, x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], port.weights[f"{name}.weight"], port.weights[f"{name}.bias"], 1e-3)


def _no_parameters(port: Port, layer: int | None, name: str, x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], eps=port.architecture.layer_norm_eps)


def _swap(weights: Weights, layers: tuple[int, ...]) -> None:
    for layer in layers:
        weight, bias = (f"{prefix(layer)}.{_OUTPUT}.{name}" for name in ("weight", "bias"))
        weights[weight], weights[bias] = weights[bias], weights[weight]


def _input_for_residual(port: Port, layer: int, x: Tensor, skip: Tensor, hidden: Tensor) -> Tensor:
    return norm(port, layer, f"{prefix(layer)}.{_OUTPUT}", x + hidden)


def _residual_twice(port: Port, layer: int, x: Tensor, skip: Tensor) -> Tensor:
    return norm(port, layer, f"{prefix(layer)}.{_ATTENDED}", x + skip + skip)


def _added_after(name: str) -> Operation:
    """That norm of the sublayer alone, plus the residual."""
    return lambda port, layer, x, skip, *_: norm(port, layer, f"{prefix(layer)}.{name}", x) + skip


MISTAKES = (
    Mistake(
        "variance with the block's zeros",
        "A row is filled up with zeros to a block of 1024, and their distance from the mean counts in the variance.",
        "triton issue 9838, Liger-Kernel issue 518",
        "all",
        _EVERY,
        "says that the norms' variance is wrong, or too large",
        {"norm": _over_zeros_too},
    ),
    Mistake(
        "Keras' epsilon",
        "All norms have epsilon 1e-3.",
        "the default of Keras' LayerNormalization, which a conversion to Keras does not set",
        "all",
        _EVERY,
        "says that the norms' epsilon is 1e-3, or too large",
        {"norm": _keras_epsilon},
    ),
    Mistake(
        "gamma and beta not found",
        "All norms have weight 1 and bias 0, as they are before a checkpoint is read.",
        "checkpoints that call them gamma and beta, read with strict=False by code that looks for weight and bias",
        "all",
        _EVERY,
        "says that the norms' weight and bias are not applied, or not loaded",
        {"norm": _no_parameters},
    ),
    Mistake(
        "gamma and beta swapped",
        "The last norm of a layer has its bias for its weight, and its weight for its bias.",
        "conversions that go by the order of arrays, as get_weights of Keras and beta, gamma of TensorFlow give them",
        "last",
        (_OUTPUT,),
        "says that the norm's weight and bias are swapped",
        load=_swap,
    ),
    Mistake(
        "layer's input for the second residual",
        "The second residual is the input of the layer, not of the feed-forward.",
        "one variable `residual` for both sublayers; common in exercises",
        "some",
        (_OUTPUT,),
        "says that the second residual is the layer's input, or the wrong tensor",
        {"output_norm": _input_for_residual},
    ),
    Mistake(
        "residual added twice",
        "The residual around the attention is added twice.",
        "a fusion of residual and norm, as onnxruntime's SkipLayerNormalization, before which the Add is left in the graph",
        "first",
        (_ATTENDED,),
        "says that the residual is added twice, or doubled",
        {"attention_norm": _residual_twice},
    ),
    Mistake(
        "residual after the norm",
        "The sublayer's output is normed, and the residual is added to that.",
        "x + norm(sublayer(x)) for norm(x + sublayer(x)); common in exercises",
        "all",
        (_ATTENDED, _OUTPUT),
        "says that the residual is added after the norm",
        {"attention_norm": _added_after(_ATTENDED), "output_norm": _added_after(_OUTPUT)},
    ),
)
