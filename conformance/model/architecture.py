"""The architecture of a BERT: a small frozen value that determines every equation of the forward pass.

`Dense` is the module of sentence-transformers that follows the pooling of a sentence embedding.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import msgspec

from conformance.errors import UnsupportedArchitectureError

if TYPE_CHECKING:
    from conformance.model.batch import Batch

DENSE_ACTIVATIONS = ("", "tanh", "relu", "gelu")


@dataclass(frozen=True)
class Dense:
    """y = f(x Wᵀ + b): (B, I) -> (B, O), as `sentence_transformers.models.Dense` computes it.

    Attributes:
        out_features: O; I is the width of the preceding module's output.
        bias: whether there is a bias b.
        activation: f: `tanh`, `relu`, `gelu` (with erf, as in `torch.nn.GELU`), or empty for the identity.

    Example:
        >>> Dense(512, activation="tanh").bias
        True
    """

    out_features: int
    bias: bool = True
    activation: str = ""

    def __post_init__(self) -> None:
        """Validate the fields; raises `UnsupportedArchitectureError` for a module that the equations do not cover."""
        if not isinstance(self.out_features, int) or self.out_features < 1:
            raise UnsupportedArchitectureError(
                f"out_features of a Dense module is {self.out_features!r:.40}, expected an integer of at least 1"
            )
        if self.activation not in DENSE_ACTIVATIONS:
            raise UnsupportedArchitectureError(
                f"the activation {self.activation!r:.60} of a Dense module has no equation here; known are "
                f"{', '.join(filter(None, DENSE_ACTIVATIONS))}, and the empty string for the identity"
            )


HEADS = (
    *("masked_lm", "next_sentence", "plain_masked_lm", "plain_next_sentence", "classification", "token_classification"),
    *("question_answering", "multiple_choice"),
)
SAME_NAMES = (
    ("masked_lm", "plain_masked_lm"),
    ("next_sentence", "plain_next_sentence"),
    ("classification", "token_classification", "multiple_choice"),
)
"""Groups of heads whose modules have the same names, so that a network has at most one head of each group."""
COMPATIBLE_HEADS = (
    ("masked_lm", "next_sentence", "classification", "question_answering"),
    ("plain_masked_lm", "plain_next_sentence", "token_classification"),
    ("multiple_choice",),
)
"""All heads, grouped into sets that one network can have together."""

ACTIVATION_FUNCTIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu")
POSITIONS = ("absolute", "sinusoidal", "relative_key", "relative_key_query")
SINGLE_LABEL, MULTI_LABEL, REGRESSION = "single_label_classification", "multi_label_classification", "regression"
PROBLEMS = (None, SINGLE_LABEL, MULTI_LABEL, REGRESSION)
POOLINGS = ("", "cls", "mean", "mean-sqrt-length", "weighted-mean", "max", "last")

_COUNTS = {
    "vocab_size": 1, "hidden_size": 1, "num_hidden_layers": 0, "num_attention_heads": 1, "intermediate_size": 1,
    "max_position_embeddings": 1, "type_vocab_size": 1, "num_labels": 1, "position_offset": 0,
}  # fmt: skip
# The deepest published network has 1,000 layers (Wang et al. 2022, DeepNet); the limit bounds the table of activations.
_LARGEST = {"num_hidden_layers": 10_000}
_INT32 = 2**31 - 1
_RATES = ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout", "activation_dropout")


@dataclass(frozen=True)
class Architecture:
    """The sizes and switches of a BERT, under Hugging Face's config names (`BertConfig`) where they exist.

    Attributes:
        vocab_size .. hidden_act: as in `transformers.BertConfig`.
        num_labels: number of outputs of the classification head, for sequences or for tokens.
        position_embedding_type: `absolute` (learned), `sinusoidal` (Vaswani et al. 2017, section 3.5), or, in the attention scores
            of each layer, `relative_key` (Shaw et al. 2018, equation 5) or `relative_key_query` (Huang et al. 2020, method 4).
        is_decoder: whether a token attends only to itself and to earlier tokens.
        pruned_heads: pairs of a layer and the indices of the heads, out of `num_attention_heads`, removed from its self-attention.
        add_cross_attention: whether each layer of a decoder also attends to encoder hidden states, if the batch has any.
        embedding_norm: whether a LayerNorm is applied to the embeddings (Devlin et al. 2019: yes).
        position_offset: position id of the first token of a row: 2 in RoBERTa (Liu et al. 2019; padding_idx + 1), 0 in BERT.
        shared_layer_norm: whether both residual connections of a layer share one LayerNorm (the paper: no).
        pooler: whether there is a pooler.
        hidden_dropout_prob, attention_probs_dropout_prob: dropout probabilities, used only in training mode.
        classifier_dropout: dropout probability before the classifier; None means `hidden_dropout_prob`.
        activation_dropout: dropout probability after the activation function, as in `transformers.BartConfig` (the paper: none).
        initializer_range: standard deviation of the initial values of matrices and tables.
        problem_type: the training problem of the sequence classifier, as in `transformers.PretrainedConfig`:
            `single_label_classification`, `multi_label_classification` or `regression`. None means `regression` if there is one
            label, and otherwise `single_label_classification`.
        pooling: how the last hidden state is pooled into a sentence embedding, as in sentence-transformers: the first token
            (`cls`); over the n tokens that are not padding, the `mean`, the sum divided by √n (`mean-sqrt-length`), the mean with
            weights 1, 2, … by position (`weighted-mean`), or the `max`; the `last` token that is not padding. Empty: no sentence
            embedding.
        dense: the `Dense` modules of sentence-transformers after the pooling, in order.
        normalize: whether the sentence embedding is finally divided by its Euclidean norm.
        heads: the heads that are present: `masked_lm` and `next_sentence` (as in the paper), `plain_masked_lm` and
            `plain_next_sentence` (one untied linear layer and a log-softmax, applied to the hidden state itself), `classification`
            (of sequences), `token_classification`, `question_answering` (start and end of a span), `multiple_choice` (one logit per
            row, several rows per question).

    Example:
        >>> base = Architecture(vocab_size=30522, hidden_size=768, num_hidden_layers=12, num_attention_heads=12,
        ...                     intermediate_size=3072, max_position_embeddings=512)
        >>> base.head_size
        64
        >>> base.with_(layer_norm_eps=1e-5).layer_norm_eps
        1e-05
    """

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    max_position_embeddings: int
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-12
    hidden_act: str = "gelu"
    num_labels: int = 2
    position_embedding_type: str = "absolute"
    embedding_norm: bool = True
    shared_layer_norm: bool = False
    pooler: bool = True
    heads: tuple[str, ...] = ()
    position_offset: int = 0
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    classifier_dropout: float | None = None
    activation_dropout: float = 0.0
    initializer_range: float = 0.02
    is_decoder: bool = False
    add_cross_attention: bool = False
    pruned_heads: tuple[tuple[int, tuple[int, ...]], ...] = ()
    problem_type: str | None = None
    pooling: str = ""
    normalize: bool = False
    dense: tuple[Dense, ...] = ()

    def __post_init__(self) -> None:
        """Validate the fields; raises `UnsupportedArchitectureError` for an architecture that the equations do not cover."""
        for problem in chain(self._wrong_numbers(), self._wrong_parts()):
            raise UnsupportedArchitectureError(problem)

    def _wrong_numbers(self) -> Iterator[str]:
        for name, least in _COUNTS.items():
            value, largest = getattr(self, name), _LARGEST.get(name, _INT32)
            if not isinstance(value, int) or not least <= value <= largest:
                yield f"{name} is {value!r:.40}, expected an integer from {least} to {largest}"
        if not isinstance(self.layer_norm_eps, float) or not 0.0 <= self.layer_norm_eps < math.inf:
            yield f"layer_norm_eps is {self.layer_norm_eps!r:.40}, expected a number of at least 0"
        for name in _RATES:
            rate = getattr(self, name)
            if not (rate is None and name == "classifier_dropout") and not (isinstance(rate, int | float) and 0.0 <= rate <= 1.0):
                yield f"{name} is {rate!r:.40}, expected a probability"
        if not isinstance(self.initializer_range, float) or not 0.0 < self.initializer_range < math.inf:
            yield f"initializer_range is {self.initializer_range!r:.40}, expected a positive number"
        if self.hidden_size % self.num_attention_heads:
            yield f"hidden_size {self.hidden_size} is not a multiple of num_attention_heads {self.num_attention_heads}"
        if self.position_offset >= self.max_position_embeddings:
            yield (
                f"position_offset is {self.position_offset}, and max_position_embeddings {self.max_position_embeddings} leaves no "
                "position for a token; expected a smaller offset"
            )

    def _wrong_parts(self) -> Iterator[str]:
        choices = {"hidden_act": ACTIVATION_FUNCTIONS, "position_embedding_type": POSITIONS, "pooling": POOLINGS}
        for what, choice in {**choices, "problem_type": PROBLEMS}.items():
            if getattr(self, what) not in choice:
                yield f"{what} {getattr(self, what)!r} has no equation here; known are {', '.join(map(str, choice))}"
        if (self.normalize or self.dense) and not self.pooling:
            yield "normalize and dense are of a sentence embedding, and there is no pooling"
        for layer, pruned in self.pruned_heads:
            there = 0 <= layer < self.num_hidden_layers and set(pruned) < set(range(self.num_attention_heads))
            if not there or len(set(pruned)) != len(pruned):
                yield (
                    f"pruned_heads has {list(pruned)!r:.60} of layer {layer}; expected some of the {self.num_attention_heads} "
                    f"heads, numbered from 0, of one of the {self.num_hidden_layers} layers, each once and not all"
                )
        layers = [layer for layer, _ in self.pruned_heads]
        if len(set(layers)) != len(layers):
            yield f"pruned_heads has layers {layers!r:.60}; expected each of them once"
        if self.add_cross_attention and not self.is_decoder:
            yield "add_cross_attention is set without is_decoder; cross-attention is a decoder's"
        if unknown := set(self.heads) - set(HEADS):
            yield f"unknown heads {sorted(unknown)}; known are {', '.join(HEADS)}"
        if {"next_sentence", "classification", "multiple_choice"} & set(self.heads) and not self.pooler:
            yield "the heads next_sentence, classification and multiple_choice need a pooler"
        for alike in SAME_NAMES:
            both = [head for head in alike if head in self.heads]
            if len(both) > 1:
                yield f"the heads {' and '.join(both)} have the same names; choose one"

    @property
    def head_size(self) -> int:
        """The width d_k of one attention head."""
        return self.hidden_size // self.num_attention_heads

    def heads_of(self, layer: int) -> int:
        """Return the number of self-attention heads of a layer."""
        return self.num_attention_heads - sum(len(heads) for number, heads in self.pruned_heads if number == layer)

    @property
    def has_relative_positions(self) -> bool:
        """Whether positions enter the attention scores as distances, instead of being added to the embeddings."""
        return self.position_embedding_type.startswith("relative")

    @property
    def problem(self) -> str:
        """The training problem of the sequence classifier: `problem_type`, or Hugging Face's default if that is None."""
        return self.problem_type or (REGRESSION if self.num_labels == 1 else SINGLE_LABEL)

    @property
    def unconfirmed(self) -> str:
        """A sentence that lists the numbers that no parameter's shape confirms and that are known only from `config.json`.

        An implementation that reads the same configuration agrees with the oracle on them, even if the network was trained with
        others.
        """
        names = ("num_attention_heads", "layer_norm_eps", "hidden_act", "position_offset")
        numbers = ", ".join(f"{name} {getattr(self, name)}" for name in names)
        return (
            f"{numbers}: from the configuration, and confirmed by nothing else, since no shape of a parameter shows them; a "
            "system that reads the same agrees on them even where they are not those of the training"
        )

    @property
    def longest(self) -> int:
        """The largest number of tokens in a row: position ids run from `position_offset` to `max_position_embeddings` − 1."""
        return self.max_position_embeddings - self.position_offset

    @classmethod
    def from_config(cls, config: Mapping[str, Any], **switches: Any) -> "Architecture":
        """Return the architecture described by a Hugging Face `config.json`.

        Args:
            config: the configuration; keys that are not fields of this class are ignored.
            switches: fields that take precedence over the configuration.

        Raises:
            UnsupportedArchitectureError: a key is missing or of the wrong type, or there are no equations for its value.
        """
        names = {f.name for f in fields(cls)}
        known = {k: v for k, v in {**config, **switches}.items() if k in names}
        if isinstance(pruned := known.get("pruned_heads"), Mapping):
            known["pruned_heads"] = _pairs(pruned)
        try:
            return msgspec.convert(known, cls)
        except msgspec.ValidationError as error:
            raise UnsupportedArchitectureError(f"no architecture: {error}") from error

    def as_dict(self) -> dict[str, Any]:
        """Return a plain dictionary, with heads as a list and pruned heads as in a `config.json`; `dense` is omitted if empty.

        The digest of a golden is computed from this dictionary. Omitting an empty `dense` keeps the digests of goldens that were
        made before the field existed.
        """
        pruned = {str(layer): list(heads) for layer, heads in self.pruned_heads}
        found = {**asdict(self), "heads": list(self.heads), "pruned_heads": pruned, "dense": [asdict(d) for d in self.dense]}
        return {name: value for name, value in found.items() if name != "dense" or value}

    def __getattr__(self, name: str) -> Any:
        """Raise an `AttributeError` that lists the fields; Python calls this only for names that do not exist."""
        raise AttributeError(f"an architecture has no {name!r}; it has {', '.join(f.name for f in fields(Architecture))}")

    def with_(self, **changes: Any) -> "Architecture":
        """Return a copy of the architecture with the given fields replaced."""
        return replace(self, **changes)


