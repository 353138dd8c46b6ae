"""Mistakes in the norms of the layers and in what they are norms of."""

import torch
from torch import Tensor
from torch.nn import functional as F

from conformance.benchmarks.detection.blind.port import Mistake, Port, prefix
from conformance.benchmarks.detection.blind.third.tools import norm_with, parameters, residual_with

_ATTENTION = ("attention.output.LayerNorm",)
_OUTPUT = ("output.LayerNorm",)
_EVERY = ("embeddings.LayerNorm", *_ATTENTION, *_OUTPUT, "cls.predictions.transform.LayerNorm")


def _annotated(port: Port, layer: int, x: Tensor, attended: Tensor, hidden: Tensor) -> Tensor:
    weight, bias = parameters(port, f"{prefix(layer)}.output.LayerNorm")
    summed = x + attended
    return weight * (summed - summed.mean(-1, keepdim=True)) / (summed.std(-1, keepdim=True) + 1e-6) + bias


def _root_mean_square(port: Port, layer: int, x: Tensor, skip: Tensor) -> Tensor:
    weight, bias = parameters(port, f"{prefix(layer)}.attention.output.LayerNorm")
    summed = x + skip
    return summed * torch.rsqrt(summed.square().mean(-1, keepdim=True) + port.architecture.layer_norm_eps) * weight + bias


def _padded_lanes(port: Port, layer: int | None, name: str, x: Tensor) -> Tensor:
    weight, bias = parameters(port, name)
    width = x.shape[-1]
    centred = x.float() - x.float().mean(-1, keepdim=True)
    lanes = max(64, 1 << (width - 1).bit_length()) - width
    spread = (centred.square().sum(-1, keepdim=True) + lanes * x.float().mean(-1, keepdim=True).square()) / width
    return (centred * torch.rsqrt(spread + port.architecture.layer_norm_eps)).to(x.dtype) * weight + bias


def _one_plus(port: Port, layer: int, x: Tensor, skip: Tensor) -> Tensor:
    weight, bias = parameters(port, f"{prefix(layer)}.attention.output.LayerNorm")
    return F.layer_norm(x + skip, x.shape[-1:], weight + 1, bias, port.architecture.layer_norm_eps)


def _unshifted(port: Port, layer: int, x: Tensor, attended: Tensor, hidden: Tensor) -> Tensor:
    weight, _ = parameters(port, f"{prefix(layer)}.output.LayerNorm")
    return F.layer_norm(x + attended, x.shape[-1:], weight, None, port.architecture.layer_norm_eps)


def _twice_added(port: Port, layer: int, x: Tensor, skip: Tensor) -> Tensor:
    return port.step("norm", layer, f"{prefix(layer)}.attention.output.LayerNorm", x + skip + skip)


def _deep(port: Port, layer: int, x: Tensor, attended: Tensor, hidden: Tensor) -> Tensor:
    alpha = (2 * port.architecture.num_hidden_layers) ** 0.25
    return port.step("norm", layer, f"{prefix(layer)}.output.LayerNorm", x + attended * alpha)


def _kept_rate(port: Port, layer: int, x: Tensor, attended: Tensor, hidden: Tensor) -> Tensor:
    return port.step("norm", layer, f"{prefix(layer)}.output.LayerNorm", x * 0.9 + attended)


def _normed_branch(port: Port, layer: int, x: Tensor, skip: Tensor) -> Tensor:
    return skip + port.step("norm", layer, f"{prefix(layer)}.attention.output.LayerNorm", x)


def _layers_input(port: Port, layer: int, x: Tensor, attended: Tensor, hidden: Tensor) -> Tensor:
    return port.step("norm", layer, f"{prefix(layer)}.output.LayerNorm", x + hidden)


def _overwritten(port: Port, layer: int, x: Tensor, attended: Tensor, hidden: Tensor) -> Tensor:
    return port.step("norm", layer, f"{prefix(layer)}.output.LayerNorm", x + x)


def _the_other(port: Port, layer: int, x: Tensor, skip: Tensor) -> Tensor:
    return norm_with(port, f"{prefix(layer)}.output.LayerNorm", x + skip, port.architecture.layer_norm_eps)


def _both_skips(port: Port, layer: int, x: Tensor, attended: Tensor, hidden: Tensor) -> Tensor:
    name = f"{prefix(layer)}.output.LayerNorm"
    return norm_with(port, name, x + attended + hidden, 1e-5)


