"""A row is [CLS] A [SEP], or [CLS] A [SEP] B [SEP] for a pair; padding is hidden; A and B are text of the corpus.

A truncated row still ends with [SEP]: the embedding of the end of a segment is trained there. Padding may be at either side, its
token types are anything. A and B run over consecutive tokens of one conversation, of one utterance or several; texts with special
tokens of their own that are strung together and cut to one length, as transformers' run_mlm does by default, are no such row. An
epoch shows every utterance that another one follows, but for those of a last batch that is not full, which may be dropped.
"""

from collections.abc import Iterator

import numpy as np

from conformance.checks.data.check import DataCheck
from conformance.checks.data.counts import wrong_rows
from conformance.checks.data.epochs import Epochs
from conformance.checks.data.examples import Examples


def _violations(epochs: Epochs, alpha: float) -> Iterator[str]:
    examples = epochs.first
    yield from _framing(examples)
    yield from _padding(examples)
    yield from _types(examples)
    yield from _segments(examples)
    yield from _missing(examples)


def _framing(e: Examples) -> Iterator[str]:
    """Special tokens where they have to be."""
    corpus, rows, (first, last) = e.corpus, np.arange(len(e.ids)), e.ends
    yield from wrong_rows(e, e.ids[rows, first] != corpus.id_of("[CLS]"), "the first token is not [CLS]")
    yield from wrong_rows(e, e.ids[rows, last] != corpus.id_of("[SEP]"), "the last token is not [SEP]")
    expected = 1 if e.next_labels is None else 2
    tokens = e.mask & ~e.separators
    tokens[rows, first] = False
    filled = np.stack([(tokens & (e.segments == i)).any(1) for i in range(int(e.segments.max(initial=0)) + 1)], 1)
    yield from wrong_rows(e, filled.sum(1) != expected, f"there are more or fewer segments with tokens than {expected}")


def _padding(e: Examples) -> Iterator[str]:
    """What is attended to is the row without its padding, and nothing else."""
    is_padding = (e.ids == e.corpus.id_of("[PAD]")) & ~e.chosen
    yield from wrong_rows(e, e.mask & is_padding, "the mask shows [PAD]")
    yield from wrong_rows(e, ~e.mask & ~is_padding, "the mask hides tokens")


def _types(e: Examples) -> Iterator[str]:
    """Those that are declared."""
    for segment, declared in enumerate(e.conventions.token_types):
        wrong = (e.segments == segment) & (e.types != declared)
        yield from wrong_rows(e, wrong, f"segment {'AB'[segment]} has token types other than {declared}")


def _segments(e: Examples) -> Iterator[str]:
    """Text of the corpus, within a conversation."""
    lost, crossing = np.zeros(len(e.ids), bool), np.zeros(len(e.ids), bool)
    for segment in (0, 1):
        inside = (e.segments == segment) & ~e.separators & (e.ids != e.corpus.id_of("[CLS]"))
        lost |= (inside.sum(1) > 1) & ~(inside & e.known).any(1)
        owners = np.where(inside & e.known, e.corpus.conversations[e.places], -1)
        crossing |= owners.max(1) != np.where(owners < 0, owners.max(), owners).min(1)
    yield from wrong_rows(e, lost, "a segment is found nowhere in the corpus")
    yield from wrong_rows(e, crossing & ~lost, "a segment runs from one conversation into the next")


def _missing(e: Examples) -> Iterator[str]:
    """Every utterance that another one follows begins some row, but for those of a batch that is dropped."""
    utterances, conversations = e.corpus.utterances, e.corpus.conversations
    is_last = np.append((np.diff(utterances) > 0) & (np.diff(conversations) == 0), False)  # of an utterance with another after it
    expected = np.unique(utterances[is_last])
    seen = np.unique(utterances[e.places[e.known & (e.segments == 0)]])
    missing, sizes = np.setdiff1d(expected, seen).size, np.bincount(e.batches)
    dropped = sizes.max() - 1 if sizes.size > 1 else 0  # of a last batch that is not full
    if missing > dropped:
        yield f"{missing} of {expected.size} utterances that another one follows are in no row's first segment"


layout = DataCheck(_violations)
