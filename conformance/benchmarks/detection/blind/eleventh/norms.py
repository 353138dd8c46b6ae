"""Mistakes in the norms and in the residuals."""

from torch import Tensor
from torch.nn import functional as F

from conformance.benchmarks.detection.blind.port import Mistake, Operation, Port, norm, prefix

_ATTENDED, _OUTPUT = "attention.output.LayerNorm", "output.LayerNorm"
_EVERY = ("embeddings.LayerNorm", _ATTENDED, _OUTPUT, "cls.predictions.transform.LayerNorm")
_TORCH_EPS = 1e-5


def _torch_eps(name: str) -> Operation:
    def replaced(port: Port, layer: int, x: Tensor, skip: Tensor, *_: Tensor) -> Tensor:
        weight, bias = (port.weights[f"{prefix(layer)}.{name}.{kind}"] for kind in ("weight", "bias"))
        return F.layer_norm(x + skip, x.shape[-1:], weight, bias, _TORCH_EPS)

    return replaced


def _affine(port: Port, name: str, x: Tensor, like: Tensor) -> Tensor:
    return x.to(like.dtype) * port.weights[f"{name}.weight"] + port.weights[f"{name}.bias"]


def _unbiased(port: Port, layer: int | None, name: str, x: Tensor) -> Tensor:
    wide = x.float()
    deviation = wide.std(-1, keepdim=True)
    return _affine(port, name, (wide - wide.mean(-1, keepdim=True)) / (deviation + port.architecture.layer_norm_eps), x)


def _root_mean_square(port: Port, layer: int | None, name: str, x: Tensor) -> Tensor:
    wide = x.float()
    return _affine(port, name, wide * (wide.square().mean(-1, keepdim=True) + port.architecture.layer_norm_eps).rsqrt(), x)


def _over_the_sequence(port: Port, layer: int | None, name: str, x: Tensor) -> Tensor:
    return _affine(port, name, F.layer_norm(x, x.shape[1:], eps=port.architecture.layer_norm_eps), x)


def _around_one(port: Port, layer: int | None, name: str, x: Tensor) -> Tensor:
    weight, bias = port.weights[f"{name}.weight"], port.weights[f"{name}.bias"]
    return F.layer_norm(x, x.shape[-1:], 1 + weight, bias, port.architecture.layer_norm_eps)


def _no_residual(port: Port, layer: int, x: Tensor, skip: Tensor) -> Tensor:
    return norm(port, layer, f"{prefix(layer)}.{_ATTENDED}", x)


def _attentions_norm(port: Port, layer: int, x: Tensor, skip: Tensor, *_: Tensor) -> Tensor:
    return norm(port, layer, f"{prefix(layer)}.{_ATTENDED}", x + skip)


MISTAKES = (
    Mistake(
        "PyTorch's epsilon in the layers",
        "The norms of the layers have epsilon 1e-5.",
        "the default of nn.LayerNorm and nn.TransformerEncoderLayer, which a port does not set",
        "all",
        (_ATTENDED, _OUTPUT),
        "says that the norms' epsilon is 1e-5, or too large",
        {"attention_norm": _torch_eps(_ATTENDED), "output_norm": _torch_eps(_OUTPUT)},
    ),
    Mistake(
        "Bessel's correction",
        "The deviation is that of n - 1, as Tensor.std gives it.",
        "the LayerNorm of 'The Annotated Transformer', which uses x.std; common in exercises",
        "all",
        _EVERY,
        "says that the norms' variance is unbiased, or divided by n - 1",
        {"norm": _unbiased},
    ),
    Mistake(
        "RMSNorm",
        "The norms do not subtract the mean.",
        "the norm of a later model's code, as Llama's, around BERT's weights",
        "all",
        _EVERY,
        "says that the mean is not subtracted, or that it is an RMSNorm",
        {"norm": _root_mean_square},
    ),
    Mistake(
        "norm over tokens and features",
        "A norm's mean and variance are of a whole sequence.",
        "normalized_shape=x.shape[1:]; common in exercises",
        "all",
        _EVERY,
        "says that the norms are over the sequence too, or the wrong axes",
        {"norm": _over_the_sequence},
    ),
    Mistake(
        "weights around zero",
        "The norms multiply by 1 + weight.",
        "zero-centred weights, as with Megatron's --apply-layernorm-1p or Gemma's norms, read by the rule of the other kind",
        "all",
        _EVERY,
        "says that one is added to the norms' weight",
        {"norm": _around_one},
    ),
    Mistake(
        "residual around the attention forgotten",
        "The attention's output is normed without the layer's input.",
        "common in exercises",
        "last",
        (_ATTENDED,),
        "says that the residual around the attention is missing",
        {"attention_norm": _no_residual},
    ),
    Mistake(
        "one norm for both",
        "The norm after the feed-forward is that after the attention.",
        "one module self.norm called twice in a layer; common in exercises",
        "all",
        (_OUTPUT,),
        "says that the second norm has the first one's parameters",
        {"output_norm": _attentions_norm},
    ),
)
