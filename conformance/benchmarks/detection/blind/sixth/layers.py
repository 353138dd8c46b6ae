"""Mistakes in the feed-forward network and in sharded projections."""

from torch import Tensor
from torch.nn import functional as F

from conformance.benchmarks.detection.blind.port import Mistake, Operation, Port, prefix

_ACTIVATED = "intermediate.intermediate_act_fn"
_DENSE = ("attention.output.dense", "output.dense")


def _from_table(port: Port, layer: int | None, x: Tensor) -> Tensor:
    return F.gelu(x.half().float(), approximate="tanh").half().to(x.dtype)


def _bias_again(port: Port, layer: int, x: Tensor) -> Tensor:
    return F.gelu(x + port.weights[f"{prefix(layer)}.intermediate.dense.bias"])


def _one_rank(port: Port, layer: int, x: Tensor) -> Tensor:
    name, half = f"{prefix(layer)}.attention.output.dense", x.shape[-1] // 2
    return F.linear(x[..., :half], port.weights[f"{name}.weight"][:, :half], port.weights[f"{name}.bias"])


def _bias_of_each_rank(name: str) -> Operation:
    def projected(port: Port, layer: int, x: Tensor) -> Tensor:
        return port.linear(f"{prefix(layer)}.{name}", x) + port.weights[f"{prefix(layer)}.{name}.bias"]

    return projected


MISTAKES = (
    Mistake(
        "GELU from a table of halves",
        "The argument is rounded to float16 and looked up in a table of float16 results of the form with a tanh.",
        "ggml with GGML_GELU_FP16",
        "all",
        (_ACTIVATED, "cls.predictions.transform.transform_act_fn"),
        "says that the activation is in float16, or GELU's form with a tanh",
        {"activation": _from_table, "transform_activation": _from_table},
    ),
    Mistake(
        "bias added again before GELU",
        "The intermediate bias is added by the projection and again by the activation.",
        "a fused bias and GELU behind a projection that kept its bias",
        "all",
        (_ACTIVATED,),
        "says that the bias is added twice",
        {"activation": _bias_again},
    ),
    Mistake(
        "half of the sum",
        "The projection of the context is of the first half of its channels alone.",
        "tensor parallelism over two ranks without the all-reduce",
        "all",
        (_DENSE[0],),
        "says that half of the channels, or of the heads, is missing from the sum",
        {"attention_dense": _one_rank},
    ),
    Mistake(
        "bias of each rank",
        "The bias of both output projections is added twice.",
        "row-parallel projections over two ranks that add the bias before the all-reduce",
        "all",
        _DENSE,
        "says that the bias is added twice",
        {"attention_dense": _bias_of_each_rank(_DENSE[0]), "outer": _bias_of_each_rank(_DENSE[1])},
    ),
)
