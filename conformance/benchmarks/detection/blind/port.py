"""A BERT in plain tensors, one function a step, any of which a `Mistake` replaces in the layers that it is planted in."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from conformance import Architecture, Checkpoint, TorchBatch

Weights = dict[str, Tensor]
Operation = Callable[..., Tensor]


@dataclass(frozen=True)
class Mistake:
    """One way in which a port of BERT goes wrong.

    Attributes:
        name: in the author's words.
        wrong: what is wrong.
        seen_in: the code in which one would expect it.
        where: the layers that it is planted in, `first`, `last`, `later` (all but the first), `some` (every second) or `all`;
            steps outside of layers that `operations` replaces are replaced anyway.
        origins: the activations that are wrong for their own inputs; within a layer by their names there.
        hoped: what a report says at best.
        operations: the steps that are replaced, by name.
        load: changes the weights of the layers of which it gets the numbers.
    """

    name: str
    wrong: str
    seen_in: str
    where: str
    origins: tuple[str, ...]
    hoped: str
    operations: Mapping[str, Operation] = field(default_factory=dict)
    load: Callable[[Weights, tuple[int, ...]], None] | None = None

    def layers(self, architecture: Architecture) -> tuple[int, ...]:
        """The numbers of the layers that it is planted in."""
        every = tuple(range(architecture.num_hidden_layers))
        return {"first": every[:1], "last": every[-1:], "later": every[1:], "some": every[::2], "all": every}[self.where]

    def prepare(self, checkpoint: Checkpoint, device: str, dtype: str) -> "Port":
        """The port with this mistake in it."""
        weights = dict(checkpoint.state_dict(dtype, device))
        layers = self.layers(checkpoint.architecture)
        if self.load:
            self.load(weights, layers)
        return Port(checkpoint.architecture, weights, self.operations, layers)


def prefix(layer: int) -> str:
    """What the names of a layer's parameters begin with."""
    return f"bert.encoder.layer.{layer}"


@dataclass(frozen=True)
class Port:
    """Runs the network on a batch; a mapping of every activation.

    Attributes:
        found: the activations of the call that is running, by name.
    """

    architecture: Architecture
    weights: Weights
    operations: Mapping[str, Operation] = field(default_factory=dict)
    layers: tuple[int, ...] = ()
    found: dict[str, Tensor] = field(default_factory=dict)

    def step(self, name: str, layer: int | None, *inputs: Any) -> Tensor:
        """One step, right or replaced."""
        replaced = name in self.operations and (layer is None or layer in self.layers)
        return (self.operations[name] if replaced else OPERATIONS[name])(self, layer, *inputs)

    def linear(self, name: str, x: Tensor) -> Tensor:
        """`x Wᵀ + b` of the parameters of that name."""
        return F.linear(x, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])

    def split(self, x: Tensor) -> Tensor:
        """(B, S, H) -> (B, h, S, d)."""
        return x.view(*x.shape[:-1], self.architecture.num_attention_heads, -1).transpose(1, 2)

    @torch.no_grad()
    def __call__(self, batch: TorchBatch) -> dict[str, Tensor]:
        """Every activation of the batch, by name."""
        full = batch.filled()
        types, mask = full.token_type_ids, full.attention_mask
        assert types is not None
        assert mask is not None
        self.found.clear()
        self.found.update(self._embedded(full.input_ids, types, mask))
        hidden = self.found["embeddings.dropout"]
        for layer in range(self.architecture.num_hidden_layers):
            of_layer = self._layer(layer, hidden, mask)
            self.found.update({f"encoder.layer.{layer}.{name}": value for name, value in of_layer.items()})
            hidden = of_layer["output.LayerNorm"]
        return self.found | self._heads(self.step("last", None, hidden))

    def layer_before(self) -> Tensor:
        """What goes into the last layer."""
        before = self.architecture.num_hidden_layers - 2
        return self.found["embeddings.dropout" if before < 0 else f"encoder.layer.{before}.output.LayerNorm"]

    def _embedded(self, ids: Tensor, types: Tensor, mask: Tensor) -> dict[str, Tensor]:
        word, kind = self.step("word", None, ids), self.step("types", None, types)
        position = self.step("positions", None, ids, types, mask)
        normed = self.step("embedding_norm", None, word, position, kind)
        return {
            "embeddings.word_embeddings": word,
            "embeddings.position_embeddings": position,
            "embeddings.token_type_embeddings": kind,
            "embeddings.LayerNorm": normed,
            "embeddings.dropout": self.step("embedding_dropout", None, normed),
        }

    def _layer(self, i: int, hidden: Tensor, mask: Tensor) -> dict[str, Tensor]:
        query, key, value = (self.step(part, i, hidden) for part in ("query", "key", "value"))
        scores = self.step("scores", i, query, key)
        probs = self.step("probs", i, scores, mask)
        dropped = self.step("attention_dropout", i, probs)
        context = self.step("context", i, dropped, value)
        projected = self.step("attention_dense", i, context)
        attended = self.step("attention_norm", i, projected, hidden)
        inner = self.step("inner", i, attended)
        activated = self.step("activation", i, inner)
        outer = self.step("outer", i, activated)
        return {
            "attention.self.query": query,
            "attention.self.key": key,
            "attention.self.value": value,
            "attention.self.scores": scores,
            "attention.self.probs": probs,
            "attention.self.dropout": dropped,
            "attention.self.context": context,
            "attention.output.dense": projected,
            "attention.output.LayerNorm": attended,
            "intermediate.dense": inner,
            "intermediate.intermediate_act_fn": activated,
            "output.dense": outer,
            "output.LayerNorm": self.step("output_norm", i, outer, attended, hidden),
        }

    def _heads(self, hidden: Tensor) -> dict[str, Tensor]:
        pooler = self.step("pooler", None, hidden)
        pooled = self.step("pooler_activation", None, pooler)
        dense = self.step("transform", None, hidden)
        activated = self.step("transform_activation", None, dense)
        normed = self.step("transform_norm", None, activated)
        return {
            "pooler.dense": pooler,
            "pooler.activation": pooled,
            "cls.predictions.transform.dense": dense,
            "cls.predictions.transform.transform_act_fn": activated,
            "cls.predictions.transform.LayerNorm": normed,
            "cls.predictions.decoder": self.step("decoder", None, normed),
            "cls.seq_relationship": self.step("next_sentence", None, pooled, hidden),
        }