def _pairs(pruned: Mapping[Any, Any]) -> list[tuple[int, tuple[int, ...]]]:
    """Return sorted (layer, heads) pairs from the `pruned_heads` of a `config.json`, whose keys are layer numbers as strings."""
    try:
        return sorted((int(layer), tuple(sorted(heads))) for layer, heads in pruned.items())
    except (TypeError, ValueError) as error:
        raise UnsupportedArchitectureError(
            f'pruned_heads is {pruned!r:.60}, expected a list of heads for each layer, such as {{"0": [1, 3]}}'
        ) from error


# Features beyond the BERT of the paper; a candidate is tested for one only if it lists it in its `features`. A candidate that
# ignores a number in the config is wrong; one that is not a decoder, or that has no relative positions, is a different network.
FEATURES = {
    "relative_key": "relative positions, of queries",
    "relative_key_query": "relative positions, of queries and keys",
    "is_decoder": "attention to earlier tokens alone",
    "add_cross_attention": "attention to an encoder's states",
    "pruned_heads": "layers with fewer heads",
    "position_ids": "position ids given with the batch",
    "attention_mask_3d": "a mask for each query",
    "dense": "dense layers behind the pooling of a sentence embedding",
}


def features_of(a: Architecture, batches: "Iterable[Batch]" = ()) -> list[str]:
    """Return the features that an architecture and batches require, in the order of `FEATURES`.

    Example:
        >>> features_of(load_golden("decoder").checkpoint.architecture)
        ['is_decoder']
    """
    found = {a.position_embedding_type} | {name for name in FEATURES if getattr(a, name, False)}
    for batch in batches:
        found |= {"position_ids"} if batch.position_ids is not None else set()
        found |= {"attention_mask_3d"} if batch.attention_mask is not None and batch.attention_mask.ndim == 3 else set()
    return [name for name in FEATURES if name in found]
