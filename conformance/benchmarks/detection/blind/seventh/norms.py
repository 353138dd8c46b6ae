"""Mistakes in the norms and in the residuals."""

from torch import Tensor
from torch.nn import functional as F

from conformance.benchmarks.detection.blind.port import Mistake, Operation, Port, Weights, norm, prefix

_ATTENDED, _OUTPUT = "attention.output.LayerNorm", "output.LayerNorm"
_EVERY = ("embeddings.LayerNorm", _ATTENDED, _OUTPUT, "cls.predictions.transform.LayerNorm")
_SUM = "sum before the norm"


def _one_added(weights: Weights, layers: tuple[int, ...]) -> None:
    for layer in layers:
        for name in (_ATTENDED, _OUTPUT):
            key = f"{prefix(layer)}.{name}.weight"
            weights[key] = weights[key] + 1


def _by_halves(port: Port, layer: int | None, name: str, x: Tensor) -> Tensor:
    halves = x.view(*x.shape[:-1], 2, -1)
    normed = F.layer_norm(halves, halves.shape[-1:], eps=port.architecture.layer_norm_eps).flatten(-2)
    return normed * port.weights[f"{name}.weight"] + port.weights[f"{name}.bias"]


def _unmasked_lanes(port: Port, layer: int | None, name: str, x: Tensor) -> Tensor:
    width = x.shape[-1]
    lanes = 1 << (width - 1).bit_length()
    if lanes == width:
        return norm(port, layer, name, x)
    mean = x.float().mean(-1, keepdim=True)
    centred = x.float() - mean
    squares = (centred**2).sum(-1, keepdim=True) + (lanes - width) * mean**2
    normed = centred * (squares / width + port.architecture.layer_norm_eps).rsqrt()
    return (normed * port.weights[f"{name}.weight"].float() + port.weights[f"{name}.bias"].float()).to(x.dtype)


def _final_norm(port: Port, _: None, hidden: Tensor) -> Tensor:
    return F.layer_norm(hidden, hidden.shape[-1:], eps=port.architecture.layer_norm_eps)


def _before_the_residual(name: str) -> Operation:
    """The norm of that name is of the sublayer's output alone, and the residual is added to it."""
    return lambda port, layer, x, skip, *_: port.step("norm", layer, f"{prefix(layer)}.{name}", x) + skip


def _kept_sum(port: Port, layer: int, x: Tensor, skip: Tensor) -> Tensor:
    port.found[_SUM] = x + skip
    return port.step("norm", layer, f"{prefix(layer)}.{_ATTENDED}", x + skip)


def _sum_as_residual(port: Port, layer: int, x: Tensor, skip: Tensor, hidden: Tensor) -> Tensor:
    return port.step("norm", layer, f"{prefix(layer)}.{_OUTPUT}", x + port.found.pop(_SUM))


MISTAKES = (
    Mistake(
        "one added to the norms' weights",
        "Both norms multiply by 1 + weight instead of by weight.",
        "Gemma's norm, or Megatron's apply_layernorm_1p, for weights that are centred at 1",
        "last",
        (_ATTENDED, _OUTPUT),
        "says that 1 is added to the norms' weights",
        load=_one_added,
    ),
    Mistake(
        "statistics of a rank's features",
        "The norms take mean and variance of each half of the features apart.",
        "tensor parallelism over two ranks, with norms over the features that are local",
        "all",
        _EVERY,
        "says that the norms' statistics are over groups of features",
        {"norm": _by_halves},
    ),
    Mistake(
        "lanes beyond the width in the variance",
        "The variance includes the square of the mean once for each lane between the width and the next power of 2.",
        "a Triton kernel that loads 0 beyond the width and subtracts the mean there as well",
        "all",
        _EVERY,
        "says that the variance is too large, or has a multiple of the squared mean in it",
        {"norm": _unmasked_lanes},
    ),
    Mistake(
        "final norm of the encoder",
        "The last hidden state is normed once more, without weight and bias, before the pooler and the heads.",
        "nn.TransformerEncoder with a norm, as for layers that norm their inputs, left at its initial values",
        "all",
        ("pooler.dense", "cls.predictions.transform.dense"),
        "says that the heads' input is normed again",
        {"last": _final_norm},
    ),
    Mistake(
        "residual after the norm",
        "The norms are of the sublayers' outputs alone, and the residuals are added after them.",
        "the order of Swin v2 or OLMo 2, x + norm(f(x))",
        "all",
        (_ATTENDED, _OUTPUT),
        "says that the residual is added after the norm",
        {"attention_norm": _before_the_residual(_ATTENDED), "output_norm": _before_the_residual(_OUTPUT)},
    ),
    Mistake(
        "second residual before its norm",
        "The second residual is the sum that the first norm reads instead of what it returns.",
        "a fused add-and-norm that returns the sum as the residual, as layers that norm their inputs need it",
        "all",
        (_OUTPUT,),
        "says that the second residual is the sum before the first norm",
        {"attention_norm": _kept_sum, "output_norm": _sum_as_residual},
    ),
)
