"""Generated batches: ids, token types and labels from Philox integers, and masks written as strings."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from conformance.model.architecture import MULTI_LABEL, SINGLE_LABEL, Architecture
from conformance.model.batch import IGNORED_LABEL, Batch, Ids
from conformance.numerics.formats import FORMATS, Array


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
