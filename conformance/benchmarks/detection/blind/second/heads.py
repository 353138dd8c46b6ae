"""The pooler and the heads."""

from torch import Tensor
from torch.nn import functional as F

from conformance.benchmarks.detection.blind.port import Mistake, Port, norm

_POOLER, _DECODER = ("pooler.dense",), ("cls.predictions.decoder",)
_WORDS, _BIAS = "bert.embeddings.word_embeddings.weight", "cls.predictions.bias"
_TRANSFORM = ("cls.predictions.transform.transform_act_fn", "cls.predictions.transform.LayerNorm")


def _last_token(port: Port, _: None, hidden: Tensor) -> Tensor:
    return port.linear("bert.pooler.dense", hidden[:, -1])


def _layer_before(port: Port, _: None, hidden: Tensor) -> Tensor:
    return port.linear("bert.pooler.dense", port.layer_before()[:, 0])


def _unbiased(port: Port, _: None, x: Tensor) -> Tensor:
    return F.linear(x, port.weights[_WORDS])


def _rescaled(port: Port, _: None, x: Tensor) -> Tensor:
    return F.linear(x * port.architecture.hidden_size**-0.5, port.weights[_WORDS], port.weights[_BIAS])


def _reversed(port: Port, _: None, pooled: Tensor, hidden: Tensor) -> Tensor:
    return port.linear("cls.seq_relationship", pooled).flip(-1)


def _norm_early(port: Port, _: None, dense: Tensor) -> Tensor:
    return norm(port, None, "cls.predictions.transform.LayerNorm", dense)


def _activated_late(port: Port, _: None, normed: Tensor) -> Tensor:
    return F.gelu(normed)


MISTAKES = (
    Mistake(
        "pooler reads the last token", "The pooler reads the last position.", "sentence embedders made for decoders", "first",
        _POOLER, "the pooler reads another token", {"pooler": _last_token},
    ),
    Mistake(
        "pooler of the layer before", "The pooler reads the last layer but one.", "hidden_states[-2], as bert-as-service had it",
        "first", _POOLER, "the pooler reads another layer", {"pooler": _layer_before},
    ),
    Mistake(
        "pooler's activation is GELU", "The pooler's activation is the layers'.", "one activation for all of a config", "first",
        ("pooler.activation",), "GELU, not tanh", {"pooler_activation": lambda port, _, x: F.gelu(x)},
    ),
    Mistake(
        "decoder without bias", "The decoder has no bias.", "`cls.predictions.bias` is not `decoder.bias`", "first", _DECODER,
        "the decoder's bias is missing", {"decoder": _unbiased},
    ),
    Mistake(
        "decoder scaled as T5's", "The decoder's input is divided by the root of the width.", "tied heads shared with T5", "first",
        _DECODER, "the decoder's product is scaled by 1/√H", {"decoder": _rescaled},
    ),
    Mistake(
        "next sentence reversed", "The two classes of the next-sentence head are exchanged.", "label maps made by hand", "first",
        ("cls.seq_relationship",), "the classes are exchanged or reversed", {"next_sentence": _reversed},
    ),
    Mistake(
        "norm before activation", "The head's norm stands before its activation; each is shown by its place.",
        "layers put together as dense, norm, activation", "first", _TRANSFORM, "norm and activation are exchanged",
        {"transform_activation": _norm_early, "transform_norm": _activated_late},
    ),
)  # fmt: skip
