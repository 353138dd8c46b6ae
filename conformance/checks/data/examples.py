"""The corpus of which pipelines make examples, and their examples, with the position of each token in the corpus.

Two neighbouring tokens determine their position. For p prime, the multiples 0, d, 2d, … of d modulo p contain every residue once.
The sequences for d = 1, …, p − 1, one after the other, contain every pair (a, b), a ≠ b, of neighbours exactly once. The corpus
consists of the sequences up to d = (p − 1)/2: if b follows a somewhere, a follows b nowhere, so that no text is the reverse of
another. The sequence of each d is a conversation of p tokens, divided at word boundaries into utterances. Every token occurs once
in each conversation.

The segments of a row end at [SEP], and the tokens that have a label are replaced by their labels. Each pair of neighbouring tokens
of a segment implies where in the corpus the segment begins. The segment is located if more than half of its pairs imply the same
position, even if some of its labels or tokens are wrong.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from string import ascii_lowercase

import numpy as np

from conformance.model.batch import Batch, Ids
from conformance.model.pretraining import CONTINUES, SPECIAL, PretrainingConventions, PretrainingCorpus
from conformance.numerics.formats import Mask

_PRIME = 211  # the corpus has 105 · 211 = 22,155 tokens, of which 3,323 are chosen and 332 replaced at random
CONVERSATIONS = (_PRIME - 1) // 2
_SHORTEST, _LONGEST = 5, 12  # tokens of an utterance, without the rest of its last word; the last of a conversation may be longer
_LENGTH = 24  # the mean length of a pair with its special tokens is 21: most pairs are padded, and many are truncated


@dataclass(frozen=True)
class IndexedCorpus:
    """A corpus with an index of its tokens.

    Attributes:
        given: the corpus as passed to a pipeline.
        ids: the ids of its N tokens in order, (N,).
        utterances, conversations: the number of each token's utterance and conversation, (N,).
        place: the index in `ids` of the first of two neighbouring tokens, (V, V); −1 if the two are nowhere neighbours.
        continues: whether each piece of the vocabulary continues a word, (V,).
    """

    given: PretrainingCorpus
    ids: Ids
    utterances: Ids
    conversations: Ids
    place: Ids
    continues: Mask

    def id_of(self, piece: str) -> int:
        """Return the id of a piece."""
        return self.given.vocabulary.index(piece)

    @property
    def ordinary(self) -> Mask:
        """Whether each piece of the vocabulary is not a special token, (V,)."""
        return ~np.isin(self.given.vocabulary, SPECIAL)


@lru_cache(maxsize=2)
def indexed_corpus(seed: int = 0, conversations: int = CONVERSATIONS) -> IndexedCorpus:
    """Return the first `conversations` conversations of the corpus whose pieces and utterance lengths are drawn from a seed.

    Example:
        >>> corpus = indexed_corpus()
        >>> corpus.ids.size, len(corpus.given.conversations), int(corpus.place[corpus.ids[7], corpus.ids[8]])
        (22155, 105, 7)
    """
    rng = np.random.default_rng(seed)
    continues = rng.random(_PRIME) < 1.0 / 3.0
    continues[0] = False  # every conversation begins with residue 0
    vocabulary = _vocabulary(continues, rng)
    ordinary = np.flatnonzero(~np.isin(vocabulary, SPECIAL))
    residues = np.outer(np.arange(1, conversations + 1), np.arange(_PRIME)) % _PRIME  # one conversation per row
    begins = np.array([_beginnings(~continues[row], rng) for row in residues])
    ids, utterances = ordinary[residues.ravel()], np.cumsum(begins.ravel()) - 1
    owners = np.repeat(np.arange(conversations), _PRIME)
    place = np.full((len(vocabulary), len(vocabulary)), -1)
    place[ids[:-1], ids[1:]] = np.arange(len(ids) - 1)
    given = PretrainingCorpus(_texts(vocabulary, ids, utterances, owners), vocabulary, _LENGTH, seed)
    return IndexedCorpus(given, ids, utterances, owners, place, np.char.startswith(vocabulary, CONTINUES))


def _vocabulary(continues: Mask, rng: np.random.Generator) -> tuple[str, ...]:
    """Return pieces of two letters each; special tokens except [PAD] are not at the beginning, as in BERT, and not adjacent."""
    letters = rng.permutation(["".join(pair) for pair in product(ascii_lowercase, repeat=2)])
    pieces = [f"{CONTINUES}{pair}" if goes_on else str(pair) for pair, goes_on in zip(letters, continues, strict=False)]
    for i, special in enumerate(SPECIAL):
        pieces.insert(i * len(SPECIAL), special)
    return tuple(pieces)


def _beginnings(words: Mask, rng: np.random.Generator) -> Mask:
    """Return which tokens of a conversation begin an utterance; each of them begins a word."""
    found, after = np.zeros(len(words), bool), 0
    for i in np.flatnonzero(words):
        if i >= after and (i == 0 or len(words) - i >= _SHORTEST):
            found[i], after = True, int(i + rng.integers(_SHORTEST, _LONGEST + 1))
    return found


def _texts(vocabulary: tuple[str, ...], ids: Ids, utterances: Ids, conversations: Ids) -> tuple[tuple[str, ...], ...]:
    starts = np.flatnonzero(np.diff(utterances, prepend=-1))
    texts = [" ".join(vocabulary[i] for i in part).replace(f" {CONTINUES}", "") for part in np.split(ids, starts[1:])]
    owners = conversations[starts]
    return tuple(tuple(text for text, owner in zip(texts, owners, strict=True) if owner == c) for c in np.unique(owners))


@dataclass(frozen=True)
class Examples:
    """The R rows of an epoch, padded at the right to S positions.

    Attributes:
        corpus, conventions: the corpus of which the rows were made, and the pipeline's conventions.
        ids, types, labels: token ids, token types and masked-LM labels as the pipeline returned them, (R, S).
        mask: whether each position is attended to, (R, S).
        next_labels: next-sentence labels, (R,); None if rows are not pairs.
        batches: the number of each row's batch, (R,).
        separators: whether each position is a [SEP] that ends a segment, (R, S).
        segments: 0 for [CLS], A and its [SEP], 1 for B and its [SEP], and so on; −1 at positions not attended to, (R, S).
        places: the position in the corpus of each token of a segment; −1 for other or unlocated tokens, (R, S).
    """

    corpus: IndexedCorpus
    conventions: PretrainingConventions
    ids: Ids
    types: Ids
    labels: Ids
    mask: Mask
    next_labels: Ids | None
    batches: Ids
    separators: Mask
    segments: Ids
    places: Ids

    @property
    def chosen(self) -> Mask:
        """Whether each token has a label, (R, S)."""
        return np.asarray(self.labels != self.conventions.ignored_label)

    @property
    def ends(self) -> tuple[Ids, Ids]:
        """The positions of the first and of the last token that is attended to, (R,) each."""
        return self.mask.argmax(1), self.mask.shape[1] - 1 - self.mask[:, ::-1].argmax(1)

    @property
    def known(self) -> Mask:
        """Whether each token was located in the corpus, (R, S)."""
        return self.places >= 0

    @property
    def originals(self) -> Ids:
        """The id that the corpus has at each token's position; −1 if the position is not known, (R, S)."""
        return np.where(self.known, self.corpus.ids[self.places], -1)

    @property
    def first_seen(self) -> Mask:
        """Whether each token is located and the first occurrence of its token of the corpus, (R, S).

        A pipeline may choose the tokens of an utterance once and repeat it: only the first occurrence is an independent draw.
        """
        found = np.zeros(self.places.size, bool)
        places, first = np.unique(self.places, return_index=True)
        found[first[places >= 0]] = True
        return found.reshape(self.places.shape)


