"""A row is [CLS] A [SEP], or [CLS] A [SEP] B [SEP] for a pair; padding is masked; A and B are text of the corpus.

A truncated row must still end with [SEP], since it trains the embedding of the end of a segment. Padding may be on either side and
have any token types. A and B each consist of consecutive tokens of one conversation, from one utterance or several. A row made by
concatenating texts with their special tokens and cutting the result to a fixed length, as transformers' run_mlm does by default,
fails. An epoch contains every utterance that is followed by another one, except those of an incomplete last batch, which may be
dropped.
"""

from collections.abc import Iterator

import numpy as np

from conformance.checks.data.data_check import DataCheck, Epochs, wrong_rows
from conformance.checks.data.examples import Examples


def _violations(epochs: Epochs, alpha: float) -> Iterator[str]:
    examples = epochs.first
    yield from _framing(examples)
    yield from _padding(examples)
    yield from _types(examples)
    yield from _segments(examples)
    yield from _missing(examples)


def _framing(e: Examples) -> Iterator[str]:
    """Yield violations of the positions of special tokens and of the number of segments."""
    corpus, rows, (first, last) = e.corpus, np.arange(len(e.ids)), e.ends
    yield from wrong_rows(e, e.ids[rows, first] != corpus.id_of("[CLS]"), "the first token is not [CLS]")
    yield from wrong_rows(e, e.ids[rows, last] != corpus.id_of("[SEP]"), "the last token is not [SEP]")
    expected = 1 if e.next_labels is None else 2
    tokens = e.mask & ~e.separators
    tokens[rows, first] = False
    filled = np.stack([(tokens & (e.segments == i)).any(1) for i in range(int(e.segments.max(initial=0)) + 1)], 1)
    yield from wrong_rows(e, filled.sum(1) != expected, f"there are more or fewer segments with tokens than {expected}")


def _padding(e: Examples) -> Iterator[str]:
    """Yield violations of the rule that the mask hides the padding and nothing else."""
    is_padding = (e.ids == e.corpus.id_of("[PAD]")) & ~e.chosen
    yield from wrong_rows(e, e.mask & is_padding, "the mask shows [PAD]")
    yield from wrong_rows(e, ~e.mask & ~is_padding, "the mask hides tokens")


def _types(e: Examples) -> Iterator[str]:
    """Yield segments whose token types are not the declared ones."""
    for segment, declared in enumerate(e.conventions.token_types):
        wrong = (e.segments == segment) & (e.types != declared)
        yield from wrong_rows(e, wrong, f"segment {'AB'[segment]} has token types other than {declared}")


def _segments(e: Examples) -> Iterator[str]:
    """Yield segments that are not text of one conversation of the corpus."""
    lost, crossing = np.zeros(len(e.ids), bool), np.zeros(len(e.ids), bool)
    for segment in (0, 1):
        inside = (e.segments == segment) & ~e.separators & (e.ids != e.corpus.id_of("[CLS]"))
        lost |= (inside.sum(1) > 1) & ~(inside & e.known).any(1)
        owners = np.where(inside & e.known, e.corpus.conversations[e.places], -1)
        crossing |= owners.max(1) != np.where(owners < 0, owners.max(), owners).min(1)
    yield from wrong_rows(e, lost, "a segment is found nowhere in the corpus")
    yield from wrong_rows(e, crossing & ~lost, "a segment runs from one conversation into the next")


def _missing(e: Examples) -> Iterator[str]:
    """Yield the number of utterances that should be in a first segment but are not, if a dropped batch does not explain it."""
    utterances, conversations = e.corpus.utterances, e.corpus.conversations
    is_last = np.append(
        (np.diff(utterances) > 0) & (np.diff(conversations) == 0), False
    )  # last token of an utterance that is followed by another
    expected = np.unique(utterances[is_last])
    seen = np.unique(utterances[e.places[e.known & (e.segments == 0)]])
    missing, sizes = np.setdiff1d(expected, seen).size, np.bincount(e.batches)
    dropped = sizes.max() - 1 if sizes.size > 1 else 0  # at most the rows of an incomplete last batch
    if missing > dropped:
        yield f"{missing} of {expected.size} utterances that another one follows are in no row's first segment"


layout = DataCheck(_violations)
