"""Mistakes that precision, sharding, packing, sorting and a model's mode bring about."""

import torch
from torch import Tensor
from torch.nn import functional as F

from conformance.benchmarks.detection.blind.eighth.fused import fused
from conformance.benchmarks.detection.blind.port import OPERATIONS, Mistake, Operation, Port, Weights, prefix

_INNER, _OUTER, _DENSE = "intermediate.dense", "output.dense", "attention.output.dense"
_FIRST_OF_HEADS = ("pooler.dense", "cls.predictions.transform.dense")
_LENGTHS = "lengths of the call's rows"
_LINEAR = {
    **{name: f"attention.self.{name}" for name in ("query", "key", "value")},
    **{"attention_dense": _DENSE, "inner": _INNER, "outer": _OUTER},
}


def _dropped(port: Port, layer: int, x: Tensor) -> Tensor:
    rate = port.architecture.attention_probs_dropout_prob
    kept = torch.rand(x.shape, generator=torch.Generator().manual_seed(layer)) >= rate
    return x * kept / (1 - rate)


def _bias_of_two_devices(step: str, name: str) -> Operation:
    """That step in halves of its inputs, each of which adds the bias."""

    def replaced(port: Port, layer: int, x: Tensor) -> Tensor:
        return OPERATIONS[step](port, layer, x) + port.weights[f"{prefix(layer)}.{name}.bias"]

    return replaced


def _round_to_integers(weights: Weights, layers: tuple[int, ...]) -> None:
    """8 bits, symmetric, one scale for a tensor."""
    for layer in layers:
        for name in (_INNER, _OUTER):
            full = f"{prefix(layer)}.{name}.weight"
            weight = weights[full].float()
            scale = weight.abs().max() / 127
            weights[full] = ((weight / scale).round() * scale).to(weights[full].dtype)


def _layer_before(port: Port, _: None, hidden: Tensor) -> Tensor:
    return port.layer_before()


def _kept_lengths(port: Port, _: None, ids: Tensor, types: Tensor, mask: Tensor) -> Tensor:
    port.found[_LENGTHS] = mask.sum(-1)
    return OPERATIONS["positions"](port, None, ids, types, mask)


def _by_length(port: Port, _: None, hidden: Tensor) -> Tensor:
    return hidden[port.found.pop(_LENGTHS).argsort(stable=True)]


def _in_bfloat16(name: str) -> Operation:
    """The linear of that name as autocast computes it."""

    def replaced(port: Port, layer: int, x: Tensor) -> Tensor:
        weight, bias = (port.weights[f"{prefix(layer)}.{name}.{kind}"].bfloat16() for kind in ("weight", "bias"))
        return F.linear(x.bfloat16(), weight, bias).to(x.dtype)

    return replaced


def _over_the_batch(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """The keys and values of all rows in one row, which every query attends to."""

    def packed(x: Tensor) -> Tensor:
        return x.transpose(0, 1).flatten(1, 2).expand(len(query), -1, -1, -1)

    return F.scaled_dot_product_attention(query, packed(key), packed(value), attn_mask=mask.flatten()[None, None, None] != 0)


MISTAKES = (
    Mistake(
        "attention's dropout left on",
        "A tenth of the attention's weights are dropped, and the others scaled up, as in training.",
        "scaled_dot_product_attention given dropout_p without a look at self.training; transformers issue 278 on model.eval()",
        "all",
        ("attention.self.dropout",),
        "says that dropout is active",
        {"attention_dropout": _dropped},
    ),
    Mistake(
        "bias added on both devices",
        "Each of two devices adds the whole bias before their outputs are summed.",
        "text-generation-inference issue 1036, slapo issue 10, MinivLLM issue 80, Paddle pull request 35186",
        "all",
        (_DENSE, _OUTER),
        "says that the bias of the output projections is added twice",
        {"attention_dense": _bias_of_two_devices("attention_dense", _DENSE), "outer": _bias_of_two_devices("outer", _OUTER)},
    ),
    Mistake(
        "8 bits, one scale a tensor",
        "The feed-forward's weights are rounded to 255 levels, with one scale for each tensor.",
        "onnxruntime issue 5644, TensorRT issue 4058; an export that quantises and does not say so",
        "all",
        (_INNER, _OUTER),
        "says that the feed-forward's weights are quantised, or rounded",
        load=_round_to_integers,
    ),
    Mistake(
        "heads on the layer before the last",
        "The heads take what goes into the last layer.",
        "hidden_states[-2], the default of bert-as-service, or a loop that ends one layer early",
        "all",
        _FIRST_OF_HEADS,
        "says that the last layer is not used, or that the heads take the layer before",
        {"last": _layer_before},
    ),
    Mistake(
        "rows left sorted by length",
        "The rows go to the heads in the order of their lengths, not in that of the batch.",
        "batches sorted by length for speed, of which the results are not put back in order",
        "all",
        _FIRST_OF_HEADS,
        "says that the rows of the batch are in another order",
        {"positions": _kept_lengths, "last": _by_length},
    ),
    Mistake(
        "autocast left on",
        "The linears of the layers are computed in bfloat16.",
        "torch.autocast around evaluation, or a backend that lowers the precision of products by itself",
        "all",
        tuple(_LINEAR.values()),
        "says that the linears are computed in bfloat16, or in a lower precision",
        {step: _in_bfloat16(name) for step, name in _LINEAR.items()},
    ),
    Mistake(
        "packed rows attend to each other",
        "The rows of the batch are packed into one, without their bounds: a token attends to all rows.",
        "packing for fused attention with cu_seqlens left out, as discussed in flash-attention pull request 499",
        "all",
        ("attention.self.context",),
        "says that the attention goes across the rows of the batch",
        fused(_over_the_batch),
    ),
)
