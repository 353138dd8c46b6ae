"""Mistakes in the inputs, by which a text gets the outputs of other tokens: texts cut too early, without a prefix, or reordered.

A system that batches texts by length must restore their order afterwards.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from conformance.diagnosis.black_box import BlackBoxSegment
from conformance.model.batch import Batch, Ids
from conformance.numerics.formats import Array, Mask

_READ = {"input_ids", "token_type_ids", "attention_mask"}  # arrays that a batch of plain texts may have
_COMPARED = ("input_ids", "token_type_ids", "attention_mask", "position_ids", "encoder_hidden_states", "encoder_attention_mask")
_LISTED = 12  # maximum number of rows in a sentence; no verdict depends on it
_SPECIAL = 2  # special tokens of every text: [CLS] before it, [SEP] after it


@dataclass(frozen=True)
class InputMistake:
    """A kind of mistake in the inputs.

    Attributes:
        name: name used in reports.
        sentence: description; `{value}` stands for the length, the prefix or the order.
        cause: usual cause.
        fix: what to change in the system.
        where: the place in words.
        looked_for: the outputs in which the mistake is looked for.
    """

    name: str
    sentence: str
    cause: str
    fix: str
    where: str = "in the inputs"
    looked_for: str = "in embeddings, one row per text, of texts that are padded at the end"


TRUNCATED = InputMistake(
    "text-truncated",
    "each text is cut to {value} tokens, [CLS] and [SEP] among them",
    "max_length of the tokenizer, or max_seq_length, below the model's",
    "Set the tokenizer's maximum length to the model's, and split texts that are longer.",
)
WITHOUT_PREFIX = InputMistake(
    "prefix-missing",
    "the prefix {value} of each text is left out",
    "a model as e5 or bge is trained on texts with a prefix (query: , passage: ), which the system does not add",
    "Add the prefix to each text before it is tokenized.",
)
REORDERED = InputMistake(
    "rows-reordered",
    "the rows are those of other texts: {value}",
    "texts are sorted by length to save padding, or run concurrently, and their order is not restored",
    "Return the outputs in the order of the texts; or, if the system does, give the texts to diagnose in the system's order.",
    "in the order of the rows",
    "in outputs with one row per text, of several texts",
)
MISTAKES = (TRUNCATED, WITHOUT_PREFIX, REORDERED)


@dataclass(frozen=True, eq=False)
class OtherInputs:
    """The tokens that the system reads because of a mistake, and the description with its length, prefix or order."""

    mistake: InputMistake
    sentence: str
    batch: Batch


def other_inputs(batch: Batch, words: Sequence[Sequence[str]] | None = None) -> Iterator[OtherInputs]:
    """Yield the inputs for each length that texts may be cut to, longest first, then for each shared prefix, shortest first.

    At least one token of each text remains. Nothing is yielded unless the batch consists of texts padded at their end.

    Args:
        batch: the correct inputs.
        words: the token of each id, used in descriptions; ids are used if None.
    """
    lengths, arrays = batch.mask.sum(1), batch.arrays()
    is_padded_at_the_end = np.array_equal(batch.mask, np.arange(batch.length) < lengths[:, None])
    if not is_padded_at_the_end or set(arrays) - _READ or any(array.ndim != 2 for array in arrays.values()):
        return
    for length in range(int(lengths.max()) - 1, _SPECIAL, -1):
        yield OtherInputs(TRUNCATED, TRUNCATED.sentence.format(value=length), _truncated(batch, length))
    read = words or [[str(i) for i in row] for row in batch.input_ids]
    for count in range(1, min(_shared(batch), int(lengths.min()) - _SPECIAL - 1) + 1):
        prefix = repr(" ".join(read[0][1 : 1 + count]))
        yield OtherInputs(WITHOUT_PREFIX, WITHOUT_PREFIX.sentence.format(value=prefix), _without(batch, count))


def _truncated(batch: Batch, length: int) -> Batch:
    """Return the first `length` tokens of each row; a longer row then ends with its own last token, [SEP]."""
    lengths, mask = batch.mask.sum(1), batch.mask & (np.arange(batch.length) < length)
    ids = batch.input_ids.copy()
    longer = lengths > length
    ids[longer, length - 1] = batch.input_ids[longer, lengths[longer] - 1]
    return replace(batch, input_ids=ids, attention_mask=mask.astype(np.int64))


def _shared(batch: Batch) -> int:
    """Return the number of tokens after [CLS] that all rows share."""
    differs = (batch.input_ids[:, 1:] != batch.input_ids[:1, 1:]).any(0)
    return int(np.append(differs, True).argmax())


def _without(batch: Batch, count: int) -> Batch:
    """Return each row without `count` tokens after its first."""
    return Batch(**{name: np.delete(array, np.s_[1 : 1 + count], 1) for name, array in batch.arrays().items()})


def other_order(right: BlackBoxSegment) -> tuple[Ids, OtherInputs] | None:
    """Return the text of each row of the outputs, (B,), and the batch in this order, if it is not the batch's; else None.

    It is the order with the smallest sum of the rows' distances from their texts (an assignment problem: Kuhn 1955), under the
    pooling, of those that a correct system may have, for which that sum is the smallest. A row whose text is equal to its
    own, or that has no numbers, is not said to be another.
    """
    from scipy.optimize import linear_sum_assignment  # slow to import and used only here

    batch = right.network.batch
    if batch.size == 1 or (right.network.reading.rows < 0).any():
        return None
    each = [_distances(right, index) for index in right.network.right_poolings]
    has_numbers: Mask = np.asarray(np.isfinite(each[0]).any(1))
    costs = [_finite(distances, has_numbers) for distances in each]
    orders = [linear_sum_assignment(cost) for cost in costs]
    best = min(range(len(each)), key=lambda i: float(costs[i][orders[i]].sum()))
    texts, numbers = np.asarray(orders[best][1], np.int64), _numbers_of_equal_texts(batch)
    moved = np.flatnonzero(np.asarray(has_numbers & (numbers[texts] != numbers)))
    if not len(moved):
        return None
    clauses = [f"row {row} {'of the outputs is ' if row == moved[0] else ''}that of text {texts[row]}" for row in moved]
    more = [f"{len(clauses) - _LISTED} more"] if len(clauses) > _LISTED else []
    sentence = REORDERED.sentence.format(value=", ".join([*clauses[:_LISTED], *more]))
    return texts, OtherInputs(REORDERED, sentence, batch.cut(texts))


def _finite(distances: Array, has_numbers: Mask) -> Array:
    """Return the distances; where there is none, more than those of all rows together, and 0 for a row without numbers."""
    none = len(distances) * distances[np.isfinite(distances)].max()
    return np.where(np.isfinite(distances), distances, np.where(has_numbers[:, None], none, 0.0))


def _distances(right: BlackBoxSegment, pooling_index: int) -> Array:
    """Return the mean squared difference of each row of the outputs from each text's, (B, B); infinite if they share none."""
    size = right.network.batch.size
    squares, counts = np.zeros((size, size)), np.zeros((size, size))
    for name, numbers in right.network.outputs.items():
        expected = right.values[right.network.parent_of(name, pooling_index)]
        is_judged = right.network.judged(name, expected.shape).reshape(size, -1).astype(np.float64).T
        actual, wanted = numbers.values.reshape(size, -1), expected.reshape(size, -1).T
        is_printed = (~np.isnan(actual)).astype(np.float64)
        actual = np.nan_to_num(actual)
        squares += actual**2 @ is_judged - 2.0 * actual @ (is_judged * wanted) + is_printed @ (is_judged * wanted**2)
        counts += is_printed @ is_judged
    return np.where(counts > 0.0, squares / np.maximum(counts, 1.0), np.inf)


def _numbers_of_equal_texts(batch: Batch) -> Ids:
    """Return a number for each text, (B,), which texts share if they are equal."""
    arrays = batch.arrays()
    rows = np.concatenate([arrays[name].reshape(batch.size, -1) for name in _COMPARED if name in arrays], 1)
    return np.unique(rows, axis=0, return_inverse=True)[1].reshape(-1)
