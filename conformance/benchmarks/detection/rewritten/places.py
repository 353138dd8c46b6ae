"""Which steps of a module are written in another way: all of a kind."""

from collections.abc import Callable
from typing import TypeVar

from torch import Tensor, nn

from conformance.benchmarks.detection.bert import Bert, SelfAttention
from conformance.benchmarks.detection.planted.plant import override
from conformance.benchmarks.detection.steps import (
    Context,
    LayerNorm,
    Linear,
    Pointwise,
    Probabilities,
    Scores,
    Sum,
    WordLookup,
    erf_gelu,
)

Change = Callable[[Bert], None]


M = TypeVar("M", bound=nn.Module)


def every(kind: type[M], change: Callable[[M], None]) -> Change:
    """Change every module of a kind."""

    def changed(model: Bert) -> None:
        for module in list(model.modules()):
            if isinstance(module, kind):
                change(module)

    return changed


def norms(written: Callable[[LayerNorm, Tensor], Tensor]) -> Change:
    """Every norm, of the sum that it normalises."""
    return every(LayerNorm, lambda norm: override(norm, "normalise", lambda x: written(norm, x)))


def embedding_norm(written: Callable[[LayerNorm, Tensor], Tensor]) -> Change:
    """The embeddings' norm only."""

    def changed(model: Bert) -> None:
        norm = model.embeddings.last
        if isinstance(norm, LayerNorm):
            override(norm, "normalise", lambda x: written(norm, x))

    return changed


def sums(written: Callable[..., Tensor]) -> Change:
    """Every sum: of a residual, of the embeddings, of the losses."""
    return every(Sum, lambda step: override(step, "add", written))


def products(written: Callable[[Linear, Tensor], Tensor]) -> Change:
    """Every linear product."""
    return every(Linear, lambda linear: override(linear, "product", lambda x: written(linear, x)))


def feed_forward(written: Callable[[Linear, Tensor], Tensor]) -> Change:
    """The two wide products of every layer."""

    def changed(model: Bert) -> None:
        for index in range(model.architecture.num_hidden_layers):
            layer = model.layer(index)
            for linear in (layer.intermediate.dense, layer.output.dense):
                override(linear, "product", lambda x, linear=linear: written(linear, x))

    return changed


def softmax(written: Callable[[Tensor, Tensor], Tensor]) -> Change:
    """Every softmax, of scores and of (B, 1, 1, S), True where a key is attended to."""
    return every(Probabilities, lambda probs: override(probs, "forward", lambda s, mask: written(s, mask[:, None, None, :] == 1)))


def scores(written: Callable[[Tensor, Tensor], Tensor]) -> Change:
    """Every product of queries and keys, (B, h, S, d) each."""
    return every(Scores, lambda step: override(step, "product", written))


def contexts(written: Callable[[Tensor, Tensor], Tensor]) -> Change:
    """Every product of probabilities and values, (B, h, S, S) and (B, h, S, d)."""
    return every(Context, lambda step: override(step, "product", written))


def lookups(written: Callable[[Tensor, Tensor], Tensor]) -> Change:
    """Every look-up, of a table and of rows."""
    return every(WordLookup, lambda step: override(step, "forward", lambda inputs: written(step.weight, step.rows(inputs))))


def erf_gelus(written: Callable[[Tensor], Tensor]) -> Change:
    """Every GELU of the erf form."""

    def change(step: Pointwise) -> None:
        if step.function is erf_gelu:
            step.function = written

    return every(Pointwise, change)


def attention(written: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]) -> Change:
    """Everything from query, key and value, (B, h, S, d) each, and (B, 1, 1, S) keys to the heads' results: no scores, no probs."""

    def change(own: SelfAttention) -> None:
        step = own.context

        def context(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
            keys = mask[:, None, None, :] == 1
            return step.merge(written(step.split(query), step.split(key), step.split(value), keys))

        def forward(hidden: Tensor, mask: Tensor) -> Tensor:
            made: Tensor = step(own.query(hidden), own.key(hidden), own.value(hidden), mask)
            return made

        override(step, "forward", context)
        override(own, "forward", forward)

    return every(SelfAttention, change)
