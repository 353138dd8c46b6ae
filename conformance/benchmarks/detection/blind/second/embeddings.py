"""Embeddings and norms: what is looked up, what is added, and over what the mean and variance are taken."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from conformance.benchmarks.detection.blind.port import Mistake, Port, Weights, norm, prefix

_WORD, _POSITION = ("embeddings.word_embeddings",), ("embeddings.position_embeddings",)
_NORMS = ("attention.output.LayerNorm", "output.LayerNorm", "embeddings.LayerNorm", "cls.predictions.transform.LayerNorm")


def _row(port: Port, name: str, ids: Tensor) -> Tensor:
    return port.weights[f"bert.embeddings.{name}_embeddings.weight"][ids]


def _next_id(port: Port, _: None, ids: Tensor) -> Tensor:
    return _row(port, "word", (ids + 1) % port.architecture.vocab_size)


def _from_one(port: Port, _: None, ids: Tensor, types: Tensor, mask: Tensor) -> Tensor:
    return _row(port, "position", (torch.arange(ids.shape[1]) + 1).expand_as(ids))


def _stretched(port: Port, _: None, ids: Tensor, types: Tensor, mask: Tensor) -> Tensor:
    at = torch.arange(ids.shape[1]).expand_as(ids)
    return (_row(port, "position", at // 2) + _row(port, "position", (at + 1) // 2)) / 2


def _sinusoids(port: Port, _: None, ids: Tensor, types: Tensor, mask: Tensor) -> Tensor:
    width = port.architecture.hidden_size
    rates = torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
    angles = torch.arange(ids.shape[1])[:, None] * rates
    waves = torch.stack([angles.sin(), angles.cos()], -1).flatten(1)
    return waves.to(port.weights["bert.embeddings.position_embeddings.weight"].dtype).expand(len(ids), -1, -1)


def _late_types(port: Port, _: None, types: Tensor) -> Tensor:
    return _row(port, "token_type", torch.cat([types[:, :1], types[:, :-1]], 1))


def _without_types(port: Port, _: None, word: Tensor, position: Tensor, kind: Tensor) -> Tensor:
    return norm(port, None, "bert.embeddings.LayerNorm", word + position)


def _scaled_words(port: Port, _: None, word: Tensor, position: Tensor, kind: Tensor) -> Tensor:
    return norm(port, None, "bert.embeddings.LayerNorm", word * math.sqrt(port.architecture.hidden_size) + kind + position)


def _positions_after(port: Port, _: None, word: Tensor, position: Tensor, kind: Tensor) -> Tensor:
    return norm(port, None, "bert.embeddings.LayerNorm", word + kind) + position


def _default_epsilon(port: Port, layer: int | None, name: str, x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], port.weights[f"{name}.weight"], port.weights[f"{name}.bias"], 1e-5)


def _mean_square(port: Port, layer: int | None, name: str, x: Tensor) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], port.weights[f"{name}.weight"], 1e-12) + port.weights[f"{name}.bias"]


def _annotated(port: Port, layer: int | None, name: str, x: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return port.weights[f"{name}.weight"] * centred / (x.std(-1, keepdim=True) + 1e-6) + port.weights[f"{name}.bias"]


def _over_positions(port: Port, layer: int, x: Tensor, skip: Tensor, *_: Tensor) -> Tensor:
    name = f"{prefix(layer)}.output.LayerNorm"
    normed = F.layer_norm(x + skip, x.shape[1:], eps=1e-12)
    return normed * port.weights[f"{name}.weight"] + port.weights[f"{name}.bias"]


def _in_half(port: Port, layer: int | None, name: str, x: Tensor) -> Tensor:
    half = (each.bfloat16() for each in (x, port.weights[f"{name}.weight"], port.weights[f"{name}.bias"]))
    rounded, gain, bias = half
    return F.layer_norm(rounded, x.shape[-1:], gain, bias, 1e-12).to(x.dtype)


def _fast_root(port: Port, layer: int | None, name: str, x: Tensor) -> Tensor:
    wide = x.float()
    centred = wide - wide.mean(-1, keepdim=True)
    variance = centred.square().mean(-1, keepdim=True) + 1e-12
    guess = (0x5F3759DF - (variance.view(torch.int32) >> 1)).view(torch.float32)
    normed = centred * guess * (1.5 - 0.5 * variance * guess * guess)
    return (normed * port.weights[f"{name}.weight"] + port.weights[f"{name}.bias"]).to(x.dtype)


def _no_bias(weights: Weights, layers: tuple[int, ...]) -> None:
    for layer in layers:
        name = f"{prefix(layer)}.output.LayerNorm.bias"
        weights[name] = torch.zeros_like(weights[name])


def _one_more(weights: Weights, layers: tuple[int, ...]) -> None:
    for layer in layers:
        name = f"{prefix(layer)}.output.LayerNorm.weight"
        weights[name] = weights[name] + 1


def _exchanged(weights: Weights, layers: tuple[int, ...]) -> None:
    for layer in layers:
        gain, bias = (f"{prefix(layer)}.attention.output.LayerNorm.{name}" for name in ("weight", "bias"))
        weights[gain], weights[bias] = weights[bias], weights[gain]


MISTAKES = (
    Mistake(
        "ids one too high", "Each token gets the embedding of the next id.",
        "a vocabulary counted from one, or rebuilt with one special token more", "first", _WORD,
        "the embeddings of other tokens are looked up (ids off by one)", {"word": _next_id},
    ),
    Mistake(
        "positions from one", "The first token has position 1.", "ports to languages that count from one", "first", _POSITION,
        "positions are shifted by one", {"positions": _from_one},
    ),
    Mistake(
        "position table stretched", "The table is interpolated to twice its length.", "checkpoints made fit for longer texts",
        "first", _POSITION, "positions are interpolated, or are others than the checkpoint's", {"positions": _stretched},
    ),
    Mistake(
        "sinusoids for the table", "Positions are sines and cosines, not the table that was learned.",
        "encoders that began as the 2017 Transformer", "first", _POSITION, "sinusoidal positions, not the table",
        {"positions": _sinusoids},
    ),
    Mistake(
        "types one token late", "The second segment begins one token late.", "preprocessing that builds segment ids by hand",
        "first", ("embeddings.token_type_embeddings",), "token types are shifted", {"types": _late_types},
    ),
    Mistake(
        "types not added", "The token-type embedding is not added.", "code paths shared with DistilBERT", "first",
        ("embeddings.LayerNorm",), "token types are left out of the sum", {"embedding_norm": _without_types},
    ),
    Mistake(
        "words times root of width", "Word embeddings are multiplied by the root of the width.", "encoders of the 2017 Transformer",
        "first", ("embeddings.LayerNorm",), "word embeddings are scaled, by √H", {"embedding_norm": _scaled_words},
    ),
    Mistake(
        "positions after the norm", "Position embeddings are added to the normed sum.", "ports from a paper's figure", "first",
        ("embeddings.LayerNorm",), "positions are added after the norm", {"embedding_norm": _positions_after},
    ),
    Mistake(
        "epsilon of the framework", "Every norm has epsilon 1e-5.", "nn.LayerNorm without an argument", "all", _NORMS,
        "epsilon is 1e-5", {"norm": _default_epsilon},
    ),
    Mistake(
        "root mean square for variance", "No norm subtracts the mean.", "engines made for Llama", "all", _NORMS,
        "RMSNorm: the mean is not subtracted", {"norm": _mean_square},
    ),
    Mistake(
        "the Annotated Transformer's norm", "Norms divide by the unbiased deviation plus 1e-6.", "ports of that tutorial", "all",
        _NORMS, "the deviation is unbiased (n - 1), or epsilon is beside the root; a name of either part is right",
        {"norm": _annotated},
    ),
    Mistake(
        "norm over positions too", "Mean and variance are over positions and features.", "layer_norm with x.shape[1:]", "some",
        ("output.LayerNorm",), "the norm is over wrong axes", {"output_norm": _over_positions},
    ),
    Mistake(
        "norm's bias not loaded", "The bias of the output norm is zero.", "a name (`beta`) that the loader does not know", "first",
        ("output.LayerNorm",), "the norm's bias is missing", load=_no_bias,
    ),
    Mistake(
        "gain plus one", "Norms multiply by 1 + gain.", "engines with zero-centred gains (Gemma, LayerNorm1P)", "all",
        ("output.LayerNorm",), "the gain is one too large", load=_one_more,
    ),
    Mistake(
        "gain and bias exchanged", "The norm's gain is its bias and its bias its gain.", "positional arguments in a wrong order",
        "first", ("attention.output.LayerNorm",), "the norm's gain and bias are exchanged", load=_exchanged,
    ),
    Mistake(
        "norms in half", "Norms are computed on bfloat16 in a float32 network.", "autocast lists made by hand", "all", _NORMS,
        "the norm, or what goes into it, is rounded to bfloat16", {"norm": _in_half},
    ),
    Mistake(
        "fast inverse root", "The inverse root is the bit trick with one Newton step.", "kernels for microcontrollers", "all",
        _NORMS, "the inverse deviation is approximate: the norm's result has a wrong scale", {"norm": _fast_root},
    ),
)  # fmt: skip
