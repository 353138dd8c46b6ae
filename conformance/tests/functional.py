"""A BERT of plain functions, any of which may be written another way: correct variants, and a candidate for every architecture."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn import functional as F

IGNORED = -100


def _norm(x: Any, weight: Any, bias: Any, eps: float, name: str) -> Any:
    return F.layer_norm(x, x.shape[-1:], weight, bias, eps)


def _softmax(scores: Any, keys: Any) -> Any:
    return torch.softmax(scores.masked_fill(~keys, -math.inf), -1)


@dataclass(frozen=True)
class Pieces:
    """What can be written in more than one way."""

    linear: Callable[..., Any] = lambda x, weight, bias, name: F.linear(x, weight, bias)
    scores: Callable[..., Any] = lambda q, k: q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    softmax: Callable[..., Any] = _softmax
    context: Callable[..., Any] = lambda p, v: p @ v
    activation: Callable[..., Any] = lambda x, name: F.gelu(x)
    add: Callable[..., Any] = lambda x, skip: x + skip
    norm: Callable[..., Any] = _norm


@dataclass(frozen=True)
class Functional:
    """The candidate: `computes` in another dtype if asked, exposes what `exposes` lets through, cast to the asked-for dtype."""

    pieces: Pieces = field(default_factory=Pieces)
    exposes: Callable[[str], bool] = lambda name: True
    computes: str | None = None

    def prepare(self, checkpoint: Any, device: str, dtype: str) -> Any:
        stored = {n: torch.tensor(w).to(getattr(torch, dtype)) for n, w in checkpoint.weights.items()}
        weights = {n: w.to(getattr(torch, self.computes or dtype)) for n, w in stored.items()}

        def runner(batch: Any) -> dict[str, Any]:
            found: dict[str, Any] = {}
            with torch.no_grad():
                _Forward(checkpoint.architecture, weights, self.pieces, found).run(batch)
            return {n: v.to(getattr(torch, dtype)) for n, v in found.items() if self.exposes(n)}

        return runner


class _Forward:
    def __init__(self, architecture: Any, weights: Any, pieces: Pieces, found: dict[str, Any]) -> None:
        self.a, self.w, self.p, self.found = architecture, weights, pieces, found

    def see(self, name: str, value: Any) -> Any:
        self.found[name] = value
        return value

    def linear(self, x: Any, name: str, prefix: str = "bert.") -> Any:
        weight, bias = self.w[f"{prefix}{name}.weight"], self.w[f"{prefix}{name}.bias"]
        return self.see(name, self.p.linear(x, weight, bias, name))

    def norm(self, x: Any, name: str, prefix: str = "bert.") -> Any:
        weight, bias = self.w[f"{prefix}{name}.weight"], self.w[f"{prefix}{name}.bias"]
        return self.see(name, self.p.norm(x, weight, bias, self.a.layer_norm_eps, name))

    def run(self, batch: Any) -> None:
        hidden = self.embeddings(batch)
        keys = batch.attention_mask[:, None, None, :].bool()
        for layer in range(self.a.num_hidden_layers):
            hidden = self.layer(hidden, keys, f"encoder.layer.{layer}")
        pooled = None
        if self.a.pooler:
            pooled = self.see("pooler.activation", torch.tanh(self.linear(hidden[:, 0], "pooler.dense")))
        self.heads(hidden, pooled, batch)

    def embeddings(self, batch: Any) -> Any:
        path = "embeddings"
        word = self.see(f"{path}.word_embeddings", self.w[f"bert.{path}.word_embeddings.weight"][batch.input_ids])
        length = batch.input_ids.shape[1]
        table = self.w.get(f"bert.{path}.position_embeddings.weight")
        position = self.see(f"{path}.position_embeddings", _sinusoids(length, word) if table is None else table[:length][None])
        kind = self.see(f"{path}.token_type_embeddings", self.w[f"bert.{path}.token_type_embeddings.weight"][batch.token_type_ids])
        total = self.p.add(self.p.add(word, kind), position)
        return self.norm(total, f"{path}.LayerNorm") if self.a.embedding_norm else self.see(f"{path}.sum", total)

    def layer(self, hidden: Any, keys: Any, path: str) -> Any:
        own = f"{path}.attention.self"
        q, k, v = (self._split(self.linear(hidden, f"{own}.{n}")) for n in ("query", "key", "value"))
        scores = self.see(f"{own}.scores", self.p.scores(q, k))
        probs = self.see(f"{own}.probs", self.p.softmax(scores, keys))
        context = self.p.context(self.see(f"{own}.dropout", probs), v).transpose(1, 2)
        attended = self.linear(self.see(f"{own}.context", context.reshape(hidden.shape)), f"{path}.attention.output.dense")
        middle = self.norm(self.p.add(attended, hidden), f"{path}.attention.output.LayerNorm")
        inner = self.linear(middle, f"{path}.intermediate.dense")
        act = f"{path}.intermediate.intermediate_act_fn"
        outer = self.linear(self.see(act, self.p.activation(inner, act)), f"{path}.output.dense")
        return self.norm(self.p.add(outer, middle), f"{path}.output.LayerNorm")

    def _split(self, x: Any) -> Any:
        return x.unflatten(-1, (self.a.num_attention_heads, -1)).transpose(1, 2)

    def heads(self, hidden: Any, pooled: Any, batch: Any) -> None:
        losses = []
        predictions, pair = "cls.predictions", "cls.seq_relationship"
        if "masked_lm" in self.a.heads:
            path = f"{predictions}.transform"
            act = self.see(f"{path}.transform_act_fn", self.p.activation(self.linear(hidden, f"{path}.dense", ""), path))
            tied, bias = self.w["bert.embeddings.word_embeddings.weight"], self.w[f"{predictions}.bias"]
            tokens = self.p.linear(self.norm(act, f"{path}.LayerNorm", ""), tied, bias, predictions)
            losses.append(self.loss(self.see(f"{predictions}.decoder", tokens), batch.labels, predictions))
        if "next_sentence" in self.a.heads:
            losses.append(self.loss(self.linear(pooled, pair, ""), batch.next_sentence_label, pair))
        if "plain_masked_lm" in self.a.heads:
            decoder = f"{predictions}.decoder"
            tokens = self.see(decoder, F.linear(hidden, self.w[f"{decoder}.weight"], self.w[f"{predictions}.bias"]))
            losses.append(self.plain_loss(tokens, batch.labels, predictions))
        if "plain_next_sentence" in self.a.heads:
            losses.append(self.plain_loss(self.linear(hidden[:, 0], pair, ""), batch.next_sentence_label, pair))
        if len(losses) == 2 and None not in losses:
            self.see("cls.loss", losses[0] + losses[1])
        if "classification" in self.a.heads:
            self.loss(self.linear(pooled, "classifier", ""), batch.class_labels, "classifier")

    def loss(self, logits: Any, labels: Any, path: str) -> Any:
        if labels is None or (labels == IGNORED).all():
            return None
        return self.see(f"{path}.loss", F.cross_entropy(logits.flatten(0, -2), labels.flatten(), ignore_index=IGNORED))

    def plain_loss(self, logits: Any, labels: Any, path: str) -> Any:
        log_probs = self.see(f"{path}.log_probs", torch.log_softmax(logits, -1))
        return self.see(f"{path}.loss", F.nll_loss(log_probs.flatten(0, -2), labels.flatten(), ignore_index=IGNORED))


def _sinusoids(length: int, like: Any) -> Any:
    width = like.shape[-1]
    rate = torch.exp(torch.arange(0, width, 2, dtype=torch.float64) * (-math.log(10000.0) / width))
    angles = torch.arange(length, dtype=torch.float64)[:, None] * rate
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1).to(like.dtype)[None]