def examples_of(batches: Sequence[Batch], corpus: IndexedCorpus, conventions: PretrainingConventions) -> Examples:
    """Return the examples of an epoch's batches, all of which have labels."""
    padding, ignored = corpus.id_of("[PAD]"), conventions.ignored_label
    width = max(batch.length for batch in batches)

    def rows(arrays: Sequence[Ids | Mask], fill: int) -> Ids:
        return np.concatenate([np.pad(a, ((0, 0), (0, width - a.shape[1])), constant_values=fill) for a in arrays])

    ids, types = rows([b.input_ids for b in batches], padding), rows([b.types for b in batches], 0)
    labels = rows([b.labels for b in batches if b.labels is not None], ignored)
    mask = rows([b.mask for b in batches], 0).astype(bool)
    following = [b.next_sentence_label for b in batches if b.next_sentence_label is not None]
    numbers = np.repeat(np.arange(len(batches)), [batch.size for batch in batches])
    # A [SEP] whose label is an ordinary token replaces that token and ends no segment.
    separators = mask & (ids == corpus.id_of("[SEP]")) & ~np.isin(labels, np.flatnonzero(corpus.ordinary))
    segments = np.where(mask, np.cumsum(separators, 1) - separators, -1)
    restored = np.where(labels == ignored, ids, labels)
    is_token = mask & ~separators & (restored != corpus.id_of("[CLS]"))
    places = _places(corpus, restored, np.where(is_token, segments, -1))
    next_labels = np.concatenate(following) if following else None
    return Examples(corpus, conventions, ids, types, labels, mask, next_labels, numbers, separators, segments, places)


def _places(corpus: IndexedCorpus, restored: Ids, segments: Ids) -> Ids:
    """Return each token's position in the corpus by majority of its segment's pairs; −1 without a majority, (R, S)."""
    count, size = int(segments.max(initial=0)) + 1, len(corpus.given.vocabulary)
    ids = np.where((restored >= 0) & (restored < size), restored, 0)
    paired = (segments[:, :-1] == segments[:, 1:]) & (segments[:, 1:] >= 0)
    found = np.where(paired, corpus.place[ids[:, :-1], ids[:, 1:]], -1)
    numbers, columns = np.arange(len(ids))[:, None] * count + segments.clip(0), np.arange(ids.shape[1])
    begins = np.full(len(ids) * count, -ids.shape[1])  # smaller than any position
    says = found >= 0
    answers = np.stack((numbers[:, :-1][says], (found - columns[:-1])[says]), 1)
    each, votes = np.unique(answers, axis=0, return_counts=True)
    most = 2 * votes > np.bincount(numbers[:, :-1][paired], minlength=begins.size)[each[:, 0]]
    begins[each[most, 0]] = each[most, 1]
    places = begins[numbers] + columns
    return np.where((segments >= 0) & (places >= 0) & (places < corpus.ids.size), places, -1)
