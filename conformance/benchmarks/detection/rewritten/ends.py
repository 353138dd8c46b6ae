"""Embeddings, pooler and losses, and what layers hand on at padded positions."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from conformance.benchmarks.detection.bert import Bert
from conformance.benchmarks.detection.planted.plant import override
from conformance.benchmarks.detection.rewritten.formats import at_least_float32
from conformance.benchmarks.detection.rewritten.places import every
from conformance.benchmarks.detection.steps import LayerNorm, Linear, LogProbsLoss, Loss, SinusoidLookup
from conformance.model.batch import IGNORED_LABEL


def one_hot(table: Tensor, rows: Tensor) -> Tensor:
    """A product of ones and zeros with the table."""
    return F.one_hot(rows, len(table)).to(table.dtype) @ table


def pooled_everywhere(model: Bert) -> None:
    """The pooler of the whole sequence, of which the first token is taken."""
    if model.pooler:
        dense = model.pooler.dense
        override(dense, "forward", lambda hidden, mask: dense.product(hidden)[:, 0])


def padding_zeroed(model: Bert) -> None:
    """Every layer reads zeros at padded positions."""
    for index in range(model.architecture.num_hidden_layers):
        layer = model.layer(index)
        right = layer.forward
        override(layer, "forward", lambda hidden, mask, right=right: right(hidden, mask) * mask[:, :, None])


def losses_by_hand(model: Bert) -> None:
    """Log-softmax, gathered at the labels, summed over labelled rows, divided by their number."""

    def each(logits: Tensor, labels: Tensor) -> Tensor:
        kept = labels != IGNORED_LABEL
        log_probs = torch.log_softmax(logits[kept], -1)
        return -log_probs.gather(-1, labels[kept, None]).sum() / kept.sum()

    def change(loss: Loss) -> None:
        if not isinstance(loss, LogProbsLoss):
            override(loss, "each", at_least_float32(each))

    every(Loss, change)(model)


def float32_sinusoids(model: Bert) -> None:
    """Sinusoids computed in float32 throughout, the rate as an exponential: as tutorials have them."""
    lookup = model.embeddings.position_embeddings
    if isinstance(lookup, SinusoidLookup):
        rows, width = lookup.weight.shape
        rate = torch.exp(torch.arange(0, width, 2).float() * (-math.log(10000.0) / width))
        angles = torch.arange(rows).float()[:, None] * rate
        lookup.weight = torch.stack([angles.sin(), angles.cos()], -1).flatten(1)[:, :width].to(lookup.weight)


def losses_of_one_hot_labels(model: Bert) -> None:
    """The labels as rows of ones and zeros, times the logarithms of softmax; a row's own loss first, then their mean."""

    def each(logits: Tensor, labels: Tensor) -> Tensor:
        kept = labels != IGNORED_LABEL
        rows = F.one_hot(labels[kept], logits.shape[-1]).to(logits.dtype)
        return (torch.logsumexp(logits[kept], -1) - (rows * logits[kept]).sum(-1)).mean()

    def change(loss: Loss) -> None:
        if not isinstance(loss, LogProbsLoss):
            override(loss, "each", at_least_float32(each))

    every(Loss, change)(model)


def float32_residuals(model: Bert) -> None:
    """What layers hand on stays in at least float32, and is rounded where a product reads it: a residual stream in float32."""

    def product(linear: Linear, x: Tensor) -> Tensor:
        return F.linear(x.to(linear.weight.dtype), linear.weight, linear.bias)

    def normalise(norm: LayerNorm, x: Tensor) -> Tensor:
        dtype = torch.promote_types(x.dtype, torch.float32)
        return F.layer_norm(x.to(dtype), x.shape[-1:], norm.weight.to(dtype), norm.bias.to(dtype), norm.eps)

    every(Linear, lambda linear: override(linear, "product", lambda x: product(linear, x)))(model)
    every(LayerNorm, lambda norm: override(norm, "normalise", lambda x: normalise(norm, x)))(model)
