"""Mistakes in the norms and in the residuals around the attention."""

from torch import Tensor
from torch.nn import functional as F

from conformance.benchmarks.detection.blind.port import OPERATIONS, Mistake, Operation, Port, norm, prefix

_ATTENDED, _OUTPUT = "attention.output.LayerNorm", "output.LayerNorm"
_EVERY = ("embeddings.LayerNorm", _ATTENDED, _OUTPUT, "cls.predictions.transform.LayerNorm")


def _affine(port: Port, name: str, normed: Tensor) -> Tensor:
    return normed * port.weights[f"{name}.weight"] + port.weights[f"{name}.bias"]


def _larger_epsilon(name: str) -> Operation:
    """The norm of that name with the epsilon that PyTorch, Keras and others have by default."""

    def replaced(port: Port, layer: int, x: Tensor, skip: Tensor, *_: Tensor) -> Tensor:
        return _affine(port, f"{prefix(layer)}.{name}", F.layer_norm(x + skip, x.shape[-1:], eps=1e-5))

    return replaced


def _unbiased_deviation(port: Port, layer: int | None, name: str, x: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return _affine(port, name, centred / (x.std(-1, keepdim=True) + 1e-6))


def _normed_before(step: str, name: str) -> Operation:
    """That step of the norm of that name of its input."""
    return lambda port, layer, x: OPERATIONS[step](port, layer, norm(port, layer, f"{prefix(layer)}.{name}", x))


def _sum_only(port: Port, layer: int, x: Tensor, skip: Tensor, *_: Tensor) -> Tensor:
    return x + skip


def _first_norm_again(port: Port, layer: int, x: Tensor, skip: Tensor, hidden: Tensor) -> Tensor:
    return norm(port, layer, f"{prefix(layer)}.{_ATTENDED}", x + skip)


def _no_residual(port: Port, layer: int, x: Tensor, skip: Tensor) -> Tensor:
    return norm(port, layer, f"{prefix(layer)}.{_ATTENDED}", x)


def _root_mean_square(port: Port, layer: int | None, name: str, x: Tensor) -> Tensor:
    return _affine(port, name, x * (x.square().mean(-1, keepdim=True) + port.architecture.layer_norm_eps).rsqrt())


def _over_positions_too(port: Port, layer: int | None, name: str, x: Tensor) -> Tensor:
    return _affine(port, name, F.layer_norm(x, x.shape[-2:], eps=port.architecture.layer_norm_eps))


MISTAKES = (
    Mistake(
        "default epsilon in the layers",
        "The norms of the layers have epsilon 1e-5, and that of the embeddings has the right one.",
        "keras-hub issue 642; the like in gpt4all pull request 1946, gluon-nlp 1214 and onnxruntime 3768",
        "all",
        (_ATTENDED, _OUTPUT),
        "says that the norms' epsilon is 1e-5, or too large",
        {"attention_norm": _larger_epsilon(_ATTENDED), "output_norm": _larger_epsilon(_OUTPUT)},
    ),
    Mistake(
        "unbiased deviation plus epsilon",
        "The norms divide by the unbiased standard deviation plus 1e-6.",
        "The Annotated Transformer's LayerNorm in codertimo/BERT-pytorch issue 30 and hyunwoongko/transformer issue 7",
        "all",
        _EVERY,
        "says that the norms' variance is unbiased, divided by n - 1",
        {"norm": _unbiased_deviation},
    ),
    Mistake(
        "norms before the sublayers",
        "Each norm is of its sublayer's input, and the sum with the residual is not normed.",
        "mlx pull request 1327, and nn.TransformerEncoderLayer with norm_first=True",
        "all",
        ("attention.self.query", "attention.self.key", "attention.self.value", _ATTENDED, "intermediate.dense", _OUTPUT),
        "says that the norms come before the sublayers, as in a pre-norm transformer",
        {
            "query": _normed_before("query", _ATTENDED),
            "key": _normed_before("key", _ATTENDED),
            "value": _normed_before("value", _ATTENDED),
            "attention_norm": _sum_only,
            "inner": _normed_before("inner", _OUTPUT),
            "output_norm": _sum_only,
        },
    ),
    Mistake(
        "first norm used twice",
        "The second norm of a layer has the parameters of the first.",
        "mlx issue 1636 and mlx-swift pull request 171: ln1 where ln2 is meant",
        "all",
        (_OUTPUT,),
        "says that the second norm has the first norm's parameters",
        {"output_norm": _first_norm_again},
    ),
    Mistake(
        "no residual around the attention",
        "The first norm is of the attention's output alone.",
        "common in exercises",
        "first",
        (_ATTENDED,),
        "says that the residual of the attention is missing",
        {"attention_norm": _no_residual},
    ),
    Mistake(
        "root mean square for the deviation",
        "The norms divide by the root of the mean of squares and do not subtract the mean.",
        "the norm of T5 or LLaMA under the name LayerNorm; transformers issue 14772 takes it for a bug",
        "all",
        _EVERY,
        "says that the norms do not subtract the mean, or are RMSNorm",
        {"norm": _root_mean_square},
    ),
    Mistake(
        "norm over positions and features",
        "The norms take mean and variance of a row's positions and features together.",
        "nn.LayerNorm(x.shape[1:]), as for images; common in exercises",
        "all",
        _EVERY,
        "says that the norms' statistics are over the positions as well",
        {"norm": _over_positions_too},
    ),
)
