"""A pipeline whose first part is a BERT: it takes all inputs in one dictionary and returns a dataclass."""

from dataclasses import dataclass

import torch
from torch import nn

from conformance.tests.third_party_models.packed import PackedBert


@dataclass(frozen=True)
class Encoded:
    """The returned value: the last hidden state and the pooled output, in a list."""

    layers: list[torch.Tensor]


class FeaturesBert(PackedBert):
    def forward(self, features):
        mask = features.get("attention_mask") == 0
        return Encoded(list(super().forward(features["input_ids"], features["token_type_ids"], key_padding_mask=mask)))


@dataclass(frozen=True)
class Sizes:
    """A configuration in which some sizes have unusual names."""

    ntoken: int
    d_model: int
    stack: int = 12
    parallel: int = 12
    dim_feedforward: int = 3072
    max_seq_len: int = 512


class SizedBert(FeaturesBert):
    def __init__(self, config: Sizes):
        c = config
        super().__init__(c.ntoken, c.d_model, c.stack, c.parallel, c.dim_feedforward, c.max_seq_len)


def build(a):
    sizes = (a.vocab_size, a.hidden_size, a.num_hidden_layers, a.num_attention_heads, a.intermediate_size)
    return nn.Sequential(FeaturesBert(*sizes, a.max_position_embeddings))
