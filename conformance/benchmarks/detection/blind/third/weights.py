"""Mistakes in the weights: converted, fused, split, merged, stale, partly loaded, rounded or pruned ones."""

from collections.abc import Callable

import torch
from torch import Tensor

from conformance.benchmarks.detection.blind.port import Mistake, Weights, prefix
from conformance.benchmarks.detection.blind.third.tools import DENSE, NORMS, noise, rounded

_Load = Callable[[Weights, tuple[int, ...]], None]

_PROJECTIONS = ("attention.self.query", "attention.self.key", "attention.self.value")
_WORDS = "bert.embeddings.word_embeddings.weight"
_HEADS = {"pooler.dense": "bert.pooler.dense", "cls.predictions.transform.dense": "cls.predictions.transform.dense"}


def _each(change: Callable[[Tensor], Tensor], names: tuple[str, ...], role: str = "weight") -> _Load:
    """Changes that parameter of the modules of those names in every layer."""

    def load(weights: Weights, layers: tuple[int, ...]) -> None:
        for key in (f"{prefix(layer)}.{name}.{role}" for layer in layers for name in names):
            weights[key] = change(weights[key])

    return load


def _exchanged(*pairs: tuple[str, str]) -> _Load:
    """Exchanges each pair of parameters in every layer."""

    def load(weights: Weights, layers: tuple[int, ...]) -> None:
        for layer in layers:
            for first, second in ((f"{prefix(layer)}.{one}", f"{prefix(layer)}.{other}") for one, other in pairs):
                weights[first], weights[second] = weights[second], weights[first]

    return load


def _heads_of(weights: Weights) -> int:
    """4 heads of 8 features, or as many of 64 as there are."""
    width = weights[_WORDS].shape[1]
    return width // 64 if width >= 64 else 4


def _interleaved(weights: Weights, layers: tuple[int, ...]) -> None:
    heads = _heads_of(weights)
    for layer in layers:
        for role in ("weight", "bias"):
            names = [f"{prefix(layer)}.{name}.{role}" for name in _PROJECTIONS]
            parts = [weights[name].view(heads, -1, *weights[name].shape[1:]) for name in names]
            fused = torch.stack(parts, 1).flatten(0, 2)
            weights.update(zip(names, (part.contiguous() for part in fused.chunk(3)), strict=True))


def _for_rotary(weights: Weights, layers: tuple[int, ...]) -> None:
    heads = _heads_of(weights)
    for key in (f"{prefix(i)}.{name}.{role}" for i in layers for name in _PROJECTIONS[:2] for role in ("weight", "bias")):
        pairs = weights[key].view(heads, -1, 2, *weights[key].shape[1:])
        weights[key] = pairs.transpose(1, 2).flatten(0, 2).contiguous()


def _copied(source: Callable[[int], int], names: tuple[str, ...]) -> _Load:
    """Each layer has the parameters of those names of another layer."""

    def load(weights: Weights, layers: tuple[int, ...]) -> None:
        old = dict(weights)
        for layer in layers:
            for name in (f"{name}.{role}" for name in names for role in ("weight", "bias")):
                weights[f"{prefix(layer)}.{name}"] = old.get(f"{prefix(source(layer))}.{name}", old[f"{prefix(layer)}.{name}"])

    return load


def _souped(weights: Weights, layers: tuple[int, ...]) -> None:
    old = dict(weights)
    for layer in layers:
        for key in (f"intermediate.dense.{role}" for role in ("weight", "bias")):
            mean = (old[f"{prefix(layer)}.{key}"] + old[f"{prefix(layer - 1)}.{key}"]) / 2
            weights[f"{prefix(layer)}.{key}"] = mean


