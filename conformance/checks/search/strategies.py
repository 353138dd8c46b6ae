"""Hypothesis strategies for batches with any length, mask and token that a network accepts, the simplest first.

A failure shrinks to the simplest batch: one row of one token with id 0, no mask and no token types. Most lengths are short; some
are adjacent to a power of two, where kernels change their algorithm, or the maximal length.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeVar

import numpy as np
from hypothesis import strategies as st

from conformance.model.architecture import Architecture
from conformance.model.batch import Batch, Ids
from conformance.numerics.formats import Array
from conformance.oracle.gradients.sums import coefficients

T = TypeVar("T")
Pattern = Literal["omitted", "ones", "right", "left", "holes"]
PATTERNS: tuple[Pattern, ...] = ("omitted", "ones", "right", "left", "holes")

STATES = 6  # the largest number of encoder states
ROWS, TOKENS = 4, 12  # usual limits of a batch: large enough to combine all kinds of padding, small enough to read
MOST_ROWS = 2**10 + 1  # of a large batch, beyond the batch sizes for which engines reserve their buffers
ELEMENTS = 2**18  # most elements of one activation of a large batch, which bounds the cost of judging it
SPECIAL_IDS = (*range(5), *range(100, 104))  # [PAD], [UNK], [CLS], [SEP], [MASK]: as first ids, and as in published vocabularies


@lru_cache
def ids(architecture: Architecture) -> st.SearchStrategy[int]:
    """Return a strategy for a token id: any id, a special token's id, or the last id."""
    last = architecture.vocab_size - 1
    return st.integers(0, last) | st.sampled_from([i for i in (*SPECIAL_IDS, last) if i <= last])


@lru_cache
def _long(architecture: Architecture, longest: int) -> st.SearchStrategy[list[int]]:
    """Return a strategy for a text whose length is a boundary case of kernels and that repeats one to three ids."""
    turns = st.lists(ids(architecture), min_size=1, max_size=3)
    return st.builds(lambda n, turn: [turn[i % len(turn)] for i in range(n)], _sizes(longest), turns)


def _sizes(largest: int) -> st.SearchStrategy[int]:
    """Return a strategy for the boundary cases of kernels up to a size; small sizes are included so that a failure can shrink."""
    powers = (2**k + step for k in range(3, largest.bit_length()) for step in (-1, 0, 1))
    return st.sampled_from(sorted({n for n in (*range(TOKENS), *powers, largest) if 1 <= n <= largest}))


