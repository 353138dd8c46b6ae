"""Hypothesis strategies for batches with any length, mask and token that a network accepts, the simplest first.

A failure shrinks to the simplest batch: one row of one token with id 0, no mask and no token types. Most lengths are short; some
are adjacent to a power of two, where kernels change their algorithm, or the maximal length.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from hypothesis import strategies as st

from conformance.model.architecture import Architecture
from conformance.model.batch import Batch, Ids
from conformance.numerics.formats import Array
from conformance.oracle.gradients.sums import coefficients

Pattern = Literal["omitted", "ones", "right", "left", "holes"]
PATTERNS: tuple[Pattern, ...] = ("omitted", "ones", "right", "left", "holes")

STATES = 6  # the largest number of encoder states
ROWS, TOKENS = 4, 12  # usual limits of a batch: large enough to combine all kinds of padding, small enough to read
SPECIAL_IDS = (
    0,
    1,
    2,
    3,
    4,
    100,
    101,
    102,
    103,
)  # [PAD], [UNK], [CLS], [SEP], [MASK]: as first ids, and as in published vocabularies


@lru_cache
def ids(architecture: Architecture) -> st.SearchStrategy[int]:
    """Return a strategy for a token id: any id, a special token's id, or the last id."""
    last = architecture.vocab_size - 1
    return st.integers(0, last) | st.sampled_from([i for i in (*SPECIAL_IDS, last) if i <= last])


@lru_cache
def _long(architecture: Architecture, longest: int) -> st.SearchStrategy[list[int]]:
    """Return a strategy for a text whose length is a boundary case of kernels and that repeats one to three ids."""
    powers = [2**k + step for k in range(3, longest.bit_length()) for step in (-1, 0, 1)]
    # Short lengths are included so that a failure that does not depend on the length can shrink.
    lengths = sorted({n for n in (*range(TOKENS), *powers, longest) if 1 <= n <= longest})
    turns = st.lists(ids(architecture), min_size=1, max_size=3)
    return st.builds(lambda n, turn: [turn[i % len(turn)] for i in range(n)], st.sampled_from(lengths), turns)


@lru_cache
def texts(architecture: Architecture, longest: int) -> st.SearchStrategy[list[int]]:
    """Return a strategy for the tokens of a row before padding."""
    short = st.lists(ids(architecture), min_size=1, max_size=min(TOKENS, longest))
    return st.one_of(short, short, short, _long(architecture, longest))


def _unchanged(batch: Batch) -> Batch:
    return batch


@dataclass(frozen=True)
class Batches:
    """The batches on which a law is tested.

    Attributes:
        patterns: the permitted mask patterns: mask `omitted`, all `ones`, padded `right` or `left`, or with `holes`.
        least_rows: the minimal number of rows.
        room: the minimal difference in tokens between the network's maximal length and the length of the rows.
        token_types: whether batches have token types; None to permit both.
        change: function that is applied to each batch.
    """

    patterns: tuple[Pattern, ...] = PATTERNS
    least_rows: int = 1
    room: int = 0
    token_types: bool | None = None
    change: Callable[[Batch], Batch] = _unchanged

    def drawn(self, architecture: Architecture) -> st.SearchStrategy[Batch]:
        """Return a strategy for batches of any length."""
        return _drawn(self, architecture).map(self.change)

    def at_boundaries(self, architecture: Architecture) -> "list[st.SearchStrategy[Batch]]":
        """Return one strategy for each boundary length of kernels and tables, the longest first.

        The lengths are the maximal length, 1, and 64, 16 and 8 with their neighbours. Unlike with `drawn`, the simplest batch of a
        strategy has several rows of many ids and, if permitted, padding.
        """
        longest = architecture.longest - self.room
        lengths = (longest, 1, *(n + step for n in (64, 16, 8) for step in (0, 1, -1)))
        return [
            _of_length(self, architecture, length).map(self.change) for length in dict.fromkeys(lengths) if 1 <= length <= longest
        ]


ANY = Batches()


@st.composite
def _drawn(draw: st.DrawFn, asked: Batches, architecture: Architecture) -> Batch:
    longest, least = architecture.longest - asked.room, asked.least_rows
    rows = draw(st.lists(texts(architecture, longest), min_size=least, max_size=max(ROWS, least)))
    return _masked(draw, rows, draw(st.sampled_from(asked.patterns)), asked, architecture)


@st.composite
def _of_length(draw: st.DrawFn, asked: Batches, architecture: Architecture, length: int) -> Batch:
    """Draw rows of many different ids; if rows are padded, every second row has half the length."""
    patterns = sorted(asked.patterns, key=("right", "left", "holes", "ones", "omitted").index)
    pattern = draw(st.sampled_from(patterns))
    shift, rows = draw(st.integers(0, architecture.vocab_size - 1)), draw(st.integers(max(2, asked.least_rows), ROWS))
    texts = [[(7 * i + 5 * row + 1 + shift) % architecture.vocab_size for i in range(length)] for row in range(rows)]
    if pattern in ("right", "left"):
        texts[1::2] = [text[: (length + 1) // 2] for text in texts[1::2]]
    return _masked(draw, texts, pattern, asked, architecture)


def _masked(draw: st.DrawFn, rows: list[list[int]], pattern: Pattern, asked: Batches, architecture: Architecture) -> Batch:
    """Return the rows as one batch of one length, with mask and token types."""
    length = (min if pattern in ("omitted", "ones") else max)(len(row) for row in rows)
    padding = draw(ids(architecture)) if pattern in ("right", "left") else 0
    holes = [draw(st.integers(0, 2**length - 1)) if pattern == "holes" else 0 for _ in rows]
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
    mask = np.array(
        [[1, *draw(st.lists(st.integers(0, 1), min_size=length - 1, max_size=length - 1))] for _ in range(rows)], np.int64
    )
    return coefficients((rows, length, width)), mask if draw(st.booleans()) else None


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
    found = np.zeros((rows, length), np.int64)
    for row in range(rows):
        for _ in range(kinds - 1):
            found[row, length - draw(st.integers(0, length)) :] += 1
    return found
