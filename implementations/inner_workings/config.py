"""The configuration of a BERT."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import nn


@dataclass(frozen=True)
class BertConfig:
    """The configuration of a BERT under Hugging Face's names, with the sizes of bert-base-cased as defaults."""

    vocab_size: int = 28996
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-12
    chunk_size_feed_forward: int = 0
    num_labels: int = 2
    problem_type: str | None = None
    classifier_dropout: float | None = None
    position_offset: int = 0
    position_embedding_type: str = "absolute"
    is_decoder: bool = False
    add_cross_attention: bool = False
    pruned_heads: Mapping[int, Sequence[int]] = field(default_factory=dict)


ACTIVATION_FUNCTIONS: dict[str, Callable[[], nn.Module]] = {
    "gelu": nn.GELU,
    "gelu_new": lambda: nn.GELU("tanh"),
    "gelu_pytorch_tanh": lambda: nn.GELU("tanh"),
    "relu": nn.ReLU,
}