def most_rows(architecture: Architecture, length: int) -> int:
    """Return the number of rows of a large batch of a length: `MOST_ROWS`, or as many as `ELEMENTS` allows."""
    decoded = architecture.vocab_size if "masked_lm" in architecture.heads else 0
    widest = max(architecture.hidden_size, architecture.intermediate_size, architecture.num_attention_heads * length, decoded)
    return max(1, min(MOST_ROWS, ELEMENTS // (widest * length)))


@lru_cache
def texts(architecture: Architecture, longest: int) -> st.SearchStrategy[list[int]]:
    """Return a strategy for the tokens of a row before padding."""
    short = st.lists(ids(architecture), min_size=1, max_size=min(TOKENS, longest))
    return st.one_of(short, short, short, _long(architecture, longest))


@dataclass(frozen=True)
class Batches:
    """The batches on which a law is tested.

    Attributes:
        patterns: the permitted mask patterns: mask `omitted`, all `ones`, padded `right` or `left`, or with `holes`.
        least_rows: the minimal number of rows.
        room: the minimal difference in tokens between the network's maximal length and the length of the rows.
        token_types: whether batches have token types; None to permit both.
        is_large: whether large batches are included, with more rows and tokens than a golden has.
        change: function that is applied to each batch.
    """

    patterns: tuple[Pattern, ...] = PATTERNS
    least_rows: int = 1
    room: int = 0
    token_types: bool | None = None
    is_large: bool = False
    change: Callable[[Batch], Batch] = lambda batch: batch

    def drawn(self, architecture: Architecture) -> st.SearchStrategy[Batch]:
        """Return a strategy for batches of any length."""
        usual = _drawn(self, architecture)
        return (st.one_of(usual, usual, usual, _large(self, architecture)) if self.is_large else usual).map(self.change)

    def at_boundaries(self, architecture: Architecture) -> "list[st.SearchStrategy[Batch]]":
        """Return one strategy for each boundary length of kernels and tables, the longest first.

        The lengths are the maximal length, 1, and 64, 16 and 8 with their neighbours. Unlike with `drawn`, the simplest batch of a
        strategy has several rows of many ids and, if permitted, padding. If large batches are included, those with the most tokens
        and with the most rows come first.
        """
        longest, least = architecture.longest - self.room, max(2, self.least_rows)
        lengths = (longest, 1, *(n + step for n in (64, 16, 8) for step in (0, 1, -1)))
        few = [(length, st.integers(least, ROWS)) for length in dict.fromkeys(lengths) if 1 <= length <= longest]
        large = dict.fromkeys((longest, min(2, longest))) if self.is_large else ()
        many = [(length, st.just(most_rows(architecture, length))) for length in large]
        return [_of_size(self, architecture, st.just(length), rows).map(self.change) for length, rows in many + few]


ANY = Batches()


@st.composite
def _drawn(draw: st.DrawFn, asked: Batches, architecture: Architecture) -> Batch:
    longest, least = architecture.longest - asked.room, asked.least_rows
    rows = draw(st.lists(texts(architecture, longest), min_size=least, max_size=max(ROWS, least)))
    return _masked(draw, rows, draw(st.sampled_from(asked.patterns)), asked, architecture)


def _large(asked: Batches, architecture: Architecture) -> st.SearchStrategy[Batch]:
    """Return a strategy for batches of up to the most rows and tokens of a large batch."""
    lengths = _sizes(architecture.longest - asked.room)
    return lengths.flatmap(lambda length: _of_size(asked, architecture, st.just(length), _sizes(most_rows(architecture, length))))


@st.composite
def _of_size(
    draw: st.DrawFn,
    asked: Batches,
    architecture: Architecture,
    lengths: st.SearchStrategy[int],
    numbers_of_rows: st.SearchStrategy[int],
) -> Batch:
    """Draw rows of many different ids; if rows are padded, every second row has half the length."""
    patterns = sorted(asked.patterns, key=("right", "left", "holes", "ones", "omitted").index)
    pattern = draw(st.sampled_from(patterns))
    shift, rows, length = draw(st.integers(0, architecture.vocab_size - 1)), draw(numbers_of_rows), draw(lengths)
    texts = [[(7 * i + 5 * row + 1 + shift) % architecture.vocab_size for i in range(length)] for row in range(rows)]
    if pattern in ("right", "left"):
        texts[1::2] = [text[: (length + 1) // 2] for text in texts[1::2]]
    return _masked(draw, texts, pattern, asked, architecture)


def _masked(draw: st.DrawFn, rows: list[list[int]], pattern: Pattern, asked: Batches, architecture: Architecture) -> Batch:
    """Return the rows as one batch of one length, with mask and token types."""
    length = (min if pattern in ("omitted", "ones") else max)(len(row) for row in rows)
    padding = draw(ids(architecture)) if pattern in ("right", "left") else 0
    holes = _in_turn(len(rows), lambda: draw(st.integers(0, 2**length - 1)) if pattern == "holes" else 0)
    mask = np.array([_mask(len(row), length, pattern, hole) for row, hole in zip(rows, holes, strict=True)], np.int64)
    filled = [_filled(row, length, pattern, padding) for row in rows]
    typed = draw(st.booleans()) if asked.token_types is None else asked.token_types
    states, states_mask = _states(draw, len(rows), architecture.hidden_size) if architecture.add_cross_attention else (None, None)
    return Batch(
        input_ids=np.array(filled, np.int64),
        token_type_ids=_types(draw, len(rows), length, architecture.type_vocab_size) if typed else None,
        attention_mask=None if pattern == "omitted" else mask,
        encoder_hidden_states=states,
        encoder_attention_mask=states_mask,
    )


def _states(draw: st.DrawFn, rows: int, width: int) -> tuple[Array, Ids | None]:
    """Return encoder states that every format represents exactly, and a mask that keeps each row's first state, or None."""
    length = draw(st.integers(1, STATES))
    further = st.lists(st.integers(0, 1), min_size=length - 1, max_size=length - 1)
    mask = np.array(_in_turn(rows, lambda: [1, *draw(further)]), np.int64)
    return coefficients((rows, length, width)), mask if draw(st.booleans()) else None


def _in_turn(rows: int, drawn: Callable[[], T]) -> list[T]:
    """Return a value for each row; rows beyond `ROWS` repeat the values of the first, since Hypothesis limits what is drawn."""
    first = [drawn() for _ in range(min(rows, ROWS))]
    return [first[row % ROWS] for row in range(rows)]


def _filled(row: list[int], length: int, pattern: Pattern, padding: int) -> list[int]:
    """Return the row padded or cut to `length` tokens; for a mask with holes, the row is repeated instead of padded."""
    if pattern == "holes":
        return [row[i % len(row)] for i in range(length)]
    short = length - len(row)
    return [padding] * short + row if pattern == "left" else (row + [padding] * short)[:length]


def _mask(tokens: int, length: int, pattern: Pattern, holes: int) -> list[int]:
    """Return a row's mask; bit i of `holes` masks token i, unless all tokens would be masked, when the first is kept."""
    if pattern == "holes":
        full = holes == 2**length - 1
        return [1 if full and i == 0 else 1 - (holes >> i & 1) for i in range(length)]
    if pattern == "left":
        return [int(i >= length - tokens) for i in range(length)]
    return [int(i < tokens) for i in range(length)]


def _types(draw: st.DrawFn, rows: int, length: int, kinds: int) -> Ids:
    """Return token types that increase along each row, at one drawn position for each type after the first."""

    def of_row() -> Ids:
        found = np.zeros(length, np.int64)
        for _ in range(kinds - 1):
            found[length - draw(st.integers(0, length)) :] += 1
        return found

    return np.array(_in_turn(rows, of_row))
