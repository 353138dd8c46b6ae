"""Mistakes in the three embeddings and in their sum."""

from collections.abc import Callable
from typing import Unpack

import torch
from torch import Tensor

from conformance.benchmarks.detection.bert import Bert
from conformance.benchmarks.detection.planted.plant import Options, Plant, after, in_place, override, parameter
from conformance.benchmarks.detection.steps import Inputs, PositionLookup, WordLookup, sinusoids
from conformance.model.architecture import Architecture

WORDS, POSITIONS, TYPES = (f"embeddings.{n}_embeddings" for n in ("word", "position", "token_type"))


def _order(inputs: Inputs) -> Tensor:
    """Return the positions 0, 1, 2, …, (1, S)."""
    return torch.arange(inputs.ids.shape[1], device=inputs.ids.device)[None]


def _restarted(inputs: Inputs) -> Tensor:
    """Return positions counted from the last change of the token type."""
    types, order = inputs.types, _order(inputs)
    begins = torch.cat([torch.zeros_like(types[:, :1]), (types[:, 1:] != types[:, :-1]).to(types.dtype)], 1)
    return order - (order * begins).cummax(1).values


def _many_types(a: Architecture) -> bool:
    return a.type_vocab_size > 1


def _two_types(a: Architecture) -> bool:
    return a.type_vocab_size == 2


def _is_learned(a: Architecture) -> bool:
    return a.position_embedding_type == "absolute"


def _is_sinusoidal(a: Architecture) -> bool:
    return a.position_embedding_type == "sinusoidal"


def _read(lookup: WordLookup, rows: Callable[[Inputs], Tensor]) -> None:
    """Let a look-up read other rows, clamped to the table."""
    override(lookup, "rows", lambda inputs: rows(inputs).clamp(0, len(lookup.weight) - 1))


def _positions(name: str, description: str, rows: Callable[[Inputs], Tensor]) -> Plant:
    return in_place(name, description, lambda model: _read(model.embeddings.position_embeddings, rows), POSITIONS)


def _types(name: str, description: str, rows: Callable[[Inputs], Tensor], **options: Unpack[Options]) -> Plant:
    return in_place(name, description, lambda model: _read(model.embeddings.token_type_embeddings, rows), TYPES, **options)


def _computed_positions(model: Bert) -> None:
    """Replace the learned table by sinusoids."""
    lookup = model.embeddings.position_embeddings
    lookup.weight = parameter(sinusoids(*lookup.weight.shape).to(lookup.weight))


def _waves(rows: int, width: int, sines: Callable[[Tensor], Tensor], cosines: Callable[[Tensor], Tensor]) -> Tensor:
    """Return a (rows, width) table of alternating sines and cosines of position · 10000^(−e).

    `sines` and `cosines` return the exponents e from 0, 2, 4, ….
    """
    even, position = torch.arange(0, width, 2).double(), torch.arange(rows).double()[:, None]
    pairs = [(position * 10000.0 ** -sines(even)).sin(), (position * 10000.0 ** -cosines(even)).cos()]
    return torch.stack(pairs, -1).flatten(1)[:, :width]


def _exponents(rows: int, width: int) -> Tensor:
    """Double i in the exponent although it already steps by two: (2 i)/d for the sine, 2 (i + 1)/d for the cosine."""
    return _waves(rows, width, lambda i: 2 * i / width, lambda i: 2 * (i + 1) / width)


def _base(rows: int, width: int) -> Tensor:
    """Use the base 1000 for 10000, which multiplies the exponent by three quarters."""
    return _waves(rows, width, lambda i: 0.75 * i / width, lambda i: 0.75 * i / width)


def _halves(rows: int, width: int) -> Tensor:
    """Put all sines before all cosines."""
    table = sinusoids(rows, width)
    return torch.cat([table[:, ::2], table[:, 1::2]], -1)


def _exchanged(rows: int, width: int) -> Tensor:
    """Put cosines at even features and sines at odd ones."""
    table = sinusoids(rows, width)
    return torch.stack([table[:, 1::2], table[:, ::2]], -1).flatten(1)


def _sinusoid(name: str, description: str, table: Callable[[int, int], Tensor]) -> Plant:
    def install(model: Bert) -> None:
        lookup: PositionLookup = model.embeddings.position_embeddings
        lookup.weight = table(*lookup.weight.shape).to(lookup.weight)

    return in_place(name, description, install, POSITIONS, suits=_is_sinusoidal)


def _words_scaled(model: Bert) -> None:
    """Multiply by √H, as in a Transformer that shares its embedding table with the output projection."""
    after(model.embeddings.word_embeddings, lambda words: words * words.shape[-1] ** 0.5)


def _words_shifted(model: Bert) -> None:
    """Read the row of id + 1."""
    _read(model.embeddings.word_embeddings, lambda inputs: inputs.ids + 1)


