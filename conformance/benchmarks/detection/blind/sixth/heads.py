"""Mistakes in what the heads read and compute."""

import torch
from torch import Tensor
from torch.nn import functional as F

from conformance.benchmarks.detection.blind.port import OPERATIONS, Mistake, Port, Weights

_NEXT = "cls.seq_relationship"
_TRANSFORM = "cls.predictions.transform"
_DECODER = ("cls.predictions.decoder",)
_MASK = "mask of the batch"


def _mean_of_all(port: Port, _: None, hidden: Tensor) -> Tensor:
    return port.linear("bert.pooler.dense", hidden.mean(1))


def _of_hidden(port: Port, _: None, pooled: Tensor, hidden: Tensor) -> Tensor:
    return port.linear(_NEXT, hidden[:, 0])


def _untied(port: Port, _: None, x: Tensor) -> Tensor:
    table = port.weights["bert.embeddings.word_embeddings.weight"]
    initial = torch.randn(table.shape, generator=torch.Generator().manual_seed(0)) * port.architecture.initializer_range
    return F.linear(x, initial.to(x.dtype), port.weights["cls.predictions.bias"])


def _log_probabilities(port: Port, _: None, x: Tensor) -> Tensor:
    return OPERATIONS["decoder"](port, None, x).log_softmax(-1)


def _keeps_mask(port: Port, _: None, ids: Tensor, types: Tensor, mask: Tensor) -> Tensor:
    port.found[_MASK] = mask
    return OPERATIONS["positions"](port, None, ids, types, mask)


def _padded_on_the_right(port: Port, _: None, hidden: Tensor) -> Tensor:
    mask = port.found.pop(_MASK)
    order = mask.sort(dim=1, descending=True, stable=True).indices
    packed = hidden.gather(1, order[:, :, None].expand_as(hidden))
    return packed * mask.gather(1, order)[:, :, None].to(hidden.dtype)


def _exchanged_classes(weights: Weights, layers: tuple[int, ...]) -> None:
    for kind in ("weight", "bias"):
        weights[f"{_NEXT}.{kind}"] = weights[f"{_NEXT}.{kind}"].flip(0)


MISTAKES = (
    Mistake(
        "pooler of the mean",
        "The pooler projects the mean over all tokens of a row, padding included.",
        "a sentence-embedding export that replaces what the pooler reads",
        "all",
        ("pooler.dense",),
        "says that the pooler reads the mean of all tokens",
        {"pooler": _mean_of_all},
    ),
    Mistake(
        "next-sentence head without the pooler",
        "The next-sentence head reads the first token's hidden state.",
        "a port that gives the head element 0 of the model's output",
        "all",
        (_NEXT,),
        "says that the head reads the hidden state instead of the pooler's output",
        {"next_sentence": _of_hidden},
    ),
    Mistake(
        "classes of the next-sentence head exchanged",
        "The two outputs of the next-sentence head are exchanged.",
        "a converter that makes label 1 mean that the sentence follows",
        "all",
        (_NEXT,),
        "says that the outputs, or rows of the weights, are exchanged or reversed",
        load=_exchanged_classes,
    ),
    Mistake(
        "decoder left at its initial values",
        "The decoder's weight is random, with the standard deviation of the initial values.",
        "a decoder that is not tied again after loading, with a missing key that is only a warning",
        "all",
        _DECODER,
        "says that the decoder is not tied, or has initial values",
        {"decoder": _untied},
    ),
    Mistake(
        "log-probabilities for logits",
        "The decoder returns the log-softmax of its logits.",
        "Google's get_masked_lm_output, whose second result is log_probs, or an inference server",
        "all",
        _DECODER,
        "says that the logits are a log-softmax",
        {"decoder": _log_probabilities},
    ),
    Mistake(
        "rows padded on the right again",
        "After the encoder, the tokens that are attended to stand at the beginning of their row, followed by zeros.",
        "a batch without padding that is padded again by lengths instead of by indices",
        "all",
        # The pooler's input is wrong only where the first token is padding, and that is not judged.
        (f"{_TRANSFORM}.dense",),
        "says that tokens have moved within their row, or that the head reads other tokens",
        {"positions": _keeps_mask, "last": _padded_on_the_right},
    ),
)
