"""Changes of embeddings, pooler and losses, and of the layers' results at padded positions."""

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
    """Look up rows of a table as the product of one-hot rows with the table."""
    return F.one_hot(rows, len(table)).to(table.dtype) @ table


def pooled_everywhere(model: Bert) -> None:
    """Apply the pooler to the whole sequence, then select the first token."""
    if model.pooler:
        dense = model.pooler.dense
        override(dense, "forward", lambda hidden, mask: dense.product(hidden)[:, 0])


def padding_zeroed(model: Bert) -> None:
    """Set every layer's result to zero at padded positions."""
    for index in range(model.architecture.num_hidden_layers):
        layer = model.layer(index)
        right = layer.forward
        override(layer, "forward", lambda hidden, mask, right=right: right(hidden, mask) * mask[:, :, None])


def losses_by_hand(model: Bert) -> None:
    """Compute losses from the log-softmax: gather it at the labels, sum over labelled rows, and divide by their number."""

    def each(logits: Tensor, labels: Tensor) -> Tensor:
        kept = labels != IGNORED_LABEL
        log_probs = torch.log_softmax(logits[kept], -1)
        return -log_probs.gather(-1, labels[kept, None]).sum() / kept.sum()

    def change(loss: Loss) -> None:
        if not isinstance(loss, LogProbsLoss):
            override(loss, "each", at_least_float32(each))

    every(Loss, change)(model)


def float32_sinusoids(model: Bert) -> None:
    """Compute the sinusoids in float32 throughout, with the rate as an exponential, as tutorials do."""
    lookup = model.embeddings.position_embeddings
    if isinstance(lookup, SinusoidLookup):
        rows, width = lookup.weight.shape
        rate = torch.exp(torch.arange(0, width, 2).float() * (-math.log(10000.0) / width))
        angles = torch.arange(rows).float()[:, None] * rate
        lookup.weight = torch.stack([angles.sin(), angles.cos()], -1).flatten(1)[:, :width].to(lookup.weight)


def losses_of_one_hot_labels(model: Bert) -> None:
    """Compute losses from one-hot labels times log-softmax: each row's loss first, then their mean."""

    def each(logits: Tensor, labels: Tensor) -> Tensor:
        kept = labels != IGNORED_LABEL
        rows = F.one_hot(labels[kept], logits.shape[-1]).to(logits.dtype)
        return (torch.logsumexp(logits[kept], -1) - (rows * logits[kept]).sum(-1)).mean()

    def change(loss: Loss) -> None:
        if not isinstance(loss, LogProbsLoss):
            override(loss, "each", at_least_float32(each))

    every(Loss, change)(model)


def float32_residuals(model: Bert) -> None:
    """Keep the layers' results in at least float32, a float32 residual stream, and round them where a product reads them."""

    def product(linear: Linear, x: Tensor) -> Tensor:
        return F.linear(x.to(linear.weight.dtype), linear.weight, linear.bias)

    def normalise(norm: LayerNorm, x: Tensor) -> Tensor:
        dtype = torch.promote_types(x.dtype, torch.float32)
        return F.layer_norm(x.to(dtype), x.shape[-1:], norm.weight.to(dtype), norm.bias.to(dtype), norm.eps)

    every(Linear, lambda linear: override(linear, "product", lambda x: product(linear, x)))(model)
    every(LayerNorm, lambda norm: override(norm, "normalise", lambda x: normalise(norm, x)))(model)
