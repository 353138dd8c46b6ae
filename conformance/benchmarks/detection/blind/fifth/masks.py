"""Mistakes in the attention mask."""

import torch
from torch import Tensor

from conformance.benchmarks.detection.blind.port import Mistake, Port

_PROBS = ("attention.self.probs",)


def _over(x: Tensor, attended: Tensor) -> Tensor:
    """Softmax over what is attended to; `attended` broadcasts to (B, h, S, S)."""
    return x.masked_fill(~attended, torch.finfo(x.dtype).min).softmax(-1)


def _index(mask: Tensor) -> Tensor:
    return torch.arange(mask.shape[1], device=mask.device)


def _equal(port: Port, kind: str, row: int) -> Tensor:
    """Where the embedding of that kind is the table's row, (B, S)."""
    found = port.found[f"embeddings.{kind}_embeddings"]
    return (found == port.weights[f"bert.embeddings.{kind}_embeddings.weight"][row]).all(-1)


def _of_queries(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    return _over(x, mask[:, None, :, None] != 0)


def _of_ids(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    return _over(x, ~_equal(port, "word", 0)[:, None, None])


def _to_the_last(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    last = (mask * _index(mask)).amax(1, keepdim=True)
    return _over(x, (_index(mask) <= last)[:, None, None])


def _sorted_lengths(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    lengths = mask.sum(1).sort(descending=True).values
    return _over(x, (_index(mask) < lengths[:, None])[:, None, None])


def _as_numbers(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    return (x + mask[:, None, None].to(x.dtype)).softmax(-1)


def _none(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    return x.softmax(-1)


def _sequence_to_sequence(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    target = _equal(port, "token_type", 1)
    earlier = _index(mask)[:, None] >= _index(mask)
    allowed = ~target[:, None, :] | (target[:, :, None] & earlier)
    return _over(x, (allowed & (mask[:, None] != 0))[:, None])


MISTAKES = (
    Mistake(
        "mask of the queries",
        "The mask is broadcast along queries, (B, 1, S, 1): keys of padding are attended to.",
        "a port to JAX or tinygrad that inserts the axis on the other side",
        "all",
        _PROBS,
        "says that the mask is on the wrong axis, or that padding is attended to",
        {"probs": _of_queries},
    ),
    Mistake(
        "mask made from the ids",
        "Keys are attended to unless their id is 0; the mask that is given is not read.",
        "a Rust port with `input_ids.ne(0)`",
        "all",
        _PROBS,
        "says that the mask is another one, or ignored",
        {"probs": _of_ids},
    ),
    Mistake(
        "keys to the last token",
        "All keys up to the last attended one are attended to, also padding before and between.",
        "a mask turned into a length by the index of its last one",
        "all",
        _PROBS,
        "says that the mask is taken for a length, or that some padding is attended to",
        {"probs": _to_the_last},
    ),
    Mistake(
        "mask of sorted lengths",
        "The mask is made of the rows' lengths in descending order, while the rows are in theirs.",
        "bucketing that sorts by length, as for pack_padded_sequence, and does not sort the ids with it",
        "all",
        _PROBS,
        "says that the mask is another row's, or another one",
        {"probs": _sorted_lengths},
    ),
    Mistake(
        "mask added as zeros and ones",
        "The mask is added to the scores as it is: attended keys have a score that is higher by one.",
        "scaled_dot_product_attention given a mask of floats where it takes one of booleans",
        "all",
        _PROBS,
        "says that the mask is added as it is, or does not exclude padding",
        {"probs": _as_numbers},
    ),
    Mistake(
        "mask not passed on",
        "All layers but the first attend to padding.",
        "pipeline parallelism whose stages pass the hidden state alone",
        "later",
        _PROBS,
        "says that the mask is ignored",
        {"probs": _none},
    ),
    Mistake(
        "mask of sequence to sequence",
        "Tokens of type 0 attend to tokens of type 0, those of type 1 also to tokens of type 1 up to themselves.",
        "UniLM's fine-tuning mask, left on",
        "all",
        _PROBS,
        "says that attention depends on the token types, or is causal in the second segment",
        {"probs": _sequence_to_sequence},
    ),
)
