"""Generated batches: ids, token types and labels from Philox integers, and masks written as strings; and those of the goldens."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from conformance.model.architecture import MULTI_LABEL, SINGLE_LABEL, Architecture
from conformance.model.batch import IGNORED_LABEL, Batch, Ids
from conformance.numerics.formats import FORMATS, Array

SEED = 20_260_101


class Stream:
    """A stream of random integers determined by a seed and a name, independently of other streams.

    Random integers and normal deviates come from raw Philox output and integer arithmetic, bitwise identical on every machine:
    `numpy.random.Philox(key=…).random_raw()` is the counter-based generator of Salmon et al. 2011, whose output NumPy guarantees;
    `Generator` distributions and libm are not guaranteed and are not used. A normal deviate is an integer Irwin–Hall sum: twelve
    16-bit integers have mean 6 · 65535 and standard deviation 65536 (to one part in 2^32), excess kurtosis −0.1.

    Deviates are rounded to seven fractional bits and at most eight significant bits. With scales that are powers of two, every
    weight is therefore exact in bfloat16, float16, float32 and float64, so that rounding of weights cannot explain an error.
    """

    def __init__(self, seed: int, name: str) -> None:
        """Key the generator with the SHA-256 of seed and name."""
        digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
        self._bits = np.random.Philox(key=int.from_bytes(digest[:16], "little"))

    def words(self, count: int) -> npt.NDArray[np.uint64]:
        """Return `count` raw 64-bit words."""
        return np.asarray(self._bits.random_raw(count), np.uint64)

    def integers(self, shape: tuple[int, ...], low: int, high: int) -> npt.NDArray[np.int64]:
        """Return integers from `low` to `high` − 1; the bias of the modulo is below (high − low)/2^64."""
        words = self.words(int(np.prod(shape)))
        return (low + (words % np.uint64(high - low)).astype(np.int64)).reshape(shape)

    def normals(self, shape: tuple[int, ...]) -> Array:
        """Return normal deviates of standard deviation 1, rounded to eight significant bits (as bfloat16) and multiples of 2^-7."""
        count = int(np.prod(shape))
        words = self.words(3 * count).reshape(count, 3)
        parts = [(words >> np.uint64(shift)) & np.uint64(0xFFFF) for shift in (0, 16, 32, 48)]
        total = sum(part.astype(np.int64).sum(-1) for part in parts) - 6 * 65535
        grid = (total // 512).astype(np.float64) / 128.0
        return FORMATS["bfloat16"].round(grid).reshape(shape)


def drawn(masks: Sequence[str]) -> Ids:
    """Return the mask (B, S) given by strings of `1` (attended to) and `0` (padding)."""
    return np.array([[int(c) for c in row] for row in masks], np.int64)


def batch(seed: int, architecture: Architecture, mask: Ids, name: str = "", ids: Ids | None = None) -> Batch:
    """Return a batch with random ids, ascending token types, and labels for every head of the architecture.

    Token types increase at random positions. Labels are given to a quarter of the unmasked tokens and to the first unmasked token
    of each row; to sequences whose first token is unmasked; to spans in rows without padding; and to questions. A question has two
    rows, or three if the number of rows is not even, or all rows if their number is not divisible by three either.

    Args:
        seed: seed of the random integers.
        architecture: the architecture.
        mask: attention mask, (B, S).
        name: prefix that makes the random integers of several batches different.
        ids: token ids, (B, S), used instead of random ones.
    """

    def integers(what: str, shape: tuple[int, ...], low: int, high: int) -> Ids:
        return Stream(seed, f"{name}{what}").integers(shape, low, high)

    rows, length = mask.shape
    vocabulary = architecture.vocab_size
    boundaries = np.sort(integers("boundary", (rows, 1, architecture.type_vocab_size - 1), 1, length + 1), -1)
    types = (np.arange(length)[None, :, None] >= boundaries).sum(-1)
    first = np.arange(length) == mask.argmax(1)[:, None]
    labelled = (first | (integers("labelled", mask.shape, 0, 4) == 0)) & (mask == 1)
    read = mask[:, 0] == 1  # the heads for sequences read the first token
    made = Batch(
        input_ids=integers("input_ids", mask.shape, 0, vocabulary) if ids is None else ids,
        token_type_ids=np.asarray(types, np.int64),
        attention_mask=mask,
        labels=np.where(labelled, integers("labels", mask.shape, 0, vocabulary), IGNORED_LABEL),
        next_sentence_label=np.where(read, integers("next_sentence_label", (rows,), 0, 2), IGNORED_LABEL),
        class_labels=np.where(read, integers("class_labels", (rows,), 0, architecture.num_labels), IGNORED_LABEL),
    )
    if architecture.problem != SINGLE_LABEL:
        targets = _targets(architecture, integers, rows) if "classification" in architecture.heads else None
        made = replace(made, class_labels=None, class_targets=targets)
    if "token_classification" in architecture.heads:
        classes = integers("token_labels", mask.shape, 0, architecture.num_labels)
        made = replace(made, token_labels=np.where(labelled, classes, IGNORED_LABEL))
    if "question_answering" in architecture.heads:
        starts, ends = (
            np.where(mask.all(1), integers(f"{which}_positions", (rows,), 0, length), IGNORED_LABEL) for which in ("start", "end")
        )
        made = replace(made, start_positions=starts, end_positions=ends)
    if "multiple_choice" in architecture.heads:
        choices = next(n for n in (2, 3, rows) if rows % n == 0)
        whole = read.reshape(-1, choices).all(1)
        right = integers("choice_labels", (rows // choices,), 0, choices)
        made = replace(made, choice_labels=np.where(whole, right, IGNORED_LABEL))
    return made


def _targets(a: Architecture, integers: Callable[[str, tuple[int, ...], int, int], Ids], rows: int) -> Array:
    """Return targets (B, C): 0 or 1 for each label, or numbers between −2 and 2 that every format represents exactly."""
    shape = (rows, a.num_labels)
    if a.problem == MULTI_LABEL:
        return integers("class_targets", shape, 0, 2).astype(np.float64)
    return integers("class_targets", shape, -16, 17) / 8.0


Batches = Callable[[Architecture], Mapping[str, Batch]]


def padded(*masks: str) -> Batches:
    """Return a function that makes one batch of random ids under masks, a string for each row (`drawn`)."""
    return lambda a: {"padded": batch(SEED, a, drawn(masks))}


def with_states(*masks: str) -> Batches:
    """Add encoder states of standard deviation 1 that every format represents exactly, with a mask of their own."""
    mask = drawn(("11111111111", "11111110000", "00111111111", "10110111010"))

    def batches(a: Architecture) -> Mapping[str, Batch]:
        states = Stream(SEED, "encoder_hidden_states").normals((*mask.shape, a.hidden_size))
        given = batch(SEED, a, drawn(masks))
        return {"padded": replace(given, encoder_hidden_states=states, encoder_attention_mask=mask)}

    return batches


def with_further_inputs(*masks: str) -> Batches:
    """Return one batch with random position ids, and one with a mask for each query; every token attends at least to itself."""
    mask = drawn(masks)

    def batches(a: Architecture) -> Mapping[str, Batch]:
        given = batch(SEED, a, mask)
        ids = Stream(SEED, "position_ids").integers(mask.shape, 0, a.max_position_embeddings)
        pairs = Stream(SEED, "attention_mask").integers((*mask.shape, mask.shape[1]), 0, 3) > 0
        pairs = (pairs | np.eye(mask.shape[1], dtype=np.bool_)) & (mask[:, :, None] & mask[:, None, :] == 1)
        return {"positions": replace(given, position_ids=ids), "pairs": replace(given, attention_mask=pairs.astype(np.int64))}

    return batches


def with_ids_of_padding(*masks: str) -> Batches:
    """Return a batch whose ids are 0 exactly at padding, so that a mask derived from the ids equals the attention mask.

    Token types are 1 in the first half of each row and 2 in the second, with 0 for padding.
    """
    mask = drawn(masks)

    def batches(a: Architecture) -> Mapping[str, Batch]:
        given = batch(SEED, a, mask)
        second = np.arange(mask.shape[1]) >= mask.sum(1, keepdims=True) // 2
        ids, types = mask * (1 + given.input_ids % (a.vocab_size - 1)), mask * (1 + second)
        return {"padded": replace(given, input_ids=ids, token_type_ids=types)}

    return batches


_LENGTHS = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64)
_PAD, _CLS, _SEP, _MASK = 0, 2, 3, 4  # ids in the usual order of a WordPiece vocabulary: [PAD] [UNK] [CLS] [SEP] [MASK]


def of_edges(a: Architecture) -> Mapping[str, Batch]:
    """Return batches of many lengths, one with holes in its mask, and one of unusual texts."""
    made = {f"length-{n}": batch(SEED, a, _of_lengths(n), f"length-{n}:") for n in _LENGTHS}
    ids = _unusual(a.max_position_embeddings, a.vocab_size)
    made["holes"] = batch(SEED, a, _holes(32), "holes:")
    made["odd-texts"] = batch(SEED, a, np.ones_like(ids), "odd-texts:", ids)
    return made


def _of_lengths(length: int) -> Ids:
    """Return a mask (B, S) with a row for each number of tokens from the next shorter batch's length + 1 to `length`.

    The rows are padded on the right and on the left in turn.
    """
    shorter = max((n for n in _LENGTHS if n < length), default=0)
    position = np.arange(length)
    rows = [position < n if n % 2 else position >= length - n for n in range(shorter + 1, length + 1)]
    return np.array(rows, np.int64)


def _holes(length: int) -> Ids:
    """Return a mask of eight rows whose tokens are masked with probability 1/2, 1/4, 1/8, …, except the first token of each row."""
    chance = 2 ** np.arange(1, 9)[:, None]
    mask = np.asarray(Stream(SEED, "holes").integers((8, length), 0, 256) % chance != 0, np.int64)
    mask[:, 0] = 1
    return mask


def _unusual(length: int, vocabulary: int) -> Ids:
    """Return ids of unusual texts: one id repeated, only special tokens, only [CLS] and [SEP], and ascending or descending ids."""
    position = np.arange(length)
    rising = position % vocabulary
    frame = np.where(position == 0, _CLS, np.where(position == length - 1, _SEP, _MASK))
    rows = [np.full(length, 7), np.full(length, _PAD), frame, np.where(position % 2, _SEP, _CLS), rising]
    return np.array([*rows, vocabulary - 1 - rising], np.int64)
