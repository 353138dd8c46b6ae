"""Mistakes in the feed-forward network and in its activation function."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from conformance.benchmarks.detection.blind.port import Mistake, Port, Weights, prefix

_INNER, _ACTIVATED, _OUTER = "intermediate.dense", "intermediate.intermediate_act_fn", "output.dense"
_GELUS = (_ACTIVATED, "cls.predictions.transform.transform_act_fn")


def _with_three_terms(port: Port, layer: int | None, x: Tensor) -> Tensor:
    scaled = x.float() / math.sqrt(2)
    t = 1 / (1 + 0.47047 * scaled.abs())
    erf = scaled.sign() * (1 - t * (0.3480242 + t * (-0.0958798 + t * 0.7478556)) * (-(scaled**2)).exp())
    return (x.float() * (1 + erf) / 2).to(x.dtype)


def _with_a_parabola(port: Port, layer: int | None, x: Tensor) -> Tensor:
    scaled = x / math.sqrt(2)
    erf = scaled.sign() * (1 - 0.2888 * (scaled.abs().clamp_max(1.769) - 1.769) ** 2)
    return x * (1 + erf) / 2


def _bias_of_the_first_rank(weights: Weights, layers: tuple[int, ...]) -> None:
    for layer in layers:
        key = f"{prefix(layer)}.{_INNER}.bias"
        weights[key] = weights[key].chunk(2)[0].repeat(2)


def _in_one_buffer(port: Port, layer: int, x: Tensor) -> Tensor:
    length = x.shape[1]
    last = port.linear(f"{prefix(layer)}.{_OUTER}", x[:, -4:])
    return last.repeat(1, math.ceil(length / 4), 1)[:, :length]


def _of_one_rank(port: Port, layer: int, x: Tensor) -> Tensor:
    half, name = x.shape[-1] // 2, f"{prefix(layer)}.{_OUTER}"
    return F.linear(x[..., :half], port.weights[f"{name}.weight"][:, :half], port.weights[f"{name}.bias"])


def _permuted(weights: Weights, layers: tuple[int, ...]) -> None:
    for layer in layers:
        name = f"{prefix(layer)}.{_INNER}"
        order = torch.linalg.vector_norm(weights[f"{name}.weight"].float(), dim=1).argsort()
        for key in (f"{name}.weight", f"{name}.bias"):
            weights[key] = weights[key][order]


MISTAKES = (
    Mistake(
        "erf with three terms",
        "GELU has an approximation of erf that is off by up to 0.000025 (Abramowitz and Stegun 7.1.25).",
        "a runtime without erf, as an embedded one or a shader",
        "all",
        _GELUS,
        "says that erf, or GELU, is approximated",
        {"activation": _with_three_terms, "transform_activation": _with_three_terms},
    ),
    Mistake(
        "GELU of I-BERT",
        "GELU has a parabola in place of erf, with the constants -0.2888 and -1.769.",
        "I-BERT's integer GELU, in a conversion for accelerators without floating point",
        "all",
        _GELUS,
        "says that GELU is approximated by a polynomial, or is I-BERT's",
        {"activation": _with_a_parabola, "transform_activation": _with_a_parabola},
    ),
    Mistake(
        "bias of the first rank",
        "The second half of the inner features has the bias of the first half.",
        "tensor parallelism that cuts the weight for each rank but not the bias",
        "all",
        (_INNER,),
        "says that the bias of half of the inner features is that of the other half",
        load=_bias_of_the_first_rank,
    ),
    Mistake(
        "chunks in one buffer",
        "Every chunk of 4 tokens has the output of the last chunk.",
        "a feed-forward network in chunks, whose results are views of one reused buffer",
        "last",
        (_OUTER,),
        "says that tokens have the output of other tokens, or of the last four",
        {"outer": _in_one_buffer},
    ),
    Mistake(
        "no sum over the ranks",
        "The outer projection sums over the first half of the inner features only.",
        "tensor parallelism over two ranks without the all-reduce after the row-parallel projection",
        "all",
        (_OUTER,),
        "says that half of the inner features are left out",
        {"outer": _of_one_rank},
    ),
    Mistake(
        "inner features permuted on one side",
        "The inner features are put in order of their weights' norms, and the outer projection's columns are not.",
        "a permutation of channels for 2:4 sparsity or for pruning, applied to one of the two weights",
        "first",
        (_INNER,),
        "says that the inner features are permuted",
        load=_permuted,
    ),
)
