"""Half of the pairs are two consecutive utterances of a conversation, and labelled so; the other half never are.

The share is tested by an exact binomial test. B follows A where its first token is of the utterance after that of A's last token,
in the same conversation: cut pairs are found as well. A border of films is one of conversations too.
"""

from collections.abc import Iterator

import numpy as np

from conformance.checks.data.check import DataCheck, Epochs
from conformance.checks.data.counts import Count, beyond_chance, wrong_rows
from conformance.checks.data.examples import Examples
from conformance.errors import NotApplicable
from conformance.model.batch import Ids
from conformance.model.pretraining import NEXT


def _violations(epochs: Epochs, alpha: float) -> Iterator[str]:
    e = epochs[0]
    if e.next_labels is None:
        raise NotApplicable("its rows are no pairs: its batches have no next_sentence_label")
    is_next = e.next_labels == e.conventions.next_label
    yield from wrong_rows(e, ~np.isin(e.next_labels, (0, 1)), "next_sentence_label is neither 0 nor 1")
    yield from beyond_chance([Count.of("pairs", "are labelled as next", is_next, NEXT)], alpha)
    last, first = _places(e)
    found = (last >= 0) & (first >= 0)
    follows = found & (e.corpus.utterances[first] == e.corpus.utterances[last] + 1)
    together = e.corpus.conversations[first] == e.corpus.conversations[last]
    yield from wrong_rows(e, is_next & follows & ~together, "a pair labelled as next is across the border of two conversations")
    yield from wrong_rows(e, is_next & found & ~follows, "a pair labelled as next is not two consecutive utterances")
    yield from wrong_rows(e, ~is_next & follows & together, "a pair labelled as not next is two consecutive utterances")


def _places(e: Examples) -> tuple[Ids, Ids]:
    """Where A's last token and B's first one stand, (R,); −1 where that is not known."""
    first = np.where(e.known & (e.segments == 1), e.places, e.corpus.ids.size).min(1)
    last = np.where(e.known & (e.segments == 0), e.places, -1).max(1)
    return last, np.where(first < e.corpus.ids.size, first, -1)


pairs = DataCheck(_violations)
