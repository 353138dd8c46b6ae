"""The declared share of tokens is chosen independently, by exact binomial tests of the share and of agreements within pairs.

If tokens are chosen independently with probability c, the number of n disjoint pairs that agree (both chosen, or neither) is
binomial with probability c² + (1 − c)². The pairs are the first two pieces of a word, neighbouring tokens of two words, and tokens
at the same position in neighbouring rows and in neighbouring batches. With dynamic masking, the share c of the tokens that one
epoch chooses is chosen again in the next one. Each token of the corpus counts once per epoch, where it first occurs. If whole words
are declared, all pieces of a word are chosen or none is, and the first pieces alone are counted. A fixed number of chosen tokens
per row is a different distribution and fails: BERT's own code (create_pretraining_data.py) chooses round(0.15 n) of a row's n
tokens, where n includes special tokens, and therefore more than 15 % of the others.
"""

from collections.abc import Iterator

import numpy as np

from conformance.checks.data.data_check import DataCheck, DescribedCount, Epochs, beyond_chance, wrong_rows
from conformance.checks.data.examples import Examples
from conformance.model.batch import Ids
from conformance.numerics.formats import Mask


def _violations(epochs: Epochs, alpha: float) -> Iterator[str]:
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


choice = DataCheck(_violations)