MISTAKES = (
    Mistake(
        "epsilon of 1e-6 after attention", "The epsilon of the norm after attention is 1e-6.", "Flax's nn.LayerNorm default", "all",
        _ATTENTION, "says that the epsilon is 1e-6, or larger than the right one",
        {"attention_norm": residual_with("attention.output.LayerNorm", 1e-6)},
    ),
    Mistake(
        "epsilon of 1e-7 after the feed-forward", "The epsilon of the layer's last norm is 1e-7.",
        "an epsilon raised so that float16 can have it", "some", _OUTPUT, "says that the epsilon is 1e-7, or larger",
        {"output_norm": residual_with("output.LayerNorm", 1e-7)},
    ),
    Mistake(
        "epsilon of 1e-5 in the last layer", "The epsilon of the norm after attention is 1e-5 in the last layer.",
        "one nn.LayerNorm(H) made without the config's epsilon", "last", _ATTENTION, "says that the epsilon is 1e-5, or larger",
        {"attention_norm": residual_with("attention.output.LayerNorm", 1e-5)},
    ),
    Mistake(
        "norm as the Annotated Transformer's", "The deviation is unbiased and epsilon, 1e-6, is added to it: two changes.",
        "code that began as The Annotated Transformer", "all", _OUTPUT,
        "says that the variance is unbiased, or that epsilon is added to the deviation", {"output_norm": _annotated},
    ),
    Mistake(
        "root mean square in the last layer", "The mean is not subtracted after attention.",
        "kernels of RMSNorm put in by a switch", "last", _ATTENTION, "says that the mean is not subtracted, or RMSNorm",
        {"attention_norm": _root_mean_square},
    ),
    Mistake(
        "idle lanes in the variance", "Lanes beyond the width, which are 0, count in the variance after the mean is subtracted.",
        "Triton kernels without a mask on x − mean", "all", _EVERY,
        "says that the variance is over a padded width or includes the mean, or gives no name", {"norm": _padded_lanes},
    ),
    Mistake(
        "one plus gamma", "Gamma is taken for its difference from 1.", "Megatron's --apply-layernorm-1p checkpoints", "first",
        _ATTENTION, "says that 1 is added to the norm's weight", {"attention_norm": _one_plus},
    ),
    Mistake(
        "norm without beta", "The last norm of the layer has no bias.", "LayerNorm(bias=False), as ModernBERT has it", "first",
        _OUTPUT, "says that the norm's bias is missing", {"output_norm": _unshifted},
    ),
    Mistake(
        "residual twice after attention", "The residual is added twice.", "a product with beta = 1 and then a kernel that adds",
        "all", _ATTENTION, "says that the residual is added twice or scaled by 2", {"attention_norm": _twice_added},
    ),
    Mistake(
        "residual scaled as DeepNet's", "The residual is multiplied by (2 L)^¼.", "DeepNorm of torchscale", "all", _OUTPUT,
        "says that the residual is scaled", {"output_norm": _deep},
    ),
    Mistake(
        "branch at its survival rate", "The feed-forward's output is multiplied by 0.9 before the sum.",
        "stochastic depth, scaled at inference", "some", _OUTPUT, "says that the branch is scaled, or by 0.9",
        {"output_norm": _kept_rate},
    ),
    Mistake(
        "norm inside the branch", "The norm is of the attention's output, and the residual is added after it.",
        "Swin V2's order of norm and residual", "all", _ATTENTION, "says that the norm is applied before the residual is added",
        {"attention_norm": _normed_branch},
    ),
    Mistake(
        "second residual from the layer's input", "The feed-forward's residual is the layer's input.",
        "one variable `residual` for both sums", "later", _OUTPUT, "says that the residual is the layer's input",
        {"output_norm": _layers_input},
    ),
    Mistake(
        "residual overwritten by the product", "The sum has the feed-forward's output twice and no residual.",
        "out= of a product that is the residual's buffer", "first", _OUTPUT,
        "says that the residual is missing, is the branch, or that a buffer is overwritten", {"output_norm": _overwritten},
    ),
    Mistake(
        "norms of the layer exchanged at one place", "The norm after attention has the parameters of the layer's last norm.",
        "one self.norm used for both", "last", _ATTENTION, "says that the parameters are those of another norm",
        {"attention_norm": _the_other},
    ),
    Mistake(
        "both residuals and PyTorch's epsilon", "The layer's input is added too, and epsilon is 1e-5: two changes.",
        "a residual around the whole layer, tried and left in", "all", _OUTPUT,
        "says that the layer's input is added once more, that epsilon is 1e-5, or both", {"output_norm": _both_skips},
    ),
)  # fmt: skip
