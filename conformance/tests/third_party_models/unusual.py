"""A correct BERT in small pieces, and correct variants of it with one unusual trait each."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn.functional import gelu, one_hot


class Layer(nn.Module):
    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)
        self.norm1, self.norm2 = nn.LayerNorm(width, 1e-12), nn.LayerNorm(width, 1e-12)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = (f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        scores = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).masked_fill(~mask[:, None, None], float("-inf"))
        x = self.norm1(x + self.o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2)))
        out: torch.Tensor = self.norm2(x + self.down(gelu(self.up(x))))
        return out


class PlainBert(nn.Module):
    def __init__(self, vocab: int, width: int, layers: int, heads: int, inner: int, maxlen: int) -> None:
        super().__init__()
        self.words, self.places, self.kinds = (nn.Embedding(n, width) for n in (vocab, maxlen, 2))
        self.norm = nn.LayerNorm(width, 1e-12)
        self.make(width, layers, heads, inner)

    def make(self, width: int, layers: int, heads: int, inner: int) -> None:
        self.layers = nn.ModuleList(Layer(width, heads, inner) for _ in range(layers))

    def each(self) -> Iterable[nn.Module]:
        return self.layers

    def looked_up(self, ids: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.words(ids)
        return found

    def encode(self, ids: torch.Tensor, kinds: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x: torch.Tensor = self.norm(self.looked_up(ids) + self.places(torch.arange(ids.shape[1])) + self.kinds(kinds))
        for layer in self.each():
            x = layer(x, mask.bool())
        return x

    def forward(self, input_ids: torch.Tensor, token_type_ids: torch.Tensor, attention_mask: torch.Tensor) -> object:
        return self.encode(input_ids, token_type_ids, attention_mask)


class Holder:
    """Has a module's class as an attribute."""

    Bert = PlainBert


def call(vocab: int, width: int, layers: int, heads: int, inner: int, positions: int) -> PlainBert:
    """Return a module; the function has the name of one in an adaptor."""
    return PlainBert(vocab, width, layers, heads, inner, positions)


def model(vocab: int, width: int, layers: int, heads: int, inner: int, positions: int) -> PlainBert:
    """Return a module; the function has the name of a parameter in an adaptor, of a function that does not call it."""
    return PlainBert(vocab, width, layers, heads, inner, positions)


class FixedLengthBert(PlainBert):
    """Has a table of 512 positions in every network."""

    def __init__(self, vocab: int, width: int, layers: int, heads: int, inner: int) -> None:
        super().__init__(vocab, width, layers, heads, inner, 512)


class SparseBert(PlainBert):
    """Looks words up by a product with a sparse matrix."""

    def looked_up(self, ids: torch.Tensor) -> torch.Tensor:
        chosen = one_hot(ids, len(self.words.weight)).float()
        found: torch.Tensor = torch.sparse.mm(chosen.flatten(0, 1).to_sparse(), self.words.weight)
        return found.view(*ids.shape, -1)


class NestedBert(PlainBert):
    """Gathers the rows without padding in a nested tensor, which it pads again."""

    def forward(self, input_ids: torch.Tensor, token_type_ids: torch.Tensor, attention_mask: torch.Tensor) -> object:
        x = self.encode(input_ids, token_type_ids, attention_mask)
        rows = torch.nested.nested_tensor([row[mask.bool()] for row, mask in zip(x, attention_mask, strict=True)])
        return x, rows, rows.to_padded_tensor(0.0)


class SquareMaskFirstBert(PlainBert):
    """Takes the two masks of torch's encoders, and ignores a mask for pairs of tokens."""

    def forward(
        self,
        src: torch.Tensor,
        segments: torch.Tensor,
        src_mask: torch.Tensor | None = None,
        src_key_padding_mask: torch.Tensor | None = None,
    ) -> object:
        return self.encode(src, segments, torch.ones_like(src) if src_key_padding_mask is None else ~src_key_padding_mask)


@dataclass
class Result:
    """A result with a dictionary in a dataclass."""

    last: torch.Tensor
    others: dict[str, object] = field(default_factory=dict)


