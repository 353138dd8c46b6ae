"""Mistakes of tensors that are split over ranks."""

from torch import Tensor
from torch.nn import functional as F

from conformance.benchmarks.detection.blind.port import OPERATIONS, Mistake, Operation, Port, prefix

_WORD, _PROJECTED, _OUTER = "embeddings.word_embeddings", "attention.output.dense", "output.dense"
_RANKS = 2


def _first_rank_only(port: Port, _: None, ids: Tensor) -> Tensor:
    """Zeros for the tokens in the other rank's part of the vocabulary."""
    kept = ids < port.architecture.vocab_size // _RANKS
    return OPERATIONS["word"](port, None, ids) * kept[..., None]


def _bias_of_each_rank(step: str, name: str) -> Operation:
    """That linear layer, with the bias that each of the ranks adds."""

    def replaced(port: Port, layer: int, x: Tensor) -> Tensor:
        return OPERATIONS[step](port, layer, x) + (_RANKS - 1) * port.weights[f"{prefix(layer)}.{name}.bias"]

    return replaced


def _first_rank_of_inputs(port: Port, layer: int, x: Tensor) -> Tensor:
    """The sum over the first rank's inputs, with the bias."""
    own = x.shape[-1] // _RANKS
    return OPERATIONS["outer"](port, layer, F.pad(x[..., :own], (0, x.shape[-1] - own)))


MISTAKES = (
    Mistake(
        "other rank's part of the vocabulary",
        "The word embeddings of the tokens in the second half of the vocabulary are zero.",
        "a vocabulary split over two ranks, whose embeddings are not added up; common in exercises",
        "all",
        (_WORD,),
        "says that the word embeddings of some tokens are zero, or that a part of the table is missing",
        {"word": _first_rank_only},
    ),
    Mistake(
        "bias on every rank",
        "The output projection and the feed-forward's second layer add their biases twice.",
        "linear layers split by their inputs over two ranks: text-generation-inference issue 1036, slapo issue 10",
        "some",
        (_PROJECTED, _OUTER),
        "says that the biases are added twice",
        {"attention_dense": _bias_of_each_rank("attention_dense", _PROJECTED), "outer": _bias_of_each_rank("outer", _OUTER)},
    ),
    Mistake(
        "sum over the ranks left out",
        "The feed-forward's second layer has the first half of its inputs only.",
        "a linear layer split by its inputs over two ranks, whose outputs are not added up; common in exercises",
        "last",
        (_OUTER,),
        "says that half of the inputs, or a part of the weight, is missing",
        {"outer": _first_rank_of_inputs},
    ),
)
