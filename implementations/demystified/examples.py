"""Training examples: pairs of utterances with some tokens masked (Devlin et al. 2019, section 3.1).

Each example is a function of the seed, the epoch and its index. A pair consists of two consecutive utterances, or of the first of
them and a random other one, each with probability 1/2. 15 % of the tokens are chosen, independently; a chosen token becomes [MASK]
(80 %), becomes a random token (10 %), or stays (10 %).
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from conformance import Batch, UsageError

from .corpus import Corpus, Ids
from .network import IGNORED, PADDING
from .wordpiece import SPECIAL

CHOSEN, MASKED, RANDOM = 0.15, 0.8, 0.1
IS_NEXT, IS_RANDOM = 0, 1  # labels as in Hugging Face; the tutorial's are the reverse
_TRIES = 100  # attempts to draw an utterance that is not the next one


@dataclass(frozen=True)
class Row:
    """An example.

    Attributes:
        ids, types, labels: (S,) token ids, token types and masked-LM labels.
        is_random: 1 if the second utterance is random, 0 if it is the next one.
    """

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
        length: maximum number of tokens of a row; longer pairs are cut at the end of the longer utterance.
        seed: seed of all random draws.
    """

    corpus: Corpus
    vocabulary: tuple[str, ...]
    length: int
    seed: int

    def batch(self, step: int, size: int) -> Batch:
        """Return the batch of a step, counted from 0: the next `size` examples, epoch after epoch."""
        rows = [self._row(n) for n in range(step * size, (step + 1) * size)]
        labels = _padded([row.labels for row in rows], IGNORED)
        ids = _padded([row.ids for row in rows], PADDING)
        if (labels == IGNORED).all():  # the mean over no label is NaN
            labels[0, 1], ids[0, 1] = ids[0, 1], self._id("[MASK]")
        types = _padded([row.types for row in rows], PADDING)
        following = np.array([row.is_random for row in rows], np.int64)
        return Batch(ids, types, (types != PADDING).astype(np.int64), labels, following)

    def _row(self, n: int) -> "Row":
        """Return the n-th example."""
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
        """Return a random utterance that differs from the next one.

        Raises:
            UsageError: every utterance drawn equals the next one.
        """
        following = self.corpus.utterance(first + 1)
        for _ in range(_TRIES):
            found = self.corpus.utterance(int(rng.integers(self.corpus.size)))
            if not np.array_equal(found, following):
                return found
        raise UsageError(f"{_TRIES} utterances in a row say the same as the next one: the corpus repeats itself")

    def _masked(self, ids: Ids, rng: np.random.Generator) -> tuple[Ids, Ids]:
        """Return the token ids of an utterance after masking, and the labels of the chosen tokens."""
        chosen, fate = rng.random(len(ids)) < CHOSEN, rng.random(len(ids))
        drawn = self._ordinary[rng.integers(len(self._ordinary), size=len(ids))]
        shown = np.where(fate < MASKED, self._id("[MASK]"), np.where(fate < MASKED + RANDOM, drawn, ids))
        return np.where(chosen, shown, ids), np.where(chosen, ids, IGNORED)

    def _id(self, piece: str) -> int:
        return self.vocabulary.index(piece)

    @cached_property
    def _ordinary(self) -> Ids:
        """The ids of all pieces except the special tokens."""
        return np.flatnonzero(~np.isin(self.vocabulary, SPECIAL))


def _padded(rows: Sequence[Ids], empty: int) -> NDArray[np.int64]:
    """Return the rows as an array (B, S), padded on the right with `empty`."""
    padded = np.full((len(rows), max(map(len, rows))), empty, np.int64)
    for i, row in enumerate(rows):
        padded[i, : len(row)] = row
    return padded


def shortened(a: Ids, b: Ids, length: int) -> tuple[Ids, Ids]:
    """Return both utterances, shortened token by token from the end of the longer one, or of `b` where both are equally long.

    So does `_truncate_seq_pair` in Google's `run_classifier.py`.
    """
    kept = min(len(a), max(length - len(b), (length + 1) // 2))
    return a[:kept], b[: length - kept]


def permuted(place: int, n: int, seed: tuple[int, int]) -> int:
    """Return the image of `place` under a permutation of 0 … n − 1: a Feistel network of four rounds with cycle-walking.

    See Black and Rogaway 2002, section 3. A shuffled list would take memory in proportion to the corpus.
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
