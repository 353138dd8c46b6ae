"""Of the chosen tokens 80 % are shown as [MASK], 10 % as a random token, 10 % as they are, each by itself: exact binomial tests.

Random tokens are uniform over the vocabulary without its special tokens, or over all of it where that is declared
(`special_replacements`, as in BERT's own code and Hugging Face's). One of W tokens is the original with probability 1/W, and shows
as kept. The rest is uniform over the other ones: by halves of the vocabulary, by pieces that begin and that continue a word, by
each token, and by each distance from the original along the vocabulary. If more than 10 % are kept, the input shows the label.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from conformance.checks.data.check import DataCheck
from conformance.checks.data.corpus import IndexedCorpus
from conformance.checks.data.counts import Count, beyond_chance
from conformance.checks.data.epochs import Epochs
from conformance.checks.data.examples import Examples, Flags
from conformance.model.batch import Ids
from conformance.model.pretraining import MASKED, RANDOM


@dataclass(frozen=True)
class _Draws:
    """The chosen tokens of the epochs, C of them: what is shown, what the corpus has, and a number of each one's row."""

    corpus: IndexedCorpus
    shown: Ids
    originals: Ids
    rows: Ids

    @classmethod
    def of(cls, each: Sequence[Examples]) -> "_Draws":
        """Each token of the corpus where an epoch first shows it."""
        found = [np.nonzero(e.first_seen & e.chosen) for e in each]
        before = np.cumsum([0, *(len(e.ids) for e in each)])
        shown = np.concatenate([e.ids[at] for e, at in zip(each, found, strict=True)])
        originals = np.concatenate([e.originals[at] for e, at in zip(each, found, strict=True)])
        return cls(each[0].corpus, shown, originals, np.concatenate([n + at[0] for n, at in zip(before, found, strict=False)]))

    @property
    def masked(self) -> Flags:
        return np.asarray(self.shown == self.corpus.id_of("[MASK]"))

    @property
    def kept(self) -> Flags:
        return np.asarray(self.shown == self.originals)

    @property
    def is_random(self) -> Flags:
        return ~self.masked & ~self.kept

    @property
    def is_special(self) -> Flags:
        return self.is_random & ~self.corpus.ordinary[self.shown]


def _violations(epochs: Epochs, alpha: float) -> Iterator[str]:
    special = epochs.first.conventions.special_replacements
    draws = _Draws.of([e for e in (epochs.first, epochs.second) if e is not None])
    if draws.is_special.any() and not special:
        names = sorted({draws.corpus.given.vocabulary[i] for i in draws.shown[draws.is_special]})
        count = f"{draws.is_special.sum()} of {draws.is_random.sum()}"
        yield f"{count} random tokens are special ones, none may be: {', '.join(names)}"
    yield from beyond_chance([*_shares(draws, special), *_uniform(draws), *_specials(draws, special)], [_fates(draws)], alpha)


def _shares(draws: _Draws, special: bool) -> Iterator[Count]:
    """How often each of the three; of W tokens that are drawn from one is the original, and one may be [MASK]."""
    ordinary = draws.corpus.ordinary
    each = RANDOM / (ordinary.size if special else int(ordinary.sum()))
    p_masked, p_kept = MASKED + each * special, 1.0 - MASKED - RANDOM + each
    yield Count.of("chosen tokens", "are shown as [MASK]", draws.masked, p_masked)
    yield Count.of("chosen tokens", "are shown as another token", draws.is_random, 1.0 - p_masked - p_kept)
    yield Count.of("chosen tokens", "are shown as they are, so that the input has the label", draws.kept, p_kept)


def _fates(draws: _Draws) -> Count:
    """Chosen tokens 0 and 1, 2 and 3, and so on, of a row."""
    end = len(draws.rows) // 2 * 2
    (one, other), (row, next_row) = ((x[0:end:2], x[1:end:2]) for x in (draws.masked, draws.rows))
    alike = (one == other)[row == next_row]
    return Count.of("pairs of chosen tokens of a row", "are both [MASK] or both not", alike, MASKED**2 + (1.0 - MASKED) ** 2)


def _specials(draws: _Draws, special: bool) -> Iterator[Count]:
    """Where special tokens may be drawn, as often as any: of the V tokens neither [MASK] nor the original shows as random."""
    if special:
        ordinary = draws.corpus.ordinary
        probability = (int((~ordinary).sum()) - 1) / (ordinary.size - 2)
        yield Count.of("random tokens", "are special ones", draws.is_special[draws.is_random], probability)


def _uniform(draws: _Draws) -> Iterator[Count]:
    """Random tokens that are not special, each of W − 1 with equal probability."""
    corpus, counted = draws.corpus, draws.is_random & ~draws.is_special
    ordinary, rank = np.flatnonzero(corpus.ordinary), np.cumsum(corpus.ordinary) - 1
    shown, originals, size = rank[draws.shown[counted]], rank[draws.originals[counted]], ordinary.size
    ranks, begins = np.arange(size), ~corpus.continues[ordinary]
    for name, group in (("in the first half of the vocabulary", ranks < size // 2), ("beginnings of words", begins)):
        for inside in (True, False):  # the original is not drawn: where it is of the group there is one less
            hits = group[shown][group[originals] == inside]
            where = "replacing such a token" if inside else "replacing another token"
            yield Count.of(f"random tokens {where}", f"are {name}", hits, (group.sum() - inside) / (size - 1))
    distances = (shown - originals) % size
    for i in range(1, size):
        yield Count.of("random tokens", f"stand {i} after the original in the vocabulary", distances == i, 1.0 / (size - 1))
    for i, token in enumerate(ordinary):
        hits = (shown == i)[originals != i]
        yield Count.of("random tokens", f"are {corpus.given.vocabulary[token]}", hits, 1.0 / (size - 1))


replacement = DataCheck(_violations)
