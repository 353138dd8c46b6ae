"""The corpus of which pipelines make examples; two neighbouring tokens determine their position in it.

For p prime, the multiples 0, d, 2d, … of d modulo p contain every residue once. The sequences for d = 1, …, p − 1, one after the
other, contain every pair (a, b), a ≠ b, of neighbours exactly once. The corpus consists of the sequences up to d = (p − 1)/2: if b
follows a somewhere, a follows b nowhere, so that no text is the reverse of another. The sequence of each d is a conversation of p
tokens, divided at word boundaries into utterances. Every token occurs once in each conversation.
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from string import ascii_lowercase

import numpy as np

from conformance.model.batch import Ids
from conformance.model.pretraining import CONTINUES, SPECIAL, PretrainingCorpus
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
