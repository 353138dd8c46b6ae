"""80 % of the chosen tokens become [MASK], 10 % a random token, and 10 % stay, independently, as tested by exact binomial tests.

Random tokens are uniform over the vocabulary without its special tokens, or over the whole vocabulary if that is declared
(`special_replacements`, as in BERT's own code and Hugging Face's). One of W random tokens is the original, and counts as kept, with
probability 1/W. Otherwise it is uniform over the remaining tokens. This is tested for the halves of the vocabulary, for pieces that
begin and that continue a word, for each token, and for each distance from the original in the vocabulary. If more than 10 % are
kept, the input reveals the label.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from conformance.checks.data.data_check import DataCheck, DescribedCount, Epochs, beyond_chance
from conformance.checks.data.examples import Examples, IndexedCorpus
from conformance.model.batch import Ids
from conformance.model.pretraining import MASKED, RANDOM
from conformance.numerics.formats import Mask


@dataclass(frozen=True)
class _Draws:
    """The C chosen tokens of the epochs: their ids in the input and in the corpus, and the numbers of their rows, (C,) each."""

    corpus: IndexedCorpus
    shown: Ids
    originals: Ids
    rows: Ids

    @classmethod
    def of(cls, each: Sequence[Examples]) -> "_Draws":
        """Return the chosen tokens of several epochs, each token of the corpus once per epoch, where it first occurs."""
        found = [np.nonzero(e.first_seen & e.chosen) for e in each]
        before = np.cumsum([0, *(len(e.ids) for e in each)])
        shown = np.concatenate([e.ids[at] for e, at in zip(each, found, strict=True)])
        originals = np.concatenate([e.originals[at] for e, at in zip(each, found, strict=True)])
        return cls(each[0].corpus, shown, originals, np.concatenate([n + at[0] for n, at in zip(before, found, strict=False)]))

    @property
    def masked(self) -> Mask:
        return np.asarray(self.shown == self.corpus.id_of("[MASK]"))

    @property
    def kept(self) -> Mask:
        return np.asarray(self.shown == self.originals)

    @property
    def is_random(self) -> Mask:
        return ~self.masked & ~self.kept

    @property
    def is_special(self) -> Mask:
        return self.is_random & ~self.corpus.ordinary[self.shown]


def _violations(epochs: Epochs, alpha: float) -> Iterator[str]:
    special = epochs.first.conventions.special_replacements
    draws = _Draws.of([e for e in (epochs.first, epochs.second) if e is not None])
    if draws.is_special.any() and not special:
        names = sorted({draws.corpus.given.vocabulary[i] for i in draws.shown[draws.is_special]})
        count = f"{draws.is_special.sum()} of {draws.is_random.sum()}"
        yield f"{count} random tokens are special ones, none may be: {', '.join(names)}"
    yield from beyond_chance([*_shares(draws, special), *_uniform(draws), *_specials(draws, special)], [_fates(draws)], alpha)


def _shares(draws: _Draws, special: bool) -> Iterator[DescribedCount]:
    """Yield the counts of the three replacements; one of the W tokens drawn from is the original, and one may be [MASK]."""
    ordinary = draws.corpus.ordinary
    each = RANDOM / (ordinary.size if special else int(ordinary.sum()))
    p_masked, p_kept = MASKED + each * special, 1.0 - MASKED - RANDOM + each
    yield DescribedCount.of("chosen tokens", "are shown as [MASK]", draws.masked, p_masked)
    yield DescribedCount.of("chosen tokens", "are shown as another token", draws.is_random, 1.0 - p_masked - p_kept)
    yield DescribedCount.of("chosen tokens", "are shown as they are, so that the input has the label", draws.kept, p_kept)


def _fates(draws: _Draws) -> DescribedCount:
    """Return the agreements of the pairs (0, 1), (2, 3), … of chosen tokens that are in the same row."""
    end = len(draws.rows) // 2 * 2
    (one, other), (row, next_row) = ((x[0:end:2], x[1:end:2]) for x in (draws.masked, draws.rows))
    alike = (one == other)[row == next_row]
    return DescribedCount.of(
        "pairs of chosen tokens of a row", "are both [MASK] or both not", alike, MASKED**2 + (1.0 - MASKED) ** 2
    )


def _specials(draws: _Draws, special: bool) -> Iterator[DescribedCount]:
    """Yield the count of special random tokens, if allowed; of the V tokens, [MASK] and the original do not count as random."""
    if special:
        ordinary = draws.corpus.ordinary
        probability = (int((~ordinary).sum()) - 1) / (ordinary.size - 2)
        yield DescribedCount.of("random tokens", "are special ones", draws.is_special[draws.is_random], probability)


def _uniform(draws: _Draws) -> Iterator[DescribedCount]:
    """Yield counts of the random tokens that are not special, each of which is one of W − 1 with equal probability."""
    corpus, counted = draws.corpus, draws.is_random & ~draws.is_special
    ordinary, rank = np.flatnonzero(corpus.ordinary), np.cumsum(corpus.ordinary) - 1
    shown, originals, size = rank[draws.shown[counted]], rank[draws.originals[counted]], ordinary.size
    ranks, begins = np.arange(size), ~corpus.continues[ordinary]
    for name, group in (("in the first half of the vocabulary", ranks < size // 2), ("beginnings of words", begins)):
        for inside in (True, False):  # the original is excluded, so its group has one token less
            hits = group[shown][group[originals] == inside]
            where = "replacing such a token" if inside else "replacing another token"
            yield DescribedCount.of(f"random tokens {where}", f"are {name}", hits, (group.sum() - inside) / (size - 1))
    distances = (shown - originals) % size
    for i in range(1, size):
        yield DescribedCount.of(
            "random tokens", f"stand {i} after the original in the vocabulary", distances == i, 1.0 / (size - 1)
        )
    for i, token in enumerate(ordinary):
        hits = (shown == i)[originals != i]
        yield DescribedCount.of("random tokens", f"are {corpus.given.vocabulary[token]}", hits, 1.0 / (size - 1))


replacement = DataCheck(_violations)
