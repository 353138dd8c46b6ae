"""Of the chosen tokens 80 % are shown as [MASK], 10 % as a random token, 10 % as they are, each by itself: exact binomial tests.

Random tokens are uniform over the vocabulary without its special tokens, or over all of it where that is declared
(`special_replacements`, as in BERT's own code and Hugging Face's). One of W tokens is the original with probability 1/W, and shows
as kept. The rest is uniform over the other ones: by halves of the vocabulary, by pieces that begin and that continue a word, by
each token, and by each distance from the original along the vocabulary. Were more than the 10 % kept, the input would show the label.
"""

from collections.abc import Iterator

import numpy as np

from conformance.checks.data.check import DataCheck, Epochs
from conformance.checks.data.counts import Count, beyond_chance
from conformance.checks.data.examples import Examples, Flags
from conformance.model.batch import Ids
from conformance.model.pretraining import MASKED, RANDOM


def _violations(epochs: Epochs, alpha: float) -> Iterator[str]:
    e = epochs[0]
    rows, columns = np.nonzero(e.first_seen & e.chosen)
    shown, originals = e.ids[rows, columns], e.originals[rows, columns]
    masked, kept = shown == e.corpus.id_of("[MASK]"), shown == originals
    is_random = ~masked & ~kept
    is_special = is_random & ~np.isin(shown, np.flatnonzero(e.corpus.ordinary))
    if is_special.any() and not e.conventions.special_replacements:
        names = sorted({e.corpus.given.vocabulary[i] for i in shown[is_special]})
        yield f"{is_special.sum()} of {is_random.sum()} random tokens are special ones, none may be: {', '.join(names)}"
    counts = [*_shares(e, masked, is_random, kept), _fates(masked, rows)]
    counts += _uniform(e, shown[is_random & ~is_special], originals[is_random & ~is_special])
    if e.conventions.special_replacements:
        drawn = len(e.corpus.given.vocabulary) - 2  # neither [MASK] nor the original
        specials = int((~e.corpus.ordinary).sum()) - 1
        counts.append(Count.of("random tokens", "are special ones", is_special[is_random], specials / drawn))
    yield from beyond_chance(counts, alpha)


def _shares(e: Examples, masked: Flags, is_random: Flags, kept: Flags) -> Iterator[Count]:
    """How often each of the three; of W tokens that are drawn from one is the original, and one may be [MASK]."""
    special = e.conventions.special_replacements
    each = RANDOM / (len(e.corpus.given.vocabulary) if special else int(e.corpus.ordinary.sum()))
    p_masked, p_kept = MASKED + each * special, 1.0 - MASKED - RANDOM + each
    yield Count.of("chosen tokens", "are shown as [MASK]", masked, p_masked)
    yield Count.of("chosen tokens", "are shown as another token", is_random, 1.0 - p_masked - p_kept)
    yield Count.of("chosen tokens", "are shown as they are, so that the input has the label", kept, p_kept)


def _fates(masked: Flags, rows: Ids) -> Count:
    """Chosen tokens 0 and 1, 2 and 3, and so on, of a row."""
    end = len(rows) // 2 * 2
    one, other = masked[0:end:2], masked[1:end:2]
    together = rows[0:end:2] == rows[1:end:2]
    alike = (one == other)[together]
    return Count.of("pairs of chosen tokens of a row", "are both [MASK] or both not", alike, MASKED**2 + (1.0 - MASKED) ** 2)


def _uniform(e: Examples, shown: Ids, originals: Ids) -> Iterator[Count]:
    """Random tokens that are not special, each of W − 1 with equal probability."""
    ordinary = np.flatnonzero(e.corpus.ordinary)
    size, rank = ordinary.size, np.cumsum(e.corpus.ordinary) - 1
    ranks, begins = np.arange(size), ~e.corpus.continues[ordinary]
    for name, group in (("of the first half of the vocabulary", ranks < size // 2), ("that begin a word", begins)):
        for inside in (True, False):  # the original is not drawn: where it is of the group there is one less
            hits = group[rank[shown]][group[rank[originals]] == inside]
            where = "replacing such a token" if inside else "replacing another token"
            yield Count.of(f"random tokens {where}", f"are {name}", hits, (group.sum() - inside) / (size - 1))
    distances = (rank[shown] - rank[originals]) % size
    for i in range(1, size):
        yield Count.of("random tokens", f"stand {i} after the original in the vocabulary", distances == i, 1.0 / (size - 1))
    for i, token in enumerate(ordinary):
        hits = (rank[shown] == i)[rank[originals] != i]
        yield Count.of("random tokens", f"are {e.corpus.given.vocabulary[token]}", hits, 1.0 / (size - 1))


replacement = DataCheck(_violations)
