"""Half of the pairs are two consecutive utterances of a conversation and labelled as such; the other half never are.

The share is tested by an exact binomial test. B follows A if the first token of B is in the utterance after the one of A's last
token, in the same conversation; this also holds for truncated pairs. A boundary between two films is a boundary between two
conversations. Many epochs of a small corpus show whether the pipeline sometimes draws the next utterance as the random one.
"""

from collections.abc import Iterator

import numpy as np

from conformance.checks.data.data_check import DataCheck, DescribedCount, Epochs, beyond_chance, wrong_rows
from conformance.checks.data.examples import Examples
from conformance.errors import NotApplicable
from conformance.model.batch import Ids
from conformance.model.pretraining import NEXT
from conformance.numerics.formats import Mask


def _violations(epochs: Epochs, alpha: float) -> Iterator[str]:
    e = epochs.first
    if e.next_labels is None:
        raise NotApplicable("its rows are no pairs: its batches have no next_sentence_label")
    yield from wrong_rows(e, ~np.isin(e.next_labels, (0, 1)), "next_sentence_label is neither 0 nor 1")
    labelled = _labelled_next(e)
    yield from beyond_chance([DescribedCount.of("pairs", "are labelled as next", labelled, NEXT)], [], alpha)
    follows, together = _follows(e)
    yield from wrong_rows(e, labelled & follows & ~together, "a pair labelled as next is across the border of two conversations")
    yield from wrong_rows(e, labelled & _found(e) & ~follows, "a pair labelled as next is not two consecutive utterances")
    few = epochs.of_few
    yield from wrong_rows(few, ~_labelled_next(few) & np.logical_and(*_follows(few)), "a pair labelled as not next is the next")


def _labelled_next(e: Examples) -> Mask:
    return np.asarray(e.next_labels == e.conventions.next_label)


def _found(e: Examples) -> Mask:
    """Return whether both segments of each row were located in the corpus, (R,)."""
    return np.logical_and(*(place >= 0 for place in _places(e)))


def _follows(e: Examples) -> tuple[Mask, Mask]:
    """Return whether B is the utterance after A, and whether both are of one conversation, (R,) each."""
    last, first = _places(e)
    follows = _found(e) & (e.corpus.utterances[first] == e.corpus.utterances[last] + 1)
    return follows, np.asarray(e.corpus.conversations[first] == e.corpus.conversations[last])


def _places(e: Examples) -> tuple[Ids, Ids]:
    """Return the positions in the corpus of A's last token and of B's first token, (R,) each; −1 if not known."""
    first = np.where(e.known & (e.segments == 1), e.places, e.corpus.ids.size).min(1)
    last = np.where(e.known & (e.segments == 0), e.places, -1).max(1)
    return last, np.where(first < e.corpus.ids.size, first, -1)


pairs = DataCheck(_violations)
