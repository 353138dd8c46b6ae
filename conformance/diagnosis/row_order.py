"""Outputs whose rows are those of other texts: a system that batches texts by length must restore their order afterwards."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from conformance.diagnosis.black_box import EMBEDDING, BlackBox, Output
from conformance.diagnosis.black_box_segment import BlackBoxSegment
from conformance.diagnosis.input_mistakes import REORDERED, OtherInputs
from conformance.model.batch import Batch, Ids
from conformance.numerics.formats import Array, Mask

_READ = ("input_ids", "token_type_ids", "attention_mask", "position_ids", "encoder_hidden_states", "encoder_attention_mask")
_LISTED = 12  # maximum number of rows in a sentence; no verdict depends on it


@dataclass(frozen=True, eq=False)
class RowOrder:
    """An order of the rows.

    Attributes:
        texts: (B,) the text of each row of the outputs.
        moved: the rows of another text than their own; rows without numbers are left out.
    """

    texts: Ids
    moved: tuple[int, ...]

    def restored(self, outputs: Iterable[Output]) -> tuple[Output, ...]:
        """Return the outputs with each row at the place of its text."""
        rows = np.argsort(self.texts)
        return tuple(Output(o.name, replace(o.known, values=o.known.values[rows], units=o.known.units[rows])) for o in outputs)

    def inputs(self, batch: Batch) -> OtherInputs:
        """Return the batch in this order, with the order in words."""
        first, *others = self.moved
        clauses = [f"row {first} of the outputs is that of text {self.texts[first]}"]
        clauses += [f"row {row} that of text {self.texts[row]}" for row in others]
        more = [f"{len(clauses) - _LISTED} more"] if len(clauses) > _LISTED else []
        return OtherInputs(
            REORDERED, REORDERED.sentence.format(value=", ".join([*clauses[:_LISTED], *more])), batch.cut(self.texts)
        )


def other_order(right: BlackBoxSegment, pooling_indices: Iterable[int]) -> RowOrder | None:
    """Return the order in which each row of the outputs is nearest to its text; None if it is the batch's, or there is none.

    A row that is nearest to a text equal to its own keeps its place.

    Args:
        right: the correct network.
        pooling_indices: indices of the poolings, of which that with the smallest distances counts.
    """
    batch = right.network.batch
    if batch.size == 1 or (right.network.reading.rows < 0).any():
        return None
    each = [_distances(right, pooling_index) for pooling_index in pooling_indices]
    has_numbers = np.asarray(np.isfinite(each[0]).any(1))
    distances = min(each, key=lambda d: float(d[has_numbers].min(1).sum()))
    texts = _assigned(_first_equal(batch)[distances.argmin(1)], _first_equal(batch), has_numbers)
    if texts is None:
        return None
    moved = np.flatnonzero(has_numbers & (texts != np.arange(batch.size)))
    return RowOrder(texts, tuple(map(int, moved))) if len(moved) else None


def _distances(right: BlackBoxSegment, pooling_index: int) -> Array:
    """Return the mean square difference of each row of the outputs from each text's, (B, B); infinite if they share no number."""
    size = right.network.batch.size
    squares, counts = np.zeros((size, size)), np.zeros((size, size))
    for output in right.network.outputs:
        expected = right.values[_activation(right.network, output, pooling_index)]
        is_judged = right.network.judged(output.name, expected.shape).reshape(size, -1).astype(np.float64).T
        actual, wanted = output.known.values.reshape(size, -1), expected.reshape(size, -1).T
        is_known = (~np.isnan(actual)).astype(np.float64)
        actual = np.nan_to_num(actual)
        squares += actual**2 @ is_judged - 2.0 * actual @ (is_judged * wanted) + is_known @ (is_judged * wanted**2)
        counts += is_known @ is_judged
    return np.where(counts > 0.0, squares / np.maximum(counts, 1.0), np.inf)


def _activation(network: BlackBox, output: Output, pooling_index: int) -> str:
    return network.embedding_of(network.poolings[pooling_index]) if output.name == EMBEDDING else output.name


def _first_equal(batch: Batch) -> Ids:
    """Return the number of the first text that is equal to each text, (B,)."""
    arrays = batch.arrays()
    rows = np.concatenate([arrays[name].reshape(batch.size, -1) for name in _READ if name in arrays], 1)
    _, first, number = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    return np.asarray(first[number.reshape(-1)], np.int64)


def _assigned(nearest: Ids, first_equal: Ids, has_numbers: Mask) -> Ids | None:
    """Return a different text for each row, equal to the nearest one, or None if there is no such order."""
    texts = np.where(has_numbers & (nearest == first_equal), np.arange(len(nearest)), -1)
    free = sorted(set(range(len(nearest))) - set(texts.tolist()))
    for row in np.flatnonzero(has_numbers & (texts < 0)):
        text = next((t for t in free if first_equal[t] == nearest[row]), None)
        if text is None:
            return None
        texts[row] = text
        free.remove(text)
    texts[texts < 0] = free
    return texts
