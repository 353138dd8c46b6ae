"""Examples, with every token of theirs found again in the corpus.

A row's segments end at [SEP] and have their labels put back. Two neighbouring tokens of a segment say where in the corpus it
begins; where more than half of them agree, the segment is found, though some of its labels or tokens may be wrong.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from conformance.checks.data.corpus import IndexedCorpus
from conformance.model.batch import Batch, Ids
from conformance.model.pretraining import PretrainingConventions

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Examples:
    """The rows of an epoch: R of them, of S positions, shorter ones with padding at the right.

    Attributes:
        corpus, conventions: what they were made of, and under which conventions.
        ids, types, labels: (R, S), as the pipeline gave them.
        mask: (R, S): what is attended to.
        next_labels: (R,); None where rows are no pairs.
        batches: (R,): the number of each row's batch.
        separators: (R, S): the [SEP]s that end segments.
        segments: (R, S): 0 for A with [CLS] and its [SEP], 1 for B with its own, and so on; −1 where nothing is attended to.
        places: (R, S): where in the corpus each token of a segment stands; −1 of any other.
    """

    corpus: IndexedCorpus
    conventions: PretrainingConventions
    ids: Ids
    types: Ids
    labels: Ids
    mask: Flags
    next_labels: Ids | None
    batches: Ids
    separators: Flags
    segments: Ids
    places: Ids

    @property
    def chosen(self) -> Flags:
        """(R, S): which tokens have a label."""
        return np.asarray(self.labels != self.conventions.ignored_label)

    @property
    def ends(self) -> tuple[Ids, Ids]:
        """(R,) each: the positions of the first and of the last token that is attended to."""
        return self.mask.argmax(1), self.mask.shape[1] - 1 - self.mask[:, ::-1].argmax(1)

    @property
    def known(self) -> Flags:
        """(R, S): which tokens were found in the corpus."""
        return self.places >= 0

    @property
    def originals(self) -> Ids:
        """(R, S): what the corpus has there; −1 where that is not known."""
        return np.where(self.known, self.corpus.ids[self.places], -1)

    @property
    def first_seen(self) -> Flags:
        """(R, S): the known tokens, each token of the corpus where it comes first.

        A pipeline may choose tokens of an utterance once and show it often: only the first time is a draw of its own.
        """
        found = np.zeros(self.places.size, bool)
        places, first = np.unique(self.places, return_index=True)
        found[first[places >= 0]] = True
        return found.reshape(self.places.shape)


def examples_of(batches: Sequence[Batch], corpus: IndexedCorpus, conventions: PretrainingConventions) -> Examples:
    """The examples of an epoch's batches, all of them with labels."""
    padding, ignored = corpus.id_of("[PAD]"), conventions.ignored_label
    width = max(batch.length for batch in batches)

    def rows(arrays: Sequence[Ids | Flags], fill: int) -> Ids:
        return np.concatenate([np.pad(a, ((0, 0), (0, width - a.shape[1])), constant_values=fill) for a in arrays])

    ids, types = rows([b.input_ids for b in batches], padding), rows([b.types for b in batches], 0)
    labels = rows([b.labels for b in batches if b.labels is not None], ignored)
    mask = rows([b.mask for b in batches], 0).astype(bool)
    following = [b.next_sentence_label for b in batches if b.next_sentence_label is not None]
    numbers = np.repeat(np.arange(len(batches)), [batch.size for batch in batches])
    # A [SEP] whose label is an ordinary token is shown in the place of one.
    separators = mask & (ids == corpus.id_of("[SEP]")) & ~np.isin(labels, np.flatnonzero(corpus.ordinary))
    segments = np.where(mask, np.cumsum(separators, 1) - separators, -1)
    restored = np.where(labels == ignored, ids, labels)
    is_token = mask & ~separators & (restored != corpus.id_of("[CLS]"))
    places = _places(corpus, restored, np.where(is_token, segments, -1))
    next_labels = np.concatenate(following) if following else None
    return Examples(corpus, conventions, ids, types, labels, mask, next_labels, numbers, separators, segments, places)


def _places(corpus: IndexedCorpus, restored: Ids, segments: Ids) -> Ids:
    """Where each token of a segment stands in the corpus, (R, S), by most of its pairs; −1 where they do not agree."""
    count, size = int(segments.max(initial=0)) + 1, len(corpus.given.vocabulary)
    ids = np.where((restored >= 0) & (restored < size), restored, 0)
    paired = (segments[:, :-1] == segments[:, 1:]) & (segments[:, 1:] >= 0)
    found = np.where(paired, corpus.place[ids[:, :-1], ids[:, 1:]], -1)
    numbers, columns = np.arange(len(ids))[:, None] * count + segments.clip(0), np.arange(ids.shape[1])
    begins = np.full(len(ids) * count, -ids.shape[1])  # before any place
    says = found >= 0
    answers = np.stack((numbers[:, :-1][says], (found - columns[:-1])[says]), 1)
    each, votes = np.unique(answers, axis=0, return_counts=True)
    most = 2 * votes > np.bincount(numbers[:, :-1][paired], minlength=begins.size)[each[:, 0]]
    begins[each[most, 0]] = each[most, 1]
    places = begins[numbers] + columns
    return np.where((segments >= 0) & (places >= 0) & (places < corpus.ids.size), places, -1)
