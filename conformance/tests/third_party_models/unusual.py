"""Models with one unusual trait each; some of them cannot be mapped."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn.functional import gelu, one_hot

from conformance.tests.third_party_models.plain import Layer, PlainBert


class Holder:
    """Has a module's class as an attribute."""

    Bert = PlainBert


def model(vocab, width, layers, heads, inner, positions):
    """Return a module; the function has the name of a parameter in an adaptor, of a function that does not call it."""
    return PlainBert(vocab, width, layers, heads, inner, positions)


call = model  # the name of a function in an adaptor


class FixedLengthBert(PlainBert):
    """Has a table of 512 positions in every network."""

    def __init__(self, vocab, width, layers, heads, inner):
        super().__init__(vocab, width, layers, heads, inner, 512)


class SparseBert(PlainBert):
    """Looks words up by a product with a sparse matrix."""

    def looked_up(self, ids):
        chosen = one_hot(ids, len(self.words.weight)).float()
        return torch.sparse.mm(chosen.flatten(0, 1).to_sparse(), self.words.weight).view(*ids.shape, -1)


class NestedBert(PlainBert):
    """Gathers the rows without padding in a nested tensor, which it pads again."""

    def forward(self, input_ids, token_type_ids, attention_mask):
        x = super().forward(input_ids, token_type_ids, attention_mask)
        rows = torch.nested.nested_tensor([row[mask.bool()] for row, mask in zip(x, attention_mask, strict=True)])
        return x, rows, rows.to_padded_tensor(0.0)


class SquareMaskFirstBert(PlainBert):
    """Takes the two masks of torch's encoders, and ignores a mask for pairs of tokens."""

    def forward(self, src, segments, src_mask=None, src_key_padding_mask=None):
        return self.encode(src, segments, src >= 0 if src_key_padding_mask is None else ~src_key_padding_mask)


@dataclass
class Result:
    """A result with a dictionary in a dataclass."""

    last: torch.Tensor
    others: dict[str, Any] = field(default_factory=dict)


class ResultBert(PlainBert):
    """Calls its layers as functions and returns a dataclass, so that no module has its last hidden state as a result."""

    def make(self, width, layers, heads, inner):
        super().make(width, layers, heads, inner)
        self.pool = nn.Linear(width, width)

    def each(self):
        return [layer.forward for layer in self.layers]

    def forward(self, input_ids, token_type_ids, attention_mask):
        x = super().forward(input_ids, token_type_ids, attention_mask)
        result = Result(x, {"pooled": (torch.tanh(self.pool(x[:, 0])),)})
        result.others["itself"] = result.others
        return result


class ListsBert(PlainBert):
    """Has lists of embeddings and of the parts of a head with a tied decoder, beside that of its layers."""

    def __init__(self, vocab, width, layers, heads, inner, maxlen):
        nn.Module.__init__(self)
        self.embeddings = nn.ModuleList(nn.Embedding(n, width) for n in (vocab, maxlen, 2))
        self.norms = nn.ModuleList([nn.LayerNorm(width, 1e-12)])
        self.make(width, layers, heads, inner)
        self.head = nn.ModuleList([nn.Linear(width, width), nn.LayerNorm(width, 1e-12), nn.Linear(width, vocab)])
        self.head[2].weight = self.embeddings[0].weight

    def embedded(self, ids, kinds):
        words, places, kind = self.embeddings
        return self.norms[0](words(ids) + places(torch.arange(ids.shape[1])) + kind(kinds))

    def forward(self, input_ids, token_type_ids, attention_mask):
        x = super().forward(input_ids, token_type_ids, attention_mask)
        return x, self.head[2](self.head[1](gelu(self.head[0](x))))


class NamedLayersBert(PlainBert):
    """Holds its layers in a dictionary."""

    def make(self, width, layers, heads, inner):
        self.blocks = nn.ModuleDict({f"layer_{i}": Layer(width, heads, inner) for i in range(layers)})

    def each(self):
        return self.blocks.values()


class AttributesBert(PlainBert):
    """Holds each layer in an attribute, numbered from 1."""

    def make(self, width, layers, heads, inner):
        for i in range(layers):
            self.add_module(f"block{i + 1}", Layer(width, heads, inner))

    def each(self):
        return (module for name, module in self.named_children() if name.startswith("block"))


class StatesBert(PlainBert):
    """Returns a list of the layers' outputs, and the pooled output."""

    def make(self, width, layers, heads, inner):
        super().make(width, layers, heads, inner)
        self.pool = nn.Linear(width, width)

    def states(self, ids, kinds, mask):
        states = [self.embedded(ids, kinds)]
        for layer in self.layers:
            states.append(layer(states[-1], mask.bool()))
        return states

    def pooled(self, x):
        return torch.tanh(self.pool(x[:, 0]))

    def forward(self, input_ids, token_type_ids, attention_mask):
        _, *states = self.states(input_ids, token_type_ids, attention_mask)
        return states, self.pooled(states[-1])


class FlatBert(StatesBert):
    """Returns the embeddings, the layers' outputs and the pooled output in one tuple."""

    def forward(self, input_ids, token_type_ids, attention_mask):
        states = self.states(input_ids, token_type_ids, attention_mask)
        return (*states, self.pooled(states[-1]))


class NumberedBert(StatesBert):
    """Returns the layers' outputs by names with a number."""

    def forward(self, input_ids, token_type_ids, attention_mask):
        _, *states = self.states(input_ids, token_type_ids, attention_mask)
        return {f"layer_{i}_output": x for i, x in enumerate(states)}


class ThirdLayerBert(StatesBert):
    """Returns the output of the third layer, as a module does whose number of layers is fixed."""

    def forward(self, input_ids, token_type_ids, attention_mask):
        return self.states(input_ids, token_type_ids, attention_mask)[3]


class LazyBert(PlainBert):
    """Has a layer whose width is set by its first input."""

    def make(self, width, layers, heads, inner):
        super().make(width, layers, heads, inner)
        self.pool = nn.LazyLinear(width)


class UncallableBert(PlainBert):
    """Has no forward method."""

    forward = None


class ExitingBert(PlainBert):
    """Ends the process when it is called."""

    def forward(self, input_ids, token_type_ids, attention_mask):
        raise SystemExit(3)


class Unrelated(PlainBert):
    """Returns a tensor of the last hidden state's shape that no step of the network computes."""

    def encode(self, ids, kinds, mask):
        return torch.sin(self.words.weight[ids] * 3 + self.kinds.weight[kinds].exp())


def on_meta(vocab, width, layers, heads, inner, maxlen):
    """Build a BERT without values."""
    with torch.device("meta"):
        return PlainBert(vocab, width, layers, heads, inner, maxlen)


def traced(vocab, width, layers, heads, inner, maxlen):
    """Build a BERT that was compiled to TorchScript."""
    ones = torch.ones(2, 5, dtype=torch.long)
    return torch.jit.trace(PlainBert(vocab, width, layers, heads, inner, maxlen).eval(), (ones, ones, ones))
