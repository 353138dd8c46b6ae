"""Hypothesis strategies for batches: every length, mask and token that a network takes, the plain ones first.

What is drawn first is what a failure shrinks to: one row of one token, id 0, no mask and no token types. Lengths are likely short,
and now and then on either side of a power of two, where kernels change their path, or the longest that there is.
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

STATES = 6  # of an encoder, at most
ROWS, TOKENS = 4, 12  # of a batch as a rule: enough for every way of padding beside each other, few enough to be read
SPECIAL_IDS = (0, 1, 2, 3, 4, 100, 101, 102, 103)  # [PAD], [UNK], [CLS], [SEP], [MASK]: by order, and in the published vocabularies


@lru_cache
def ids(architecture: Architecture) -> st.SearchStrategy[int]:
    """A token id: any, or one with a part to play, or the last."""
    last = architecture.vocab_size - 1
    return st.integers(0, last) | st.sampled_from([i for i in (*SPECIAL_IDS, last) if i <= last])


@lru_cache
def _long(architecture: Architecture, longest: int) -> st.SearchStrategy[list[int]]:
    """A text of a length that kernels find notable, a few ids by turns; one id alone among them."""
    powers = [2**k + step for k in range(3, longest.bit_length()) for step in (-1, 0, 1)]
    # The short ones are there so that a length that does not matter shrinks.
    lengths = sorted({n for n in (*range(TOKENS), *powers, longest) if 1 <= n <= longest})
    turns = st.lists(ids(architecture), min_size=1, max_size=3)
    return st.builds(lambda n, turn: [turn[i % len(turn)] for i in range(n)], st.sampled_from(lengths), turns)


@lru_cache
def texts(architecture: Architecture, longest: int) -> st.SearchStrategy[list[int]]:
    """A row's tokens, before padding."""
    short = st.lists(ids(architecture), min_size=1, max_size=min(TOKENS, longest))
    return st.one_of(short, short, short, _long(architecture, longest))


def _unchanged(batch: Batch) -> Batch:
    return batch


@dataclass(frozen=True)
class Batches:
    """Which batches a law is tried on.

    Attributes:
        patterns: how rows may be masked: mask `omitted`, all `ones`, padded `right` or `left`, or with `holes`.
        least_rows: how many rows there are at least.
        room: how many tokens shorter than the longest the rows are, at least.
        token_types: whether there are any; None for either.
        change: what is done with each.
    """

    patterns: tuple[Pattern, ...] = PATTERNS
    least_rows: int = 1
    room: int = 0
    token_types: bool | None = None
    change: Callable[[Batch], Batch] = _unchanged

    def drawn(self, architecture: Architecture) -> st.SearchStrategy[Batch]:
        """Any."""
        return _drawn(self, architecture).map(self.change)

    def at_boundaries(self, architecture: Architecture) -> "list[st.SearchStrategy[Batch]]":
        """Of each length at which kernels and tables end, the longest first; the simplest of each is no plain batch.

        They are 1, the longest, 8, 16, 64, and one beside each of these.
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
    """Rows of many ids, every second one half as long where padding is allowed."""
    patterns = sorted(asked.patterns, key=("right", "left", "holes", "ones", "omitted").index)
    pattern = draw(st.sampled_from(patterns))
    shift, rows = draw(st.integers(0, architecture.vocab_size - 1)), draw(st.integers(max(2, asked.least_rows), ROWS))
    texts = [[(7 * i + 5 * row + 1 + shift) % architecture.vocab_size for i in range(length)] for row in range(rows)]
    if pattern in ("right", "left"):
        texts[1::2] = [text[: (length + 1) // 2] for text in texts[1::2]]
    return _masked(draw, texts, pattern, asked, architecture)


def _masked(draw: st.DrawFn, rows: list[list[int]], pattern: Pattern, asked: Batches, architecture: Architecture) -> Batch:
    """The rows as one batch: of one length, with mask and token types."""
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
    """States of an encoder, numbers that every format holds exactly, and a mask that leaves the first of each row; or none."""
    length = draw(st.integers(1, STATES))
    mask = np.array(
        [[1, *draw(st.lists(st.integers(0, 1), min_size=length - 1, max_size=length - 1))] for _ in range(rows)], np.int64
    )
    return coefficients((rows, length, width)), mask if draw(st.booleans()) else None


def _filled(row: list[int], length: int, pattern: Pattern, padding: int) -> list[int]:
    """The row at its place among `length` tokens; where a mask has holes, its own tokens stand again behind it."""
    if pattern == "holes":
        return [row[i % len(row)] for i in range(length)]
    short = length - len(row)
    return [padding] * short + row if pattern == "left" else (row + [padding] * short)[:length]


def _mask(tokens: int, length: int, pattern: Pattern, holes: int) -> list[int]:
    """A row's mask; bit i of `holes` is a hole at i, where another token is left to attend to."""
    if pattern == "holes":
        full = holes == 2**length - 1
        return [1 if full and i == 0 else 1 - (holes >> i & 1) for i in range(length)]
    if pattern == "left":
        return [int(i >= length - tokens) for i in range(length)]
    return [int(i < tokens) for i in range(length)]


def _types(draw: st.DrawFn, rows: int, length: int, kinds: int) -> Ids:
    """Token types that rise along each row, at a place that is drawn for each type after the first; the last place is none."""
    found = np.zeros((rows, length), np.int64)
    for row in range(rows):
        for _ in range(kinds - 1):
            found[row, length - draw(st.integers(0, length)) :] += 1
    return found