def _padding_zeroed(model: Bert) -> None:
    """Set row 0 of the table that is read to zero; a decoder tied to the table keeps the stored row."""
    lookup = model.embeddings.word_embeddings
    lookup.weight = parameter(lookup.weight)
    lookup.weight[0] = 0.0


def _third_zeroed(model: Bert) -> None:
    """Set the rows 1, 4, 7, … of the table that is read to zero."""
    lookup = model.embeddings.word_embeddings
    lookup.weight = parameter(lookup.weight)
    lookup.weight[1::3] = 0.0


def _first_type_zeroed(model: Bert) -> None:
    """Set the row of token type 0 to zero."""
    lookup = model.embeddings.token_type_embeddings
    lookup.weight = parameter(lookup.weight)
    lookup.weight[0] = 0.0


def _of_sum(a: Architecture, _: int) -> frozenset[str]:
    return frozenset([f"embeddings.{'LayerNorm' if a.embedding_norm else 'sum'}"])


def _summed(name: str, description: str, wrong: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Plant:
    """Return a mistake in the sum of the word, token-type and position embeddings."""
    return Plant(name, description, lambda model, _: override(model.embeddings.last, "add", wrong), False, _of_sum)


def _without(kind: str) -> Callable[[Bert, int], None]:
    """Return an install function that leaves out one of the embeddings, which is not looked up either."""

    def install(model: Bert, _: int) -> None:
        own = model.embeddings
        lookups = {"token_type": own.token_type_embeddings, "position": own.position_embeddings}
        del lookups[kind]
        (other,) = lookups.values()
        override(own, "forward", lambda inputs: own.dropout(own.last(own.word_embeddings(inputs), other(inputs))))

    return install


def _after_norm(model: Bert) -> None:
    """Compute LayerNorm(word + token type) + position."""
    norm = model.embeddings.LayerNorm
    override(norm, "forward", lambda word, kind, position: norm.normalise(word + kind) + position)


def _type_after_norm(model: Bert) -> None:
    """Compute LayerNorm(word + position) + token type."""
    norm = model.embeddings.LayerNorm
    override(norm, "forward", lambda word, kind, position: norm.normalise(word + position) + kind)


def _embedded_again(model: Bert) -> None:
    """Add token type and position to the norm's result, and norm the sum once more."""
    norm = model.embeddings.LayerNorm

    def forward(word: Tensor, kind: Tensor, position: Tensor) -> Tensor:
        return norm.normalise(norm.add(norm.normalise(norm.add(word, kind, position)), kind, position))

    override(norm, "forward", forward)


def _interpolated(model: Bert) -> None:
    """Read the table at half of the position, between two rows where that is no whole number."""
    lookup: PositionLookup = model.embeddings.position_embeddings

    def forward(inputs: Inputs) -> Tensor:
        at = lookup.rows(inputs) / 2
        low = at.long()
        table = lookup.weight
        return torch.lerp(table[low], table[low + 1], (at - low)[..., None].to(table.dtype))

    override(lookup, "forward", forward)


def _shards_added(model: Bert) -> None:
    """Look up each id in both halves of the table, as id 0 of the half that does not have it, and add."""
    lookup = model.embeddings.word_embeddings

    def forward(inputs: Inputs) -> Tensor:
        half, ids = len(lookup.weight) // 2, inputs.ids
        lower = lookup.weight[torch.where(ids < half, ids, 0)]
        return lower + lookup.weight[torch.where(ids < half, half, ids)]

    override(lookup, "forward", forward)


def _repeated(model: Bert) -> None:
    """Apply the embeddings' norm to its own result."""
    norm = model.embeddings.LayerNorm
    override(model.embeddings.dropout, "forward", norm.normalise)


def _first_type(model: Bert) -> None:
    """Add the embedding of token type 0 to the positions."""
    own = model.embeddings
    right = own.last.add
    override(own.last, "add", lambda word, kind, position: right(word, kind, position) + own.token_type_embeddings.weight[0])


PLANTS = (
    in_place("words-added", "row V/2 is added to the words below it, row 0 to the others", _shards_added, WORDS),
    in_place("norm-repeated", "LayerNorm(LayerNorm(x)) of the embeddings, with the same γ and β",
             _repeated, "embeddings.dropout", suits=lambda a: a.embedding_norm),
    Plant("token-type-zero-added", "the embedding of token type 0 is added once more, to all tokens",
          lambda model, _: _first_type(model), False, _of_sum),
    in_place("positions-scaled", "position s is halfway between rows where s is odd, and row s / 2 elsewhere",
             _interpolated, POSITIONS, suits=_is_learned),
    in_place("dropout-scaled", "the embeddings times 0.9 in place of dropout",
             lambda model: after(model.embeddings.dropout, lambda x: 0.9 * x), "embeddings.dropout"),
    Plant("positions-after-norm", "LayerNorm(word + token type) + position",
          lambda model, _: _after_norm(model), False, _of_sum, lambda a: a.embedding_norm),
    Plant("token-types-after-norm", "LayerNorm(word + position) + token type",
          lambda model, _: _type_after_norm(model), False, _of_sum, lambda a: a.embedding_norm),
    in_place("embeddings-again", "LayerNorm(LayerNorm(word + token type + position) + token type + position)",
             _embedded_again, "embeddings.LayerNorm", suits=lambda a: a.embedding_norm),
    _positions("positions-shifted", "position s reads row s + 2", lambda i: _order(i) + 2),
    _positions("positions-from-one", "position s reads row s + 1", lambda i: _order(i) + 1),
    _positions("positions-repeated", "every position reads row 0", lambda i: torch.zeros_like(_order(i))),
    _positions("positions-from-token-types", "token_type_ids are used as position ids", lambda i: i.types),
    _positions("positions-reversed", "position s reads row S − 1 − s", lambda i: _order(i).flip(-1)),
    _positions("positions-counted-by-mask", "the position of a token is the number of unmasked tokens before it",
               lambda i: i.mask.cumsum(-1) - i.mask),
    _positions("positions-by-row", "position s of row b reads row b",
               lambda i: torch.arange(len(i.ids), device=i.ids.device)[:, None].expand_as(i.ids)),
    _positions("positions-over-batch", "the positions of row b begin where those of row b − 1 end, clipped to the table",
               lambda i: torch.arange(i.ids.numel(), device=i.ids.device).view(i.ids.shape)),
    _positions("positions-restarted", "positions are counted from the last change of the token type", _restarted),
    _positions("positions-left-padded", "the number of padding tokens is subtracted from the positions, clipped to the table",
               lambda i: _order(i) - (i.mask == 0).sum(-1, keepdim=True)),
    _positions("positions-offset", "position s reads row s + 3", lambda i: _order(i) + 3),
    _positions("positions-wrapped", "position s reads row s mod 4", lambda i: _order(i) % 4),
    _positions("positions-clipped", "positions past 5 read row 5", lambda i: _order(i).clamp(max=5)),
    _positions("positions-other", "position s reads row 2 s", lambda i: 2 * _order(i)),
    _types("token-types-ignored", "the token types are all zeros", lambda i: torch.zeros_like(i.types), suits=_many_types),
    _types("token-types-shifted", "type t reads row t + 1, clipped to the table", lambda i: i.types + 1, suits=_many_types),
    _types("token-types-from-mask", "the attention mask is used as token types", lambda i: i.mask, suits=_many_types),
    _types("token-types-from-positions", "position ids, clipped to the table, are used as token types",
           lambda i: _order(i).expand_as(i.types), suits=_many_types),
    _types("token-types-inverted", "type t reads row 1 − t", lambda i: 1 - i.types, suits=_two_types),
    _sinusoid("sinusoid-exponent",
              "sine exponent (2i)/d with i stepping by two already, cosine 2(i + 1)/d; sinusoidal positions only",
              _exponents),
    _sinusoid("sinusoid-halves", "all sines in the first half of the features, cosines in the second; sinusoidal positions only",
              _halves),
    _sinusoid("sinusoid-order", "cosine at even, sine at odd features; sinusoidal positions only", _exchanged),
    _sinusoid("sinusoid-base", "1000 for 10000; sinusoidal positions only", _base),
    _summed("positions-doubled", "the position embedding is added twice",
            lambda word, kind, position: word + kind + position + position),
    _summed("token-types-doubled", "the token-type embedding is added twice",
            lambda word, kind, position: word + kind + kind + position),
    in_place("positions-sinusoidal", "the learned table is ignored, sinusoids are used",
             _computed_positions, POSITIONS, suits=_is_learned),
    Plant("positions-missing", "no position embedding", _without("position"), False, _of_sum),
    Plant("token-types-missing", "no token-type embedding", _without("token_type"), False, _of_sum),
    in_place("word-embeddings-scaled", "the word embedding is multiplied by √H", _words_scaled, WORDS),
    in_place("words-zeroed", "the word embeddings of every third id are zero", _third_zeroed, WORDS),
    in_place("padding-word-zeroed", "the word embedding of id 0 is zero", _padding_zeroed, WORDS),
    in_place("token-type-zero-zeroed", "row 0 of the table of token types is zero",
             _first_type_zeroed, TYPES, suits=_many_types),
    in_place("words-shifted", "id + 1, clipped to the table", _words_shifted, WORDS),
    in_place("words-shifted-back", "id − 1, clipped to the table",
             lambda m: _read(m.embeddings.word_embeddings, lambda inputs: inputs.ids - 1), WORDS),
    in_place("words-other", "the ids of each row in reverse order",
             lambda m: _read(m.embeddings.word_embeddings, lambda inputs: inputs.ids.flip(-1)), WORDS),
)  # fmt: skip
