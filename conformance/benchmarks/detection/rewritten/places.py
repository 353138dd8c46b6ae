"""Changes that replace steps of a model: all of one kind, by one function or by several in turn."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from typing import Generic, TypeVar

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
    tanh_gelu,
)

Change = Callable[[Bert], None]


M = TypeVar("M", bound=nn.Module)


@dataclass(frozen=True)
class Every(Generic[M]):
    """A change of every module of a kind, in a model or in a part of it.

    Attributes:
        kind: the class of the modules.
        changes: changes of one module, applied in turn, in the order of the modules.
    """

    kind: type[M]
    changes: tuple[Callable[[M], None], ...]

    def __call__(self, model: nn.Module) -> None:
        """Change the modules."""
        found = [module for module in model.modules() if isinstance(module, self.kind)]
        for module, change in zip(found, cycle(self.changes), strict=False):
            change(module)


def every(kind: type[M], *changes: Callable[[M], None]) -> Every[M]:
    """Return a change of every module of a kind; several changes are applied in turn, in the order of the modules."""
    return Every(kind, changes)


def as_it_is(module: nn.Module) -> None:
    """Leave a module unchanged, as one of several changes in turn."""


def norms(*written: Callable[[LayerNorm, Tensor], Tensor]) -> Change:
    """Return a change of every norm, by functions of the module and the sum that it normalizes."""
    return every(LayerNorm, *(partial(_of_itself, "normalise", function) for function in written))


def _of_itself(method: str, function: Callable[..., Tensor], module: nn.Module) -> None:
    """Replace a method by a function of the module and its input."""
    override(module, method, lambda x: function(module, x))


def embedding_norm(written: Callable[[LayerNorm, Tensor], Tensor]) -> Change:
    """Return a change of the norm of the embeddings only."""

    def changed(model: Bert) -> None:
        norm = model.embeddings.last
        if isinstance(norm, LayerNorm):
            _of_itself("normalise", written, norm)

    return changed


def sums(*written: Callable[..., Tensor]) -> Change:
    """Return a change of every sum: of residuals, of the embeddings, of the losses."""
    return every(Sum, *(partial(_method, "add", function) for function in written))


def _method(method: str, function: Callable[..., Tensor], module: nn.Module) -> None:
    """Replace a method by a function of the method's own inputs."""
    override(module, method, function)


def products(*written: Callable[[Linear, Tensor], Tensor]) -> Change:
    """Return a change of every linear product, by functions of the module and its input."""
    return every(Linear, *(partial(_of_itself, "product", function) for function in written))


def feed_forward(written: Callable[[Linear, Tensor], Tensor]) -> Change:
    """Return a change of the two feed-forward products of every layer."""

    def changed(model: Bert) -> None:
        for index in range(model.architecture.num_hidden_layers):
            layer = model.layer(index)
            for linear in (layer.intermediate.dense, layer.output.dense):
                _of_itself("product", written, linear)

    return changed


def softmax(*written: Callable[[Tensor, Tensor], Tensor]) -> Change:
    """Return a change of every softmax, by functions of the scores and a mask (B, 1, 1, S), True at attended keys."""
    return every(Probabilities, *(partial(_of_keys, function) for function in written))


def _of_keys(function: Callable[[Tensor, Tensor], Tensor], probs: Probabilities) -> None:
    override(probs, "forward", lambda s, mask: function(s, mask[:, None, None, :] == 1))


def scores(*written: Callable[[Tensor, Tensor], Tensor]) -> Change:
    """Return a change of every product of queries and keys, (B, h, S, d) each."""
    return every(Scores, *(partial(_method, "product", function) for function in written))


def contexts(*written: Callable[[Tensor, Tensor], Tensor]) -> Change:
    """Return a change of every product of probabilities, (B, h, S, S), and values, (B, h, S, d)."""
    return every(Context, *(partial(_method, "product", function) for function in written))


def lookups(written: Callable[[Tensor, Tensor], Tensor]) -> Change:
    """Return a change of every look-up, by a function of the table and the rows to read."""
    return every(WordLookup, lambda step: override(step, "forward", lambda inputs: written(step.weight, step.rows(inputs))))


def erf_gelus(*written: Callable[[Tensor], Tensor]) -> Change:
    """Return a change of every GELU of the erf form."""
    return every(Pointwise, *(partial(_in_place_of, erf_gelu, function) for function in written))


def tanh_gelus(*written: Callable[[Tensor], Tensor]) -> Change:
    """Return a change of every GELU of the tanh form."""
    return every(Pointwise, *(partial(_in_place_of, tanh_gelu, function) for function in written))


def _in_place_of(usual: Callable[[Tensor], Tensor], function: Callable[[Tensor], Tensor], step: Pointwise) -> None:
    if step.function is usual:
        step.function = function


def attention(*written: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]) -> Change:
    """Return a change of attention as a whole, which exposes neither scores nor probabilities.

    The functions map query, key and value, (B, h, S, d) each, and a mask (B, 1, 1, S), True at attended keys, to the heads'
    results.
    """
    return every(SelfAttention, *(partial(fused_attention, function) for function in written))


def fused_attention(function: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor], own: SelfAttention) -> None:
    """Replace the attention of one layer, as `attention` does."""
    step = own.context

    def context(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        keys = mask[:, None, None, :] == 1
        return step.merge(function(step.split(query), step.split(key), step.split(value), keys))

    def forward(hidden: Tensor, mask: Tensor) -> Tensor:
        made: Tensor = step(own.query(hidden), own.key(hidden), own.value(hidden), mask)
        return made

    override(step, "forward", context)
    override(own, "forward", forward)
