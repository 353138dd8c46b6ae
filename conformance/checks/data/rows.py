"""What each row of a candidate's pre-training examples must be: its layout, its labels, and the order of its two segments."""

from collections.abc import Iterator

import numpy as np

from conformance.checks.data.data_check import DataCheck, DescribedCount, Epochs, beyond_chance, wrong_rows
from conformance.checks.data.examples import Examples
from conformance.errors import NotApplicable
from conformance.model.batch import Ids
from conformance.model.pretraining import NEXT
from conformance.numerics.formats import Mask


@DataCheck.of(
    "data-layout",
    proves="rows are [CLS] A [SEP] or [CLS] A [SEP] B [SEP], token types and mask agree with that, A and B are text of the corpus",
    catches="a row that is truncated without its last [SEP]; padding that is not masked",
    remedy="Truncate A and B before adding [CLS] and [SEP], and pad afterwards.",
)
def layout(epochs: Epochs, alpha: float) -> Iterator[str]:
    """A row is [CLS] A [SEP], or [CLS] A [SEP] B [SEP] for a pair; padding is masked; A and B are text of the corpus.

    A truncated row must still end with [SEP], since it trains the embedding of the end of a segment. Padding may be on either side
    and have any token types. A and B each consist of consecutive tokens of one conversation, from one utterance or several. A row
    made by concatenating texts with their special tokens and cutting the result to a fixed length, as transformers' run_mlm does by
    default, fails. An epoch contains every utterance that is followed by another one, except those of an incomplete last batch,
    which may be dropped.
    """
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


@DataCheck.of(
    "data-labels",
    proves="labels are the tokens of the corpus at their own positions; tokens without a label are unchanged",
    catches="labels that are shifted by one; a label at [SEP] or at padding",
    remedy="Copy the ids before replacing any, and set the labels of all tokens that were not chosen to the ignored label.",
)
def labels(epochs: Epochs, alpha: float) -> Iterator[str]:
    """Each label is the token of the corpus at its position, and each token without a label is unchanged.

    The loss is a mean over the positions with a label. A label of another position trains the network on a different task; a token
    that is changed and has no label is noise; a label at [CLS], [SEP] or padding trains the network to predict a token that it need
    not predict.
    """
    e = epochs.first
    columns, (first, last) = np.arange(e.ids.shape[1]), (end[:, None] for end in e.ends)
    special = e.separators | (columns <= first) | (columns > last)
    yield from wrong_rows(e, e.chosen & special, "a special token or padding has a label")
    yield from wrong_rows(e, e.chosen & e.known & (e.labels != e.originals), "a label is not the token that the corpus has there")
    yield from wrong_rows(e, ~e.chosen & e.known & (e.ids != e.originals), "a token is changed and has no label")


@DataCheck.of(
    "data-pairs",
    proves="half of the pairs are two consecutive utterances of a conversation and labelled so, the other half never are",
    catches="a random utterance that is the next one; pairs across the boundary of two films or conversations",
    remedy="Pair utterances within a conversation, and draw again if the random utterance is the next one.",
)
def pairs(epochs: Epochs, alpha: float) -> Iterator[str]:
    """Half of the pairs are two consecutive utterances of a conversation and labelled as such; the other half never are.

    The share is tested by an exact binomial test. B follows A if the first token of B is in the utterance after the one of A's last
    token, in the same conversation; this also holds for truncated pairs. A boundary between two films is a boundary between two
    conversations. Many epochs of a small corpus show whether the pipeline sometimes draws the next utterance as the random one.
    """
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
