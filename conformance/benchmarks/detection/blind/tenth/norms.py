"""Mistakes in the norms and in the residuals."""

from torch import Tensor
from torch.nn import functional as F

from conformance.benchmarks.detection.blind.port import Mistake, Operation, Port, norm, prefix

_ATTENDED, _OUTPUT = "attention.output.LayerNorm", "output.LayerNorm"
_EVERY = ("embeddings.LayerNorm", _ATTENDED, _OUTPUT, "cls.predictions.transform.LayerNorm")
_PROJECTIONS = ("query", "key", "value")
_EPSILON = 1e-6
"""What the Annotated Transformer adds to the standard deviation."""


def _not_centred(port: Port, layer: int | None, name: str, x: Tensor) -> Tensor:
    wide = x.float()
    normed = wide * (wide.square().mean(-1, keepdim=True) + port.architecture.layer_norm_eps).rsqrt()
    return normed.to(x.dtype) * port.weights[f"{name}.weight"] + port.weights[f"{name}.bias"]


def _unbiased(port: Port, layer: int | None, name: str, x: Tensor) -> Tensor:
    wide = x.float()
    normed = (wide - wide.mean(-1, keepdim=True)) / (wide.std(-1, keepdim=True) + _EPSILON)
    return normed.to(x.dtype) * port.weights[f"{name}.weight"] + port.weights[f"{name}.bias"]


def _one_more(port: Port, layer: int | None, name: str, x: Tensor) -> Tensor:
    weight, bias = (port.weights[f"{name}.{kind}"] for kind in ("weight", "bias"))
    return F.layer_norm(x, x.shape[-1:], weight + 1, bias, port.architecture.layer_norm_eps)


def _no_residual(port: Port, layer: int, x: Tensor, skip: Tensor) -> Tensor:
    return norm(port, layer, f"{prefix(layer)}.{_ATTENDED}", x)


def _bias_again(port: Port, layer: int, x: Tensor, skip: Tensor, hidden: Tensor) -> Tensor:
    bias = port.weights[f"{prefix(layer)}.output.dense.bias"]
    return norm(port, layer, f"{prefix(layer)}.{_OUTPUT}", x + bias + skip)


def _to_itself(port: Port, layer: int, x: Tensor, skip: Tensor, hidden: Tensor) -> Tensor:
    return norm(port, layer, f"{prefix(layer)}.{_OUTPUT}", x + x)


def _of_normed(linear: str, before: str) -> Operation:
    """That linear layer of its normed input."""

    def replaced(port: Port, layer: int, x: Tensor) -> Tensor:
        return port.linear(f"{prefix(layer)}.{linear}", norm(port, layer, f"{prefix(layer)}.{before}", x))

    return replaced


def _sum(port: Port, layer: int, x: Tensor, skip: Tensor, *_: Tensor) -> Tensor:
    return x + skip


MISTAKES = (
    Mistake(
        "mean not taken off",
        "All norms divide by the root of the mean square, without taking off the mean.",
        "RMSNorm of newer models in place of LayerNorm; common in exercises",
        "all",
        _EVERY,
        "says that the norms do not take off the mean, or are RMSNorms",
        {"norm": _not_centred},
    ),
    Mistake(
        "standard deviation of n - 1",
        "All norms divide by the unbiased standard deviation plus 1e-6.",
        "annotated-transformer pull request 119, BERT-pytorch issue 30, hyunwoongko/transformer issue 7",
        "all",
        _EVERY,
        "says that the norms' variance is unbiased, has n - 1, or is too large",
        {"norm": _unbiased},
    ),
    Mistake(
        "norms' weights for weights less one",
        "1 is added to the weights of all norms.",
        "layers with zero_centered_gamma, as in TransformerEngine pull request 67 and executorch pull request 22444",
        "all",
        _EVERY,
        "says that 1 is added to the norms' weights, or that the norms' weights are wrong",
        {"norm": _one_more},
    ),
    Mistake(
        "no residual around the attention",
        "The norm after the attention is that of the attention's output alone.",
        "common in exercises",
        "first",
        (_ATTENDED,),
        "says that the residual is missing",
        {"attention_norm": _no_residual},
    ),
    Mistake(
        "bias in the linear layer and in the fused norm",
        "The bias of the feed-forward's second layer is added once more before the norm.",
        "a fused kernel of bias, residual and norm after a linear layer that has its bias already, as doubled in xformers pull "
        "request 317",
        "last",
        (_OUTPUT,),
        "says that the bias is added twice",
        {"output_norm": _bias_again},
    ),
    Mistake(
        "output added to itself",
        "The second residual is the sublayer's own output.",
        "Flat-Lattice-Transformer issue 111",
        "some",
        (_OUTPUT,),
        "says that the residual is the wrong tensor, or missing",
        {"output_norm": _to_itself},
    ),
    Mistake(
        "norms before the sublayers",
        "The attention and the feed-forward read normed inputs, and their outputs are added to inputs that are not normed.",
        "pre-norm code of newer models; common in exercises",
        "all",
        (*(f"attention.self.{name}" for name in _PROJECTIONS), _ATTENDED, "intermediate.dense", _OUTPUT),
        "says that the norms come before the sublayers, or are not applied after the residuals",
        {
            **{name: _of_normed(f"attention.self.{name}", _ATTENDED) for name in _PROJECTIONS},
            "attention_norm": _sum,
            "inner": _of_normed("intermediate.dense", _OUTPUT),
            "output_norm": _sum,
        },
    ),
)
