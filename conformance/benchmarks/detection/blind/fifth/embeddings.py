"""Mistakes in the embeddings: positions, token types and the table of words."""

import torch
from torch import Tensor

from conformance.benchmarks.detection.blind.port import Mistake, Port, Weights

_WORDS = "bert.embeddings.word_embeddings.weight"
_WORD = ("embeddings.word_embeddings",)
_POSITION = ("embeddings.position_embeddings",)
_TYPE = ("embeddings.token_type_embeddings",)
_TIED = ("embeddings.word_embeddings", "cls.predictions.decoder")


def _places(port: Port, positions: Tensor) -> Tensor:
    return port.weights["bert.embeddings.position_embeddings.weight"][positions]


def _counted(ids: Tensor) -> Tensor:
    return torch.arange(ids.shape[1], device=ids.device).expand_as(ids)


def _as_left_padded(port: Port, _: None, ids: Tensor, types: Tensor, mask: Tensor) -> Tensor:
    padding = ids.shape[1] - mask.sum(1, keepdim=True)
    return _places(port, (_counted(ids) - padding).clamp(min=0))


def _anew_in_chunks(port: Port, _: None, ids: Tensor, types: Tensor, mask: Tensor) -> Tensor:
    return _places(port, _counted(ids) % 4)


def _anew_in_segments(port: Port, _: None, ids: Tensor, types: Tensor, mask: Tensor) -> Tensor:
    counted = _counted(ids)
    begins = torch.ones_like(types, dtype=torch.bool)
    begins[:, 1:] = types[:, 1:] != types[:, :-1]
    return _places(port, counted - (counted * begins).cummax(1).values)


def _boundary_in_both_shards(port: Port, _: None, ids: Tensor) -> Tensor:
    table = port.weights[_WORDS]
    first, second = table.chunk(2)
    of_first = first[ids.clamp(max=len(first) - 1)] * (ids <= len(first))[..., None]
    of_second = second[(ids - len(first)).clamp(min=0)] * (ids >= len(first))[..., None]
    return of_first + of_second


def _first_type_is_padding(port: Port, _: None, types: Tensor) -> Tensor:
    return port.weights["bert.embeddings.token_type_embeddings.weight"][types] * (types != 0)[..., None]


def _types_of_first_row(port: Port, _: None, types: Tensor) -> Tensor:
    return port.weights["bert.embeddings.token_type_embeddings.weight"][types[:1].expand_as(types)]


def _bits_as_half(weights: Weights, layers: tuple[int, ...]) -> None:
    table = weights[_WORDS]
    weights[_WORDS] = table.to(torch.bfloat16).view(torch.float16).to(table.dtype)


def _bytes_in_blocks(weights: Weights, layers: tuple[int, ...]) -> None:
    table = weights[_WORDS]
    blocks = table.float().view(-1, 32)
    scale = (blocks.abs().amax(1, keepdim=True) / 127).half().float()
    weights[_WORDS] = ((blocks / scale).round() * scale).view_as(table).to(table.dtype)


MISTAKES = (
    Mistake(
        "positions as in left padding",
        "The number of padding tokens is taken off every position, also where padding is on the right; below 0 is 0.",
        "a server that pads on the left, as it did for a decoder, given a batch that is padded on the right",
        "all",
        _POSITION,
        "says that positions depend on the padding, or are shifted by it",
        {"positions": _as_left_padded},
    ),
    Mistake(
        "positions begin anew in each chunk",
        "The position is the index in a chunk of four tokens.",
        "a prefill in chunks, or a kernel that uses the index in its tile and forgets the tile's offset",
        "all",
        _POSITION,
        "says that positions repeat, or begin anew every few tokens",
        {"positions": _anew_in_chunks},
    ),
    Mistake(
        "positions begin anew in each segment",
        "Positions count from 0 wherever the token type changes.",
        "a collator that packs sequences and resets positions at each boundary, which takes the segments for sequences",
        "all",
        _POSITION,
        "says that positions depend on the token types, or restart with the segment",
        {"positions": _anew_in_segments},
    ),
    Mistake(
        "boundary word in both shards",
        "The first word of the second shard is also looked up in the first shard, where the index is clamped to its last row.",
        "vocabulary-parallel embeddings that test `id <= end`, with JAX's clamped gather",
        "all",
        _WORD,
        "says that the vectors of one word, or a few words, are not the table's",
        {"word": _boundary_in_both_shards},
    ),
    Mistake(
        "first type is padding",
        "Tokens of type 0 have a zero vector as their token type embedding.",
        "a segment embedding declared with padding_idx=0, as where segments are numbered from 1",
        "all",
        _TYPE,
        "says that the embedding of type 0 is missing or zero",
        {"types": _first_type_is_padding},
    ),
    Mistake(
        "types of the first row",
        "All rows have the token types of the first row.",
        "an export that made (1, S) of the types and broadcasts them",
        "all",
        _TYPE,
        "says that token types are another row's, or the same in all rows",
        {"types": _types_of_first_row},
    ),
    Mistake(
        "bfloat16 read as float16",
        "The bytes of the word table, which is stored in bfloat16, are read as float16.",
        "a parser of safetensors in JavaScript or Rust that has one type of 16 bits",
        "all",
        _TIED,
        "says that the table is in another format, or that its parameters are not the checkpoint's",
        load=_bits_as_half,
    ),
    Mistake(
        "word table of Q8_0",
        "The word table is rounded to bytes in blocks of 32, with a scale in float16 for each; the decoder uses the same table.",
        "ggml's default for token_embd in a quantised file",
        "all",
        _TIED,
        "says that the table is quantised, or rounded to eight bits",
        load=_bytes_in_blocks,
    ),
)
