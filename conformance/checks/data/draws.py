"""What a candidate's pre-training examples draw at random: the tokens to predict, and what replaces them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from conformance.checks.data.data_check import DataCheck, DescribedCount, Epochs, beyond_chance, wrong_rows
from conformance.checks.data.examples import Examples, IndexedCorpus
from conformance.model.batch import Ids
from conformance.model.pretraining import MASKED, RANDOM
from conformance.numerics.formats import Mask


@DataCheck.of(
    "data-choice",
    proves="the declared share (15 %) of tokens or of words is chosen independently, and anew in every epoch if declared",
    catches="whole words that are chosen together; a seed that is set for each row",
    remedy="Draw one random number per token, from a generator that is seeded once.",
)
def choice(epochs: Epochs, alpha: float) -> Iterator[str]:
    """The share of chosen tokens and the agreements within pairs are examined by exact binomial tests.

    If tokens are chosen independently with probability c, the number of n disjoint pairs that agree (both chosen, or neither) is
    binomial with probability c² + (1 − c)². The pairs are the first two pieces of a word, neighbouring tokens of two words, and
    tokens at the same position in neighbouring rows and in neighbouring batches. With dynamic masking, the share c of the tokens
    that one epoch chooses is chosen again in the next one. Each token of the corpus counts once per epoch, where it first occurs.
    If whole words are declared, all pieces of a word are chosen or none is, and the first pieces alone are counted. A fixed number
    of chosen tokens per row is a different distribution and fails: BERT's own code (create_pretraining_data.py) chooses round(0.15
    n) of a row's n tokens, where n includes special tokens, and therefore more than 15 % of the others.
    """
    e = epochs.first
    if e.conventions.whole_words:
        yield from wrong_rows(e, _is_split(e), "a part of a word is chosen, where whole words are declared")
    what = "words of the corpus" if e.conventions.whole_words else "tokens of the corpus"
    chosen = DescribedCount.of(what, "are chosen", e.chosen[_drawn(e)], e.conventions.chosen)
    again = [] if epochs.second is None else [_again(e, epochs.second)]
    yield from beyond_chance([chosen], [*_agreements(e), *again], alpha)


def _drawn(e: Examples) -> Mask:
    """Return which tokens are independent draws: each one of the corpus once; of a whole word, its first piece."""
    return e.first_seen & ~e.corpus.continues[e.originals] if e.conventions.whole_words else e.first_seen


def _is_split(e: Examples) -> Mask:
    """Return at which tokens a word goes on that is chosen up to there, or from there on."""
    continues = e.known[:, 1:] & e.known[:, :-1] & e.corpus.continues[e.originals[:, 1:]]
    return np.pad(continues & (e.chosen[:, 1:] != e.chosen[:, :-1]), ((0, 0), (1, 0)))


def _agreements(e: Examples) -> Iterator[DescribedCount]:
    if not e.conventions.whole_words:
        yield _agreement(e, "words of several pieces", "have their first two pieces chosen alike", _words(e))
    yield _agreement(e, "pairs of neighbouring tokens of two words", "are chosen alike", _side_by_side(e))
    yield _agreement(e, "pairs of the same position in neighbouring rows", "are chosen alike", _one_above_another(e))
    yield _agreement(e, "pairs of the same position in neighbouring batches", "are chosen alike", _batch_by_batch(e))


Pairs = tuple[tuple[Ids, Ids], tuple[Ids, Ids]]  # (rows, columns) of the first tokens and of the second tokens


def _agreement(e: Examples, trials: str, what: str, pairs: Pairs) -> DescribedCount:
    (one, other), chosen, drawn, c = pairs, e.chosen, _drawn(e), e.conventions.chosen
    counted = drawn[one] & drawn[other]
    return DescribedCount.of(trials, what, (chosen[one] == chosen[other])[counted], c**2 + (1.0 - c) ** 2)


def _words(e: Examples) -> Pairs:
    """Return the first two pieces of each word of at least two pieces."""
    continues = e.known & e.corpus.continues[e.originals]
    begins = e.known & ~continues
    rows, columns = np.nonzero(begins[:, :-1] & continues[:, 1:])
    return (rows, columns), (rows, columns + 1)


def _side_by_side(e: Examples) -> Pairs:
    """Return the pairs of positions (0, 1), (2, 3), … whose second token begins a word."""
    rows, columns = np.nonzero(~e.corpus.continues[e.originals[:, 1::2]])
    return (rows, 2 * columns), (rows, 2 * columns + 1)


def _one_above_another(e: Examples) -> Pairs:
    """Return the pairs of tokens at the same position in rows (0, 1), (2, 3), …."""
    rows, columns = np.indices((len(e.ids) // 2, e.ids.shape[1])).reshape(2, -1)
    return (2 * rows, columns), (2 * rows + 1, columns)


def _batch_by_batch(e: Examples) -> Pairs:
    """Return the pairs of tokens at the same position in the same row of batches (0, 1), (2, 3), …."""
    begins = np.flatnonzero(np.diff(e.batches, prepend=-1))
    place_in_batch = np.arange(len(e.batches)) - begins[e.batches]
    after = np.append(begins, len(e.batches))[e.batches + 1] + place_in_batch  # the same row of the next batch
    rows = np.flatnonzero((e.batches % 2 == 0) & (after < len(e.batches)))
    rows = rows[e.batches[after[rows]] == e.batches[rows] + 1]
    ones, columns = np.indices((len(rows), e.ids.shape[1])).reshape(2, -1)
    return (rows[ones], columns), (after[rows][ones], columns)


def _again(first: Examples, other: Examples) -> DescribedCount:
    """Return how many of the tokens chosen in one epoch are chosen in the other too, among those that occur in both."""
    before, after = (e.places[_drawn(e) & e.chosen] for e in (first, other))
    both_show = np.isin(before, other.places[_drawn(other)])
    again = np.isin(before[both_show], after)
    return DescribedCount.of("tokens that an epoch chooses", "are chosen again in the next one", again, first.conventions.chosen)


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


@DataCheck.of(
    "data-replacement",
    proves="80 % of the chosen tokens become [MASK], 10 % a random token, 10 % stay unchanged, independently of each other",
    catches="special tokens as random tokens; too many unchanged tokens, so that the input reveals the label",
    remedy="Draw another random number for each chosen token, and random tokens uniformly from those that are not special.",
)
def replacement(epochs: Epochs, alpha: float) -> Iterator[str]:
    """The shares of the three replacements, and what random tokens are, are examined by exact binomial tests.

    Random tokens are uniform over the vocabulary without its special tokens, or over the whole vocabulary if that is declared
    (`special_replacements`, as in BERT's own code and Hugging Face's). One of W random tokens is the original, and counts as kept,
    with probability 1/W. Otherwise it is uniform over the remaining tokens. This is tested for the halves of the vocabulary, for
    pieces that begin and that continue a word, for each token, and for each distance from the original in the vocabulary. If more
    than 10 % are kept, the input reveals the label.
    """
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