class ResultBert(PlainBert):
    """Calls its layers as functions and returns a dataclass, so that no module has its last hidden state as a result."""

    def forward(self, input_ids: torch.Tensor, token_type_ids: torch.Tensor, attention_mask: torch.Tensor) -> object:
        x = self.norm(self.looked_up(input_ids) + self.places(torch.arange(input_ids.shape[1])) + self.kinds(token_type_ids))
        for layer in self.layers:
            x = type(layer).forward(layer, x, attention_mask.bool())
        found = Result(x, {"pooled": (torch.tanh(self.pool(x[:, 0])),)})
        found.others["itself"] = found.others
        return found

    def make(self, width: int, layers: int, heads: int, inner: int) -> None:
        super().make(width, layers, heads, inner)
        self.pool = nn.Linear(width, width)


class ListedBert(PlainBert):
    """Has lists of embeddings and of the parts of a head with a tied decoder, beside that of its layers."""

    def __init__(self, vocab: int, width: int, layers: int, heads: int, inner: int, maxlen: int) -> None:
        nn.Module.__init__(self)
        self.embeddings = nn.ModuleList(nn.Embedding(n, width) for n in (vocab, maxlen, 2))
        self.norms = nn.ModuleList([nn.LayerNorm(width, 1e-12)])
        self.make(width, layers, heads, inner)
        self.head = nn.ModuleList([nn.Linear(width, width), nn.LayerNorm(width, 1e-12), nn.Linear(width, vocab)])
        self.head[2].weight = self.embeddings[0].weight

    def forward(self, input_ids: torch.Tensor, token_type_ids: torch.Tensor, attention_mask: torch.Tensor) -> object:
        words, places, kinds = self.embeddings
        x = self.norms[0](words(input_ids) + places(torch.arange(input_ids.shape[1])) + kinds(token_type_ids))
        for layer in self.each():
            x = layer(x, attention_mask.bool())
        return x, self.head[2](self.head[1](gelu(self.head[0](x))))


class NamedLayersBert(PlainBert):
    """Holds its layers in a dictionary."""

    def make(self, width: int, layers: int, heads: int, inner: int) -> None:
        self.blocks = nn.ModuleDict({f"layer_{i}": Layer(width, heads, inner) for i in range(layers)})

    def each(self) -> Iterable[nn.Module]:
        return self.blocks.values()


class AttributesBert(PlainBert):
    """Holds each layer in an attribute of its own, numbered from 1."""

    def make(self, width: int, layers: int, heads: int, inner: int) -> None:
        for i in range(layers):
            self.add_module(f"block{i + 1}", Layer(width, heads, inner))

    def each(self) -> Iterable[nn.Module]:
        return (module for name, module in self.named_children() if name.startswith("block"))


class UnnumberedBert(PlainBert):
    """Holds each layer in an attribute without a number."""

    def make(self, width: int, layers: int, heads: int, inner: int) -> None:
        self.first, self.second, self.third = (Layer(width, heads, inner) for _ in range(3))

    def each(self) -> Iterable[nn.Module]:
        return (self.first, self.second, self.third)


class LazyBert(PlainBert):
    """Has a layer whose width is set by its first input."""

    def make(self, width: int, layers: int, heads: int, inner: int) -> None:
        super().make(width, layers, heads, inner)
        self.pool = nn.LazyLinear(width)


class UncallableBert(PlainBert):
    """Has no forward method."""

    forward = None  # type: ignore[assignment]


class ExitingBert(PlainBert):
    """Ends the process when it is called."""

    def forward(self, input_ids: torch.Tensor, token_type_ids: torch.Tensor, attention_mask: torch.Tensor) -> object:
        raise SystemExit(3)


def on_meta(vocab: int, width: int, layers: int, heads: int, inner: int, maxlen: int) -> nn.Module:
    """Build a BERT without values."""
    with torch.device("meta"):
        return PlainBert(vocab, width, layers, heads, inner, maxlen)


def traced(vocab: int, width: int, layers: int, heads: int, inner: int, maxlen: int) -> object:
    """Build a BERT that was compiled to TorchScript."""
    ones = torch.ones(2, 5, dtype=torch.long)
    module = PlainBert(vocab, width, layers, heads, inner, maxlen).eval()
    return torch.jit.trace(module, (ones, ones, ones))  # type: ignore[no-untyped-call]


class Unrelated(PlainBert):
    """Returns a tensor of the last hidden state's shape that no step of the network computes."""

    def encode(self, ids: torch.Tensor, kinds: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.sin(self.words.weight[ids] * 3 + self.kinds.weight[kinds].exp())