def _table(port: Port, name: str, ids: Tensor) -> Tensor:
    return port.weights[f"bert.embeddings.{name}_embeddings.weight"][ids]


def _positions(port: Port, _: None, ids: Tensor, types: Tensor, mask: Tensor) -> Tensor:
    return _table(port, "position", torch.arange(ids.shape[1]).expand_as(ids))


def norm(port: Port, layer: int | None, name: str, x: Tensor) -> Tensor:
    """LayerNorm with the parameters of that name."""
    eps = port.architecture.layer_norm_eps
    return F.layer_norm(x, x.shape[-1:], port.weights[f"{name}.weight"], port.weights[f"{name}.bias"], eps)


def scores(port: Port, layer: int, query: Tensor, key: Tensor) -> Tensor:
    """`q kᵀ / √d`: (B, S, H), (B, S, H) -> (B, h, S, S)."""
    return port.split(query) @ port.split(key).transpose(-1, -2) / math.sqrt(port.architecture.head_size)


def probs(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    """Softmax over the keys that are attended to."""
    return x.masked_fill(mask[:, None, None] == 0, torch.finfo(x.dtype).min).softmax(-1)


def context(port: Port, layer: int, weights: Tensor, value: Tensor) -> Tensor:
    """`probs · v`, heads side by side: (B, h, S, S), (B, S, H) -> (B, S, H)."""
    return (weights @ port.split(value)).transpose(1, 2).flatten(2)


def _of_layer(name: str) -> Operation:
    return lambda port, layer, x: port.linear(f"{prefix(layer)}.{name}", x)


def _head(name: str) -> Operation:
    return lambda port, _, x: port.linear(name, x)


def _residual(name: str) -> Operation:
    return lambda port, layer, x, skip, *_: port.step("norm", layer, f"{prefix(layer)}.{name}", x + skip)


OPERATIONS: Mapping[str, Operation] = {
    "word": lambda port, _, ids: _table(port, "word", ids),
    "types": lambda port, _, types: _table(port, "token_type", types),
    "positions": _positions,
    "norm": norm,
    "embedding_norm": lambda port, _, w, p, t: port.step("norm", None, "bert.embeddings.LayerNorm", w + t + p),
    "embedding_dropout": lambda port, _, x: x,
    "query": _of_layer("attention.self.query"),
    "key": _of_layer("attention.self.key"),
    "value": _of_layer("attention.self.value"),
    "scores": scores,
    "probs": probs,
    "attention_dropout": lambda port, _, x: x,
    "context": context,
    "attention_dense": _of_layer("attention.output.dense"),
    "attention_norm": _residual("attention.output.LayerNorm"),
    "inner": _of_layer("intermediate.dense"),
    "activation": lambda port, _, x: F.gelu(x),
    "outer": _of_layer("output.dense"),
    "output_norm": _residual("output.LayerNorm"),
    "last": lambda port, _, hidden: hidden,
    "pooler": lambda port, _, hidden: port.linear("bert.pooler.dense", hidden[:, 0]),
    "pooler_activation": lambda port, _, x: x.tanh(),
    "transform": _head("cls.predictions.transform.dense"),
    "transform_activation": lambda port, _, x: F.gelu(x),
    "transform_norm": lambda port, _, x: port.step("norm", None, "cls.predictions.transform.LayerNorm", x),
    "decoder": lambda port, _, x: F.linear(
        x, port.weights["bert.embeddings.word_embeddings.weight"], port.weights["cls.predictions.bias"]
    ),
    "next_sentence": lambda port, _, pooled, hidden: port.linear("cls.seq_relationship", pooled),
}
"""The steps of a correct BERT, by name."""
