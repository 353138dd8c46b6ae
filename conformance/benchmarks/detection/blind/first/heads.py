"""Pooler and heads, and a layer that accumulates in half precision."""

import torch
from torch import Tensor
from torch.nn import functional as F

from conformance.benchmarks.detection.blind.port import Mistake, Port, prefix


def _accumulated_in_half(port: Port, layer: int, x: Tensor) -> Tensor:
    name = f"{prefix(layer)}.output.dense"
    total = torch.zeros(*x.shape[:-1], port.architecture.hidden_size, dtype=torch.float16)
    for a, b in zip(torch.split(x, 16, -1), torch.split(port.weights[f"{name}.weight"], 16, -1), strict=True):
        total = total + F.linear(a.float(), b.float()).half()
    return total.to(x.dtype) + port.weights[f"{name}.bias"]


MISTAKES = (
    Mistake(
        "accumulated in float16", "partial sums of 16 products are added up in float16", "a kernel for half precision", "some",
        ("output.dense",), "reduced precision, accumulated in 11 bits", {"outer": _accumulated_in_half},
    ),
    Mistake(
        "mean pooled", "the pooler reads the mean over all positions, padding too", "a port from sentence-transformers", "all",
        ("pooler.dense",), "the pooler takes the mean", {"pooler": lambda port, _, x: port.linear("bert.pooler.dense", x.mean(1))},
    ),
    Mistake(
        "next-sentence logits reversed", "the two logits are in the other order", "a label table from another task", "all",
        ("cls.seq_relationship",), "the logits are exchanged",
        {"next_sentence": lambda port, _, pooled, hidden: port.linear("cls.seq_relationship", pooled).flip(-1)},
    ),
    Mistake(
        "next sentence without pooler", "the next-sentence head reads the first token's hidden state",
        "a model built with add_pooling_layer=False", "all", ("cls.seq_relationship",), "the pooler is left out",
        {"next_sentence": lambda port, _, pooled, hidden: port.linear("cls.seq_relationship", hidden[:, 0])},
    ),
    Mistake(
        "heads read the layer before", "pooler and masked-LM head read the hidden state of the last layer but one",
        "hidden_states[-2]", "all", ("pooler.dense", "cls.predictions.transform.dense"), "the heads read another layer's output",
        {"last": lambda port, _, hidden: port.layer_before()},
    ),
)  # fmt: skip
