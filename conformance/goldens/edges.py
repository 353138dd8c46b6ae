"""The recipe of the golden `edges`, with many lengths, masks and unusual texts."""

import numpy as np

from conformance.goldens.batches import Stream, batch
from conformance.goldens.recipe import Generated
from conformance.model.architecture import Architecture
from conformance.model.batch import Batch, Ids

ARCHITECTURE = Architecture(
    vocab_size=96,
    hidden_size=24,
    num_hidden_layers=2,
    num_attention_heads=3,
    intermediate_size=40,
    max_position_embeddings=64,
    type_vocab_size=3,
    num_labels=3,
    heads=("masked_lm", "next_sentence", "classification"),
)

LENGTHS = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64)

PAD, CLS, SEP, MASK = 0, 2, 3, 4  # special-token ids in the usual order of a WordPiece vocabulary: [PAD] [UNK] [CLS] [SEP] [MASK]


def _lengths(length: int) -> Ids:
    """Return a mask (B, S) with a row for each number of tokens from the next shorter batch's length + 1 to `length`.

    The rows are padded on the right and on the left in turn.
    """
    shorter = max((n for n in LENGTHS if n < length), default=0)
    position = np.arange(length)
    rows = [position < n if n % 2 else position >= length - n for n in range(shorter + 1, length + 1)]
    return np.array(rows, np.int64)


def _holes(seed: int, length: int) -> Ids:
    """Return a mask of eight rows whose tokens are masked with probability 1/2, 1/4, 1/8, …, except the first token of each row."""
    chance = 2 ** np.arange(1, 9)[:, None]
    mask = np.asarray(Stream(seed, "holes").integers((8, length), 0, 256) % chance != 0, np.int64)
    mask[:, 0] = 1
    return mask


def _odd(length: int) -> Ids:
    """Return ids of unusual texts: one id repeated, only special tokens, only [CLS] and [SEP], and ascending or descending ids."""
    position = np.arange(length)
    rising = position % ARCHITECTURE.vocab_size
    frame = np.where(position == 0, CLS, np.where(position == length - 1, SEP, MASK))
    rows = [np.full(length, 7), np.full(length, PAD), frame, np.where(position % 2, SEP, CLS), rising]
    return np.array([*rows, ARCHITECTURE.vocab_size - 1 - rising], np.int64)


def _batches(seed: int) -> dict[str, Batch]:
    made = {f"length-{n}": batch(seed, ARCHITECTURE, _lengths(n), f"length-{n}:") for n in LENGTHS}
    ids = _odd(ARCHITECTURE.max_position_embeddings)
    made["holes"] = batch(seed, ARCHITECTURE, _holes(seed, 32), "holes:")
    made["odd-texts"] = batch(seed, ARCHITECTURE, np.ones_like(ids), "odd-texts:", ids)
    return made


_ABOUT = (
    "Every length from 1 to the most that the network takes, masks with holes, every id, odd texts. "
    "Its batches differ in length, so that one runner is called with many shapes: an implementation that is right at one length "
    "alone fails. Kernels change their path at powers of two; the batches' lengths lie on both sides of each."
)
RECIPE = Generated("edges", _ABOUT, ARCHITECTURE, _batches)
