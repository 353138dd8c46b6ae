"""Examples of a pipeline, with the position of each token in the corpus.

The segments of a row end at [SEP], and the tokens that have a label are replaced by their labels. Each pair of neighbouring tokens
of a segment implies where in the corpus the segment begins. The segment is located if more than half of its pairs imply the same
position, even if some of its labels or tokens are wrong.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from conformance.checks.data.corpus import IndexedCorpus
from conformance.model.batch import Batch, Ids
from conformance.model.pretraining import PretrainingConventions
from conformance.numerics.formats import Mask


@dataclass(frozen=True)
class Examples:
    """The R rows of an epoch, padded at the right to S positions.

    Attributes:
        corpus, conventions: the corpus of which the rows were made, and the pipeline's conventions.
        ids, types, labels: token ids, token types and masked-LM labels as the pipeline returned them, (R, S).
        mask: whether each position is attended to, (R, S).
        next_labels: next-sentence labels, (R,); None if rows are not pairs.
        batches: the number of each row's batch, (R,).
        separators: whether each position is a [SEP] that ends a segment, (R, S).
        segments: 0 for [CLS], A and its [SEP], 1 for B and its [SEP], and so on; −1 at positions not attended to, (R, S).
        places: the position in the corpus of each token of a segment; −1 for other or unlocated tokens, (R, S).
    """

    corpus: IndexedCorpus
    conventions: PretrainingConventions
    ids: Ids
    types: Ids
    labels: Ids
    mask: Mask
    next_labels: Ids | None
    batches: Ids
    separators: Mask
    segments: Ids
    places: Ids

    @property
    def chosen(self) -> Mask:
        """Whether each token has a label, (R, S)."""
        return np.asarray(self.labels != self.conventions.ignored_label)

    @property
    def ends(self) -> tuple[Ids, Ids]:
        """The positions of the first and of the last token that is attended to, (R,) each."""
        return self.mask.argmax(1), self.mask.shape[1] - 1 - self.mask[:, ::-1].argmax(1)

    @property
    def known(self) -> Mask:
        """Whether each token was located in the corpus, (R, S)."""
        return self.places >= 0

    @property
    def originals(self) -> Ids:
        """The id that the corpus has at each token's position; −1 if the position is not known, (R, S)."""
        return np.where(self.known, self.corpus.ids[self.places], -1)

    @property
    def first_seen(self) -> Mask:
        """Whether each token is located and the first occurrence of its token of the corpus, (R, S).

        A pipeline may choose the tokens of an utterance once and repeat it: only the first occurrence is an independent draw.
        """
        found = np.zeros(self.places.size, bool)
        places, first = np.unique(self.places, return_index=True)
        found[first[places >= 0]] = True
        return found.reshape(self.places.shape)


def examples_of(batches: Sequence[Batch], corpus: IndexedCorpus, conventions: PretrainingConventions) -> Examples:
    """Return the examples of an epoch's batches, all of which have labels."""
    padding, ignored = corpus.id_of("[PAD]"), conventions.ignored_label
    width = max(batch.length for batch in batches)

    def rows(arrays: Sequence[Ids | Mask], fill: int) -> Ids:
        return np.concatenate([np.pad(a, ((0, 0), (0, width - a.shape[1])), constant_values=fill) for a in arrays])

    ids, types = rows([b.input_ids for b in batches], padding), rows([b.types for b in batches], 0)
    labels = rows([b.labels for b in batches if b.labels is not None], ignored)
    mask = rows([b.mask for b in batches], 0).astype(bool)
    following = [b.next_sentence_label for b in batches if b.next_sentence_label is not None]
    numbers = np.repeat(np.arange(len(batches)), [batch.size for batch in batches])
    # A [SEP] whose label is an ordinary token replaces that token and ends no segment.
    separators = mask & (ids == corpus.id_of("[SEP]")) & ~np.isin(labels, np.flatnonzero(corpus.ordinary))
    segments = np.where(mask, np.cumsum(separators, 1) - separators, -1)
    restored = np.where(labels == ignored, ids, labels)
    is_token = mask & ~separators & (restored != corpus.id_of("[CLS]"))
    places = _places(corpus, restored, np.where(is_token, segments, -1))
    next_labels = np.concatenate(following) if following else None
    return Examples(corpus, conventions, ids, types, labels, mask, next_labels, numbers, separators, segments, places)


def _places(corpus: IndexedCorpus, restored: Ids, segments: Ids) -> Ids:
    """Return each token's position in the corpus by majority of its segment's pairs; −1 without a majority, (R, S)."""
    count, size = int(segments.max(initial=0)) + 1, len(corpus.given.vocabulary)
    ids = np.where((restored >= 0) & (restored < size), restored, 0)
    paired = (segments[:, :-1] == segments[:, 1:]) & (segments[:, 1:] >= 0)
    found = np.where(paired, corpus.place[ids[:, :-1], ids[:, 1:]], -1)
    numbers, columns = np.arange(len(ids))[:, None] * count + segments.clip(0), np.arange(ids.shape[1])
    begins = np.full(len(ids) * count, -ids.shape[1])  # smaller than any position
    says = found >= 0
    answers = np.stack((numbers[:, :-1][says], (found - columns[:-1])[says]), 1)
    each, votes = np.unique(answers, axis=0, return_counts=True)
    most = 2 * votes > np.bincount(numbers[:, :-1][paired], minlength=begins.size)[each[:, 0]]
    begins[each[most, 0]] = each[most, 1]
    places = begins[numbers] + columns
    return np.where((segments >= 0) & (places >= 0) & (places < corpus.ids.size), places, -1)
