"""What the network is trained on: pairs of utterances, some of their tokens masked (Devlin et al. 2019, section 3.1).

Each example is a function of the seed, the epoch and its place in it, so that training can go on from any step without what was
drawn before. A pair is two consecutive utterances, or the first of them and a random other one, each half of the time. 15 % of the
tokens are chosen, each by itself; what is chosen becomes [MASK] (80 %), a random token (10 %), or stays (10 %).
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from conformance import Batch, UsageError
from implementations.demystified.corpus import Corpus, Ids
from implementations.demystified.network import IGNORED, PADDING
from implementations.demystified.wordpiece import SPECIAL

CHOSEN, MASKED, RANDOM = 0.15, 0.8, 0.1
IS_NEXT, IS_RANDOM = 0, 1  # labels as Hugging Face has them; the tutorial's are the other way round
_TRIES = 100  # to draw an utterance that is not the next


@dataclass(frozen=True)
class Row:
    """An example: ids, token types and labels, (S,), and whether its second utterance is a random one, as 1, or the next, as 0."""

    ids: Ids
    types: Ids
    labels: Ids
    is_random: int


@dataclass(frozen=True)
class Examples:
    """The examples of a corpus.

    Attributes:
        corpus: the utterances.
        vocabulary: pieces, by id.
        length: tokens of a row at most; longer pairs lose tokens at the end of the longer utterance.
        seed: of all that is drawn.
    """

    corpus: Corpus
    vocabulary: tuple[str, ...]
    length: int
    seed: int

    def batch(self, step: int, size: int) -> Batch:
        """The batch of a step, counted from 0: `size` rows as they come, epoch after epoch."""
        rows = [self._row(n) for n in range(step * size, (step + 1) * size)]
        labels = _padded([row.labels for row in rows], IGNORED)
        ids = _padded([row.ids for row in rows], PADDING)
        if (labels == IGNORED).all():  # a loss over nothing is not a number
            labels[0, 1], ids[0, 1] = ids[0, 1], self._id("[MASK]")
        types = _padded([row.types for row in rows], PADDING)
        following = np.array([row.is_random for row in rows], np.int64)
        return Batch(ids, types, (types != PADDING).astype(np.int64), labels, following)

    def _row(self, n: int) -> "Row":
        """The n-th example."""
        epoch, place = divmod(n, len(self.corpus.firsts))
        rng = np.random.default_rng((self.seed, epoch, place))
        first = int(self.corpus.firsts[permuted(place, len(self.corpus.firsts), (self.seed, epoch))])
        label = IS_RANDOM if rng.random() < 0.5 else IS_NEXT
        second = self._other(first, rng) if label == IS_RANDOM else self.corpus.utterance(first + 1)
        a, b = shortened(self.corpus.utterance(first), second, self.length - 3)
        (a_ids, a_labels), (b_ids, b_labels) = self._masked(a, rng), self._masked(b, rng)
        cls, sep = self._id("[CLS]"), self._id("[SEP]")
        ids = np.concatenate(([cls], a_ids, [sep], b_ids, [sep]))
        labels = np.concatenate(([IGNORED], a_labels, [IGNORED], b_labels, [IGNORED]))
        return Row(ids, np.repeat([1, 2], [len(a) + 2, len(b) + 1]), labels, label)

    def _other(self, first: int, rng: np.random.Generator) -> Ids:
        """A random utterance that says something else than the next one."""
        following = self.corpus.utterance(first + 1)
        for _ in range(_TRIES):
            found = self.corpus.utterance(int(rng.integers(self.corpus.size)))
            if not np.array_equal(found, following):
                return found
        raise UsageError(f"{_TRIES} utterances in a row say the same as the next one: the corpus repeats itself")

    def _masked(self, ids: Ids, rng: np.random.Generator) -> tuple[Ids, Ids]:
        """What the network sees of an utterance, and the labels of what is chosen."""
        chosen, fate = rng.random(len(ids)) < CHOSEN, rng.random(len(ids))
        drawn = self._ordinary[rng.integers(len(self._ordinary), size=len(ids))]
        shown = np.where(fate < MASKED, self._id("[MASK]"), np.where(fate < MASKED + RANDOM, drawn, ids))
        return np.where(chosen, shown, ids), np.where(chosen, ids, IGNORED)

    def _id(self, piece: str) -> int:
        return self.vocabulary.index(piece)

    @cached_property
    def _ordinary(self) -> Ids:
        """The ids of all pieces but the special tokens."""
        return np.flatnonzero(~np.isin(self.vocabulary, SPECIAL))


def _padded(rows: Sequence[Ids], empty: int) -> NDArray[np.int64]:
    """Rows of one length, filled at the right: (B, S)."""
    padded = np.full((len(rows), max(map(len, rows))), empty, np.int64)
    for i, row in enumerate(rows):
        padded[i, : len(row)] = row
    return padded


def shortened(a: Ids, b: Ids, length: int) -> tuple[Ids, Ids]:
    """Both, without what is too much: from the end of the longer one, token by token, as Google's `truncate_seq_pair`."""
    both = min(len(a), max(length - len(b), length // 2))
    return a[:both], b[: length - both]


def permuted(place: int, n: int, seed: tuple[int, int]) -> int:
    """Where `place` goes in a permutation of 0 … n − 1, without the others: a Feistel network of four rounds, cycle-walking.

    Black and Rogaway 2002, section 3. A shuffled list would take memory in proportion to the corpus.
    """
    half = max((n - 1).bit_length() + 1, 2) // 2
    mask = (1 << half) - 1
    while True:
        left, right = place >> half, place & mask
        for turn in range(4):
            left, right = right, left ^ (zlib.crc32(repr((*seed, turn, right)).encode()) & mask)
        place = left << half | right
        if place < n:
            return place