def _half_zero(x: Tensor) -> Tensor:
    return torch.cat([x[: len(x) // 2], torch.zeros_like(x[len(x) // 2 :])])


def _adapted(x: Tensor) -> Tensor:
    up, down = noise(x[:, :2], 3), noise(x[:2], 4)
    return x + 0.02 * x.std() * (up @ down)


def _low_rank(x: Tensor) -> Tensor:
    u, s, v = torch.linalg.svd(x.float(), full_matrices=False)
    rank = len(s) * 3 // 4
    product: Tensor = (u[:, :rank] * s[:rank]) @ v[:rank]
    return product.to(x.dtype)


def _two_of_four(x: Tensor) -> Tensor:
    groups = x.view(len(x), -1, 4)
    lower = groups.abs().argsort(-1)[..., :2]
    return groups.scatter(-1, lower, 0).flatten(-2)


def _pruned(x: Tensor) -> Tensor:
    return torch.where(x.abs() < x.abs().float().quantile(0.3), 0, x)


def _four_bits(x: Tensor) -> Tensor:
    return rounded(x.view(len(x), -1, 16), 7, -1).flatten(-2)


def _eight_bits(x: Tensor) -> Tensor:
    return rounded(x, 127)


def _float8(x: Tensor) -> Tensor:
    scale = 448 / x.abs().max().float()
    return ((x.float() * scale).to(torch.float8_e4m3fn).float() / scale).to(x.dtype)


def _no_zero_point(x: Tensor) -> Tensor:
    step = (x.max() - x.min()).float() / 255
    return (((x.float() / step).round() + 1) * step).to(x.dtype)


def _flushed(x: Tensor) -> Tensor:
    return torch.where(x.abs() < 2.0**-14, 0, x)


def _smoothed(x: Tensor) -> Tensor:
    columns = x.abs().amax(0, keepdim=True).float()
    return (x.float() * (columns / columns.mean()).sqrt()).to(x.dtype)


def _square_heads(weights: Weights, _: tuple[int, ...]) -> None:
    for name in _HEADS.values():
        weights[f"{name}.weight"] = weights[f"{name}.weight"].T.contiguous()


def _resized(weights: Weights, _: tuple[int, ...]) -> None:
    table = weights[_WORDS]
    weights[_WORDS] = torch.cat([table[:-16], table[:-16].float().mean(0).to(table.dtype).expand(16, -1)])


MISTAKES = (
    Mistake(
        "keys and values exchanged", "The key has the value's parameters and the value the key's.",
        "a fused product split as q, v, k", "all", ("attention.self.key", "attention.self.value"),
        "says that key and value are exchanged, or have each other's parameters",
        load=_exchanged(*((f"attention.self.key.{role}", f"attention.self.value.{role}") for role in ("weight", "bias"))),
    ),
    Mistake(
        "Megatron's fused product split in thirds", "Queries, keys and values, fused head by head, are read as three blocks.",
        "Megatron's query_key_value, checkpoint version 2", "all", _PROJECTIONS,
        "says that fused projections are split in another order, or interleaved by heads", load=_interleaved,
    ),
    Mistake(
        "rows permuted for rotary", "In each head even rows of query and key come before odd ones.",
        "Llama's conversion, permute()", "all", _PROJECTIONS[:2], "says that rows within a head are permuted or interleaved",
        load=_for_rotary,
    ),
    Mistake(
        "key bias missing", "The key's bias is zero.", "BEiT's and Whisper's keys, which have none", "first",
        ("attention.self.key",), "says that the key's bias is missing",
        load=_each(torch.zeros_like, ("attention.self.key",), "bias"),
    ),
    Mistake(
        "layers by the first one's name", "Each later layer has the first layer's weights.", "ALBERT's sharing, or `in` for ==",
        "later", (*DENSE, *NORMS), "says that the parameters are those of another layer, or of the first",
        load=_copied(lambda layer: 0, (*DENSE, *NORMS)),
    ),
    Mistake(
        "neighbouring layers exchanged", "Even and odd layers have each other's parameters.", "files listed in the system's order",
        "all", (*DENSE, *NORMS), "says that layers are exchanged or their parameters another's",
        load=_copied(lambda layer: layer ^ 1, (*DENSE, *NORMS)),
    ),
    Mistake(
        "gamma and beta exchanged", "Weight and bias of the norm after attention are exchanged.", "beta and gamma, sorted by name",
        "last", ("attention.output.LayerNorm",), "says that the norm's weight and bias are exchanged",
        load=_exchanged(("attention.output.LayerNorm.weight", "attention.output.LayerNorm.bias")),
    ),
    Mistake(
        "second shard lost", "The second half of the rows of the attention's output weight is zero.",
        "two files, of which one is read", "some", ("attention.output.dense",), "says that part of the weight is zero or missing",
        load=_each(_half_zero, ("attention.output.dense",)),
    ),
    Mistake(
        "bias added by both ranks", "The biases of the products that end a branch are doubled.",
        "tensor parallel ranks that each add it before the sum", "all", ("attention.output.dense", "output.dense"),
        "says that the bias is added twice or scaled by 2",
        load=_each(lambda bias: bias * 2, ("attention.output.dense", "output.dense"), "bias"),
    ),
    Mistake(
        "adapter left merged", "Query and value have a small addition of rank 2.", "LoRA, merged and never taken out", "all",
        ("attention.self.query", "attention.self.value"),
        "says that something of low rank is added, that the weights are others, or gives no name",
        load=_each(_adapted, ("attention.self.query", "attention.self.value")),
    ),
    Mistake(
        "low rank", "The inner weight lacks its smallest quarter of singular values.", "compression by singular values", "last",
        ("intermediate.dense",), "says that the weight is of low rank, or another one",
        load=_each(_low_rank, ("intermediate.dense",)),
    ),
    Mistake(
        "two of four zero", "In every four weights of the outer product the smaller two are zero.", "2:4 sparsity", "last",
        ("output.dense",), "says that weights are pruned or sparse", load=_each(_two_of_four, ("output.dense",)),
    ),
    Mistake(
        "query pruned", "The smallest 30 % of the query's weights are zero.", "magnitude pruning with a mask left on", "some",
        ("attention.self.query",), "says that weights are pruned or sparse", load=_each(_pruned, ("attention.self.query",)),
    ),
    Mistake(
        "four bits in groups", "The feed-forward's weights have 15 levels in groups of 16.", "round-to-nearest weights of 4 bits",
        "all", ("intermediate.dense", "output.dense"), "says that weights are quantised or rounded",
        load=_each(_four_bits, ("intermediate.dense", "output.dense")),
    ),
    Mistake(
        "eight bits a tensor", "The projections' weights have 255 levels of each tensor's largest magnitude.", "int8 by tensor",
        "first", _PROJECTIONS, "says that weights are quantised or rounded", load=_each(_eight_bits, _PROJECTIONS),
    ),
    Mistake(
        "float8 outer weight", "The outer weight is rounded to float8 with a scale.", "fp8 checkpoints, opened for float32", "all",
        ("output.dense",), "says that weights are quantised or rounded", load=_each(_float8, ("output.dense",)),
    ),
    Mistake(
        "zero point one off", "The inner weight's eight-bit levels are off by one.", "signed and unsigned zero points mixed up",
        "first", ("intermediate.dense",), "says that weights are quantised, that a constant is added, or both, or gives no name",
        load=_each(_no_zero_point, ("intermediate.dense",)),
    ),
    Mistake(
        "subnormals flushed", "Weights that are subnormal in float16 are zero.", "a conversion through float16 that flushes", "all",
        ("attention.output.dense", "output.dense"), "says that small weights are zero, are pruned or rounded, or gives no name",
        load=_each(_flushed, ("attention.output.dense", "output.dense")),
    ),
    Mistake(
        "smoothed by half", "The inner weight's columns are scaled, but not the norm before it.",
        "SmoothQuant, of which one half is saved", "all", ("intermediate.dense",),
        "says that the inner weight's columns or inputs are scaled, or that it is another one",
        load=_each(_smoothed, ("intermediate.dense",)),
    ),
    Mistake(
        "decay at the export", "The weights of all products of the first layer are multiplied by 0.99.",
        "a step of decay without lr", "first", DENSE, "says that the weights or products are scaled, by 0.99",
        load=_each(lambda weight: weight * 0.99, DENSE),
    ),
    Mistake(
        "soup of layers", "The inner parameters of later layers are the mean of their own and those of the layer before.",
        "merges that interpolate stacked layers", "later", ("intermediate.dense",),
        "says that the parameters are a mean, or others", load=_souped,
    ),
    Mistake(
        "square heads transposed", "The weights of pooler and transform are transposed.",
        "kernels of TensorFlow of which shapes fit", "first", tuple(_HEADS), "says that the weight is transposed",
        load=_square_heads,
    ),
    Mistake(
        "new tokens at the mean", "The last sixteen rows of the word table are the mean of the others.",
        "resize_token_embeddings()", "first", ("embeddings.word_embeddings", "cls.predictions.decoder"),
        "says that rows of the table are others, or the mean", load=_resized,
    ),
)  # fmt: skip
