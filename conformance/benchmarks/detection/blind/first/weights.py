"""Weights that are loaded wrongly, and weights that are stored in too few bits."""

from collections.abc import Callable

import torch
from torch import Tensor

from conformance.benchmarks.detection.blind.port import Mistake, Weights, prefix

Load = Callable[[Weights, tuple[int, ...]], None]

_PROJECTIONS = ("attention.self.query", "attention.self.key", "attention.self.value")
_LINEAR = (*_PROJECTIONS, "attention.output.dense", "intermediate.dense", "output.dense")
_NORMS = ("attention.output.LayerNorm", "output.LayerNorm")


def _altered(change: Callable[[Tensor], Tensor], *names: str) -> Load:
    """Each of these parameters of a layer is changed."""

    def load(weights: Weights, layers: tuple[int, ...]) -> None:
        for name in (f"{prefix(i)}.{name}" for i in layers for name in names):
            weights[name] = change(weights[name])

    return load


def _exchanged(one: str, other: str) -> Load:
    """Two modules of a layer have each other's parameters."""

    def load(weights: Weights, layers: tuple[int, ...]) -> None:
        for i in layers:
            for part in ("weight", "bias"):
                a, b = f"{prefix(i)}.{one}.{part}", f"{prefix(i)}.{other}.{part}"
                weights[a], weights[b] = weights[b], weights[a]

    return load


def _fused_by_rank(weights: Weights, layers: tuple[int, ...], ranks: int = 4) -> None:
    for i in layers:
        for part in ("weight", "bias"):
            names = [f"{prefix(i)}.{p}.{part}" for p in _PROJECTIONS]
            fused = torch.stack([weights[n].view(ranks, -1, *weights[n].shape[1:]) for n in names], 1).flatten(0, 2)
            weights.update(zip(names, fused.chunk(3), strict=True))


def _one_bias(weights: Weights, layers: tuple[int, ...]) -> None:
    for i in layers:
        for name in _PROJECTIONS[1:]:
            weights[f"{prefix(i)}.{name}.bias"] = weights[f"{prefix(i)}.{_PROJECTIONS[0]}.bias"]


def _from_layer_before(weights: Weights, layers: tuple[int, ...]) -> None:
    for i in layers:
        for part in ("weight", "bias"):
            weights[f"{prefix(i)}.attention.output.dense.{part}"] = weights[f"{prefix(i - 1)}.attention.output.dense.{part}"]


def _initial_norms(weights: Weights, layers: tuple[int, ...]) -> None:
    for name in list(weights):
        if "LayerNorm" in name:
            weights[name] = torch.full_like(weights[name], float(name.endswith("weight")))


def _symmetric(x: Tensor, largest: Tensor) -> Tensor:
    scale = largest / 127
    return (x / scale).round() * scale


def _new_rows(weights: Weights, layers: tuple[int, ...]) -> None:
    name = "bert.embeddings.word_embeddings.weight"
    table = weights[name].clone()
    table[-16:] = table[:-16].mean(0)
    weights[name] = table


def _one_step_further(x: Tensor) -> Tensor:
    sign = torch.randn(x.shape, generator=torch.Generator().manual_seed(1)).sign().to(x.dtype)
    return x - x.std() * 0.05 * sign


MISTAKES = (
    Mistake(
        "query kernel as TensorFlow has it", "the query's kernel is loaded without its transposition, which no shape forbids",
        "a loader of TensorFlow checkpoints", "all", ("attention.self.query",), "query weight transposed",
        load=_altered(lambda w: w.T.contiguous(), "attention.self.query.weight"),
    ),
    Mistake(
        "kernel viewed, not transposed", "a kernel of (in, out) is brought to (out, in) by reshape instead of transpose",
        "a hand-written loader", "first", ("intermediate.dense",), "weight reshaped where it should be transposed",
        load=_altered(lambda w: w.T.reshape(w.shape), "intermediate.dense.weight"),
    ),
    Mistake(
        "query and key exchanged", "query and key have each other's parameters",
        "a table of names for conversion", "last", ("attention.self.query", "attention.self.key"), "query and key exchanged",
        load=_exchanged("attention.self.query", "attention.self.key"),
    ),
    Mistake(
        "key and value exchanged", "key and value have each other's parameters: the fused projection is split as q, v, k",
        "a fused projection", "all", ("attention.self.key", "attention.self.value"), "key and value exchanged",
        load=_exchanged("attention.self.key", "attention.self.value"),
    ),
    Mistake(
        "fused projection by rank", "the fused kernel holds q, k, v of each of four ranks in turn, and is cut in thirds",
        "Megatron-LM's checkpoints", "all", _PROJECTIONS, "query, key and value are taken from a fused kernel in the wrong order",
        load=_fused_by_rank,
    ),
    Mistake(
        "query's bias for all three", "the fused bias is the query's, three times",
        "a fused projection", "last", ("attention.self.key", "attention.self.value"), "key and value add the query's bias",
        load=_one_bias,
    ),
    Mistake(
        "output projection of the layer before", "attention's output projection is that of the layer before",
        "a loop over layers whose index is off in one line", "later", ("attention.output.dense",),
        "weights of the neighbouring layer", load=_from_layer_before,
    ),
    Mistake(
        "norms not loaded", "every LayerNorm has weight 1 and bias 0: names do not match, and loading is not strict",
        "a loader of old checkpoints", "all", ("embeddings.LayerNorm", *_NORMS, "cls.predictions.transform.LayerNorm"),
        "norms have neither weight nor bias", load=_initial_norms,
    ),
    Mistake(
        "norms of a layer exchanged", "the two norms of a layer have each other's parameters",
        "a table of names for conversion", "first", _NORMS, "norms exchanged", load=_exchanged(*_NORMS),
    ),
    Mistake(
        "int8 kernel, one scale", "the kernel is quantised to int8 with one scale for the whole tensor",
        "weight-only quantisation", "first", ("output.dense",), "weight quantised to 8 bits per tensor",
        load=_altered(lambda w: _symmetric(w, w.abs().max()), "output.dense.weight"),
    ),
    Mistake(
        "int8 kernels, scale by channel", "every kernel of the layers is quantised to int8 with a scale for each output",
        "weight-only quantisation", "all", _LINEAR, "weights quantised to 8 bits per channel",
        load=_altered(lambda w: _symmetric(w, w.abs().amax(1, keepdim=True)), *(f"{n}.weight" for n in _LINEAR)),
    ),
    Mistake(
        "float8 kernel", "the kernel is stored as float8 E4M3, with a scale that takes its largest value to 448",
        "a server for inference", "some", ("attention.self.value",), "weight stored in 8-bit floating point",
        load=_altered(
            lambda w: (w * (448 / w.abs().max())).to(torch.float8_e4m3fn).to(w.dtype) * (w.abs().max() / 448),
            "attention.self.value.weight",
        ),
    ),
    Mistake(
        "last words are new", "the table was resized: the last 16 words have the mean of the others",
        "resize_token_embeddings before loading", "all", ("embeddings.word_embeddings", "cls.predictions.decoder"),
        "some rows of the word table differ", load=_new_rows,
    ),
    Mistake(
        "weights of one step later", "the kernel is that after one more step of the optimizer",
        "a checkpoint that is saved after the outputs were recorded", "first", ("attention.self.query",), "weight stale",
        load=_altered(_one_step_further, "attention.self.query.weight"),
    ),
)  # fmt: skip
