"""The corpus that pipelines are asked to make examples of: two neighbouring tokens say where in it they stand.

With p prime, the multiples 0, d, 2d, … of d modulo p are every residue once, and end where the next one's begin, so that those of
d = 1, …, p − 1 in a row would have every pair (a, b), a ≠ b, of neighbours exactly once. The corpus has those up to (p − 1)/2:
where b follows a, a follows b nowhere, and no text is another one in reverse. Each d is a conversation of p tokens, cut at words
into utterances. Every token comes equally often, and none twice within p − 1 others.
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from string import ascii_lowercase

import numpy as np
import numpy.typing as npt

from conformance.model.batch import Ids
from conformance.model.pretraining import CONTINUES, SPECIAL, PretrainingCorpus

_PRIME = 211  # so that the corpus has 105 · 211 = 22,155 tokens, of which 3,323 are chosen and 332 replaced at random
CONVERSATIONS = (_PRIME - 1) // 2
_SHORTEST, _LONGEST = 5, 12  # tokens of an utterance, but for the rest of its last word, and of a conversation
_LENGTH = 24  # the mean pair with its special tokens has 21: most are padded, and many are cut


@dataclass(frozen=True)
class IndexedCorpus:
    """A corpus, and what is where in it.

    Attributes:
        given: what a pipeline is given.
        ids: of its N tokens, one utterance after the other.
        utterances, conversations: the number of each token's utterance and conversation, (N,).
        place: (V, V): where in `ids` two neighbouring tokens stand; −1 where they stand nowhere side by side.
        continues: (V,): whether a piece continues a word.
    """

    given: PretrainingCorpus
    ids: Ids
    utterances: Ids
    conversations: Ids
    place: Ids
    continues: npt.NDArray[np.bool_]

    def id_of(self, piece: str) -> int:
        """The id of a piece."""
        return self.given.vocabulary.index(piece)

    @property
    def ordinary(self) -> npt.NDArray[np.bool_]:
        """(V,): whether a piece is no special token."""
        return ~np.isin(self.given.vocabulary, SPECIAL)


@lru_cache(maxsize=2)
def indexed_corpus(seed: int = 0, conversations: int = CONVERSATIONS) -> IndexedCorpus:
    """The corpus of a seed, by which pieces and lengths of utterances are drawn, or its first conversations.

    Example:
        >>> corpus = indexed_corpus()
        >>> corpus.ids.size, len(corpus.given.conversations), int(corpus.place[corpus.ids[7], corpus.ids[8]])
        (22155, 105, 7)
    """
    rng = np.random.default_rng(seed)
    continues = rng.random(_PRIME) < 1.0 / 3.0
    continues[0] = False  # a conversation begins with it
    vocabulary = _vocabulary(continues, rng)
    ordinary = np.flatnonzero(~np.isin(vocabulary, SPECIAL))
    residues = np.outer(np.arange(1, conversations + 1), np.arange(_PRIME)) % _PRIME  # a conversation a row
    begins = np.array([_beginnings(~continues[row], rng) for row in residues])
    ids, utterances = ordinary[residues.ravel()], np.cumsum(begins.ravel()) - 1
    owners = np.repeat(np.arange(conversations), _PRIME)
    place = np.full((len(vocabulary), len(vocabulary)), -1)
    place[ids[:-1], ids[1:]] = np.arange(len(ids) - 1)
    given = PretrainingCorpus(_texts(vocabulary, ids, utterances, owners), vocabulary, _LENGTH, seed)
    return IndexedCorpus(given, ids, utterances, owners, place, np.char.startswith(vocabulary, CONTINUES))


def _vocabulary(continues: npt.NDArray[np.bool_], rng: np.random.Generator) -> tuple[str, ...]:
    """Pieces of two letters each. Special tokens but [PAD] are not at the begin, as in BERT's vocabularies, nor side by side."""
    letters = rng.permutation(["".join(pair) for pair in product(ascii_lowercase, repeat=2)])
    pieces = [f"{CONTINUES}{pair}" if goes_on else str(pair) for pair, goes_on in zip(letters, continues, strict=False)]
    for i, special in enumerate(SPECIAL):
        pieces.insert(i * len(SPECIAL), special)
    return tuple(pieces)


def _beginnings(words: npt.NDArray[np.bool_], rng: np.random.Generator) -> npt.NDArray[np.bool_]:
    """Which tokens of a conversation begin an utterance, of those that begin a word."""
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
