"""Mistakes of control: wrong layers, reused buffers, states kept too long, rows of the batch that are mixed up."""

import math

from torch import Tensor, cat

from conformance.benchmarks.detection.blind.port import Mistake, Operation, Port, prefix

_PART = "encoder.layer.{}.{}"


def _earlier(name: str) -> Operation:
    """The activation of that name of the layer before."""
    return lambda port, layer, *_: port.found[_PART.format(layer - 1, name)]


def _of_earliest(name: str) -> Operation:
    """The activation of that name of the first layer."""
    return lambda port, layer, *_: port.found[_PART.format(0, name)]


def _embeddings_read(name: str) -> Operation:
    return lambda port, layer, _: port.linear(f"{prefix(layer)}.{name}", port.found["embeddings.dropout"])


def _residual_of_embeddings(port: Port, layer: int, x: Tensor, skip: Tensor) -> Tensor:
    return port.step("norm", layer, f"{prefix(layer)}.attention.output.LayerNorm", x + port.found["embeddings.dropout"])


def _first_rows(port: Port, layer: int, x: Tensor) -> Tensor:
    return port.linear(f"{prefix(layer)}.attention.self.value", x)[:1].expand(len(x), -1, -1).contiguous()


def _incomplete(port: Port, layer: int, x: Tensor) -> Tensor:
    result = port.linear(f"{prefix(layer)}.output.dense", x)
    size = 4 if len(x) > 4 else 2
    return cat([result[:size], result[: len(x) - size]])


def _skipped(port: Port, layer: int, outer: Tensor, attended: Tensor, hidden: Tensor) -> Tensor:
    return hidden


def _no_feed_forward(port: Port, layer: int, outer: Tensor, attended: Tensor, hidden: Tensor) -> Tensor:
    return attended


def _kept_last(port: Port, layer: int, x: Tensor) -> Tensor:
    fresh = port.linear(f"{prefix(layer)}.attention.self.key", x)
    stale = port.found[_PART.format(layer - 1, "attention.self.key")]
    return cat([stale[:, :2], fresh[:, 2:]], 1)


def _running_residual(port: Port, layer: int, outer: Tensor, attended: Tensor, hidden: Tensor) -> Tensor:
    return port.step("norm", layer, f"{prefix(layer)}.output.LayerNorm", outer + attended + port.found["embeddings.dropout"])


def _inner_of_input(port: Port, layer: int, x: Tensor) -> Tensor:
    before = "embeddings.dropout" if layer == 0 else _PART.format(layer - 1, "output.LayerNorm")
    return port.linear(f"{prefix(layer)}.intermediate.dense", port.found[before])


def _added_scores(port: Port, layer: int, query: Tensor, key: Tensor) -> Tensor:
    own = port.split(query) @ port.split(key).transpose(-1, -2) / math.sqrt(port.architecture.head_size)
    return own + port.found[_PART.format(layer - 1, "attention.self.scores")]


def _rows_turned(port: Port, layer: int, x: Tensor) -> Tensor:
    return port.linear(f"{prefix(layer)}.attention.output.dense", x).flip(0)


def _tokens_before(port: Port, layer: int, x: Tensor) -> Tensor:
    return port.linear(f"{prefix(layer)}.attention.self.value", x).roll(1, 1)


def _pooled_embeddings(port: Port, _: None, hidden: Tensor) -> Tensor:
    return port.linear("bert.pooler.dense", port.found["embeddings.dropout"][:, 0])


MISTAKES = (
    Mistake(
        "keys and values of the layer before", "Later layers have the keys and values of the layer before.",
        "caches without the layer in their name, or cross-layer attention", "later", ("attention.self.key", "attention.self.value"),
        "says that they are those of another layer, or are stale",
        {"key": _earlier("attention.self.key"), "value": _earlier("attention.self.value")},
    ),
    Mistake(
        "probabilities of the first layer", "Later layers have the first layer's probabilities.", "LazyFormer's sharing, left on",
        "later", ("attention.self.probs",), "says that they are those of another layer, or are stale",
        {"probs": _of_earliest("attention.self.probs")},
    ),
    Mistake(
        "scores added to the layer's before", "Later layers add the scores of the layer before.", "RealFormer's residual attention",
        "later", ("attention.self.scores",), "says that the scores of the layer before are added, or that a buffer accumulates",
        {"scores": _added_scores},
    ),
    Mistake(
        "queries of the embeddings", "Later layers' queries read the embeddings.", "`x` for `hidden` in a loop", "later",
        ("attention.self.query",), "says that they read the embeddings or another layer",
        {"query": _embeddings_read("attention.self.query")},
    ),
    Mistake(
        "residual of the embeddings", "The residual around attention is the embeddings in later layers.",
        "a residual taken once before the loop", "later", ("attention.output.LayerNorm",),
        "says that the residual is the embeddings, or another layer's", {"attention_norm": _residual_of_embeddings},
    ),
    Mistake(
        "embeddings in every sum", "The embeddings are added in the last sum of each layer.", "dense connections to the input",
        "all", ("output.LayerNorm",), "says that the embeddings or another input are added, or gives no name",
        {"output_norm": _running_residual},
    ),
    Mistake(
        "feed-forward beside attention", "The feed-forward reads the layer's input.", "parallel blocks, as of GPT-J", "all",
        ("intermediate.dense",), "says that it reads the layer's input, or another one", {"inner": _inner_of_input},
    ),
    Mistake(
        "values of the first row", "All rows have the values of the batch's first row.", "a static input that is expanded", "first",
        ("attention.self.value",), "says that rows are the first, or another row's", {"value": _first_rows},
    ),
    Mistake(
        "last micro-batch not written", "Rows beyond a full micro-batch have the first rows' outer product.",
        "a buffer of micro-batches, of which the last is not full", "some", ("output.dense",),
        "says that rows are other rows', or gives no name", {"outer": _incomplete},
    ),
    Mistake(
        "rows turned after attention", "The rows of the attention's output are in reverse.",
        "rows sorted by length and not put back", "first", ("attention.output.dense",),
        "says that the rows of the batch are permuted or other rows'", {"attention_dense": _rows_turned},
    ),
    Mistake(
        "values one token late", "Each token has the value of the token before it.", "a cache whose place is off by one", "last",
        ("attention.self.value",), "says that tokens are shifted by one", {"value": _tokens_before},
    ),
    Mistake(
        "first keys stale", "The first two keys are those of the layer before.", "a prefix cache shared by layers", "later",
        ("attention.self.key",), "says that keys are those of another layer, or stale, or gives no name", {"key": _kept_last},
    ),
    Mistake(
        "last layer skipped", "The last layer's output is its input.", "LayerDrop that is active at inference", "last",
        ("output.LayerNorm",), "says that the layer is skipped, or that its output is its input", {"output_norm": _skipped},
    ),
    Mistake(
        "feed-forward skipped", "The first layer's output is its attention's.",
        "adaptive depth with a threshold at the wrong place", "first", ("output.LayerNorm",),
        "says that the feed-forward or its norm is skipped", {"output_norm": _no_feed_forward},
    ),
    Mistake(
        "pooler of the embeddings", "The pooler reads the embeddings.", "hidden_states[0] for hidden_states[-1]", "first",
        ("pooler.dense",), "says that it reads the embeddings or another layer", {"pooler": _pooled_embeddings},
    ),
)  # fmt: skip
