"""Fitted faults of the embeddings: the ids, positions or token types that a candidate looked up, read off its array."""

import numpy as np

from conformance.faults.changes import Altered
from conformance.faults.fault import with_batch
from conformance.faults.fitted.fitted_fault import LEAST_ROWS, TINY, Fit, FitData, Fitted
from conformance.faults.fitted.lookup_words import first_to_last, read_instead
from conformance.faults.hints import hint
from conformance.model.batch import Ids
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array, as_array
from conformance.oracle import Step
from conformance.oracle.embeddings import positions

LEARNED = frozenset({"position_lookup"})


def _other_words(step: Step, data: FitData) -> Fit | None:
    """Return the look-up of other ids: those whose rows of the table equal the candidate's rows bit for bit."""
    table, ids = np.asarray(step.site.parameters["weight"]), step.site.batch.input_ids
    known = {row.tobytes(): index for index, row in reversed(list(enumerate(table)))}
    other = np.array([known.get(row.tobytes(), -1) for row in np.asarray(data.actual, table.dtype).reshape(-1, table.shape[1])])
    other = np.where(data.judged.any(-1), other.reshape(ids.shape), ids)
    other = np.where((data.actual == step.value).all(-1), ids, other)  # Other ids may have the same row.
    if (other < 0).any():
        return None
    faulty = Altered(step, lambda inner: inner.site.parameters["weight"][other])
    return Fit(faulty, int((other != ids).sum()), *read_instead(other, ids, as_array(data.judged.any(-1))))


def _added_words(step: Step, data: FitData) -> Fit | None:
    """Return the look-up with another row of the table added to each token's own: for each id, the row nearest to the rest.

    Where nothing is added to some ids, that may be a row of zeros; it is evidence only if another row is added to several ids.
    """
    table, ids = step.site.parameters["weight"], step.site.batch.input_ids
    kept = data.judged.any(-1)
    found, first, which = np.unique(ids[kept], return_index=True, return_inverse=True)
    left = data.actual[kept][first] - table[found]
    if not np.isfinite(left).all():
        return None
    squares = (table**2).sum(-1)
    other = np.array([int((squares - 2.0 * table @ row).argmin()) for row in left])
    added = (table[other] != 0.0).any(-1)
    if not added.all() and len(np.unique(other[added])) == int(added.sum()):
        return None
    value = np.array(step.value)
    value[kept] += table[other[which.reshape(-1)]]

    def slack(altered: Altered, arithmetic: Arithmetic) -> Array:
        return arithmetic.storage.rounding_variance(altered.value)

    return Fit(Altered(step, lambda _: value, slack), len(found))


def _zero_words(step: Step, data: FitData) -> Fit | None:
    """Return the look-up with zeros at the ids whose embeddings are zero in the candidate; None if some of their tokens are not."""
    ids, judged = step.site.batch.input_ids, as_array(data.judged.any(-1))
    is_zero = ~(data.actual != 0.0).any(-1)
    zero = np.unique(ids[judged & is_zero & (step.value != 0.0).any(-1)])
    chosen = np.isin(ids, zero)
    if not len(zero) or not is_zero[judged & chosen].all() or chosen[judged].all():
        return None
    without = Altered(step, lambda inner: np.where(chosen[..., None], 0.0, inner.value))
    return Fit(without, len(zero), *first_to_last(zero, "id", " of the batch"))


def _nearest(step: Step, data: FitData, otherwise: Ids) -> Ids:
    """Return the index of the row of the table nearest to each token's embedding, (B, S); `otherwise` where it is not judged."""
    least, found = np.full(data.actual.shape[:-1], np.inf), np.zeros(data.actual.shape[:-1], np.int64)
    for index, row in enumerate(step.site.parameters["weight"]):
        distance = np.abs(data.actual - row).max(-1)
        found[distance < least] = index
        np.minimum(least, distance, out=least)
    return np.where(data.judged.any(-1), found, otherwise)


def _clipped_positions(step: Step, data: FitData) -> Fit | None:
    """Return the look-up with positions clipped to the largest position that the candidate reads."""
    right = np.broadcast_to(positions(step), data.actual.shape[:-1])
    largest = int(np.where(data.judged.any(-1), _nearest(step, data, right), 0).max())
    return Fit(_at(step, np.minimum(right, largest)), 1, "position", largest) if largest < right.max() else None


def _in_chunks(step: Step, data: FitData) -> Fit | None:
    """Return the look-up with positions that begin anew after the largest position that the candidate reads."""
    right = np.broadcast_to(positions(step), data.actual.shape[:-1])
    first, judged = step.site.architecture.position_offset, data.judged.any(-1)
    size = int(np.where(judged, _nearest(step, data, right) - first, 0).max()) + 1
    if not 1 < size <= (right - first).max():
        return None
    return Fit(_at(step, first + (right - first) % size), 1, "positions", size)


def _offset_positions(step: Step, data: FitData) -> Fit | None:
    """Return the look-up with the same number added to all positions; None if it differs from token to token, or is 0."""
    right = np.broadcast_to(positions(step), data.actual.shape[:-1])
    judged = as_array(data.judged.any(-1))
    moved = np.unique((_nearest(step, data, right) - right)[judged])
    if len(moved) != 1 or not moved[0]:
        return None
    return Fit(_at(step, np.where(judged, right + moved[0], right)), 1, "positions", float(moved[0]))


def _other_positions(step: Step, data: FitData) -> Fit | None:
    """Return the look-up with, as the position of each token, the row of the table nearest to the token's embedding."""
    right = np.broadcast_to(positions(step), data.actual.shape[:-1])
    other = _nearest(step, data, right)
    wrong = len(np.unique(np.stack([right, other], -1)[other != right], axis=0))  # All rows of the batch have the same positions.
    return Fit(_at(step, other), wrong, *read_instead(other, right, as_array(data.judged.any(-1))))


def _places(table: Array, found: Array) -> Array:
    """Return, for each of N rows, the place k + t of the nearest point (1 − t) w_k + t w_(k+1), 0 ≤ t ≤ 1, of the table w: (N,)."""
    low_rows, along = table[:-1], table[1:] - table[:-1]
    squared = np.maximum((along**2).sum(-1), TINY)
    projected = found @ along.T - (low_rows * along).sum(-1)
    part = np.clip(projected / squared, 0.0, 1.0)
    distance = (low_rows**2).sum(-1) - 2.0 * found @ low_rows.T - part * (2.0 * projected - part * squared)  # minus |found|²
    low = distance.argmin(1)
    exact = ((found - table[low]) * along[low]).sum(-1) / squared[low]  # without the cancellation of `projected`
    return as_array(low + np.clip(exact, 0.0, 1.0))


def _scaled_positions(step: Step, data: FitData) -> Fit | None:
    """Return the look-up at positions a + c s, between whose neighbouring rows of the table the embedding is interpolated.

    The factor c and the offset a are fitted to the places in the table that are nearest to the tokens' embeddings. None is returned
    if all tokens have rows of the table: these are other positions, which no interpolation shows.
    """
    table = step.site.parameters["weight"]
    right = np.broadcast_to(positions(step), data.actual.shape[:-1])
    kept = data.judged.any(-1)
    if len(table) < LEAST_ROWS or not data.is_finite:
        return None
    if (data.actual == table[_nearest(step, data, right)])[data.judged].all():
        return None
    counted, found = right[kept].astype(np.float64), _places(table, data.actual[kept])
    inside = (found > 0.0) & (found < len(table) - 1)
    if len(np.unique(counted[inside])) < LEAST_ROWS:
        return None
    factor, offset = np.polyfit(counted[inside], found[inside], 1)
    at = np.clip(factor * right + offset, 0.0, len(table) - 1)
    low = np.minimum(at.astype(np.int64), len(table) - 2)
    part = (at - low)[..., None]
    value = table[low] + part * (table[low + 1] - table[low])

    def slack(_: Altered, arithmetic: Arithmetic) -> Array:
        return as_array(4.0 * arithmetic.storage.rounding_variance(np.maximum(np.abs(table[low]), np.abs(table[low + 1]))))

    return Fit(Altered(step, lambda _: value, slack), 2, "factor", float(factor))


def _at(step: Step, rows: Ids) -> Step:
    """Return the look-up of other rows, (B, S), of the table."""
    return Altered(step, lambda inner: inner.site.parameters["weight"][rows])


def _other_types(step: Step, data: FitData) -> Fit | None:
    """Return the look-up with, as the type of each token, the row of the table nearest to the token's embedding."""
    types = step.site.batch.types
    other = _nearest(step, data, types)
    faulty = with_batch(step, token_type_ids=other.astype(np.int64))
    return Fit(faulty, int((other != types).sum()), *read_instead(other, types, as_array(data.judged.any(-1))))


FITTED_WORDS = (
    Fitted("words-zeroed", frozenset({"word_lookup"}), "the word embeddings of some ids are zero", "constructed", _zero_words,
           "shards of the vocabulary whose embeddings are not added up, or rows of the table that are not loaded",
           equation="y = 0 for some ids",
           fix="Add up the embeddings of all shards, and load every row of the table.", estimates="zero"),
    Fitted("words-other", frozenset({"word_lookup"}), "the equation holds with other token ids than the batch's", "constructed",
           _other_words, "another vocabulary, or ids that are changed before they are looked up",
           fix="Look up input_ids as they are given, and use the checkpoint's own vocabulary.", estimates="the ids",
           is_description=True),
    Fitted("words-added", frozenset({"word_lookup"}), "the embedding of another id is added to each token's own", "constructed",
           _added_words, "shards of the vocabulary, each of which also looks up the ids of the other shards, and a sum over them",
           equation="y = E_i + E_j", fix="Set each shard's result to zero for ids that belong to another shard, before the sum.",
           estimates="the added ids"),
)  # fmt: skip

FITTED_TYPES_AND_POSITIONS = (
    Fitted("token-types-other", frozenset({"token_type_lookup"}), "the equation holds with other token types than the batch's",
           "constructed", _other_types, "the token types of the example that was traced, baked into the graph",
           fix=hint("token-types-*").repair, estimates="the token types", is_description=True),
    Fitted("positions-clipped", LEARNED, "positions beyond {value} are taken as {value}", "constructed",
           _clipped_positions, "a table, or an export, that was made for shorter text",
           fix=hint("positions-*").repair),
    Fitted("positions-wrapped", LEARNED, "positions begin anew after every {value}", "constructed",
           _in_chunks, "a prefill in chunks, or an index within a tile without the tile's offset",
           equation="position s mod n", fix=hint("positions-*").repair),
    Fitted("positions-offset", LEARNED, "the number {value} is added to all positions", "constructed", _offset_positions,
           "positions that begin after tokens of another call, or after a prompt that is not there",
           equation="row s + n of the table", fix=hint("positions-*").repair),
    Fitted("positions-other", LEARNED, "the equation holds with other positions than the batch's", "constructed",
           _other_positions, "position ids computed from other data",
           fix=hint("positions-*").repair, estimates="the positions", is_description=True),
    Fitted("positions-scaled", LEARNED, "positions are multiplied by {value}, and rows of the table are interpolated",
           "constructed", _scaled_positions, "a table interpolated for longer text",
           equation="row a + c s, between two rows of the table", fix=hint("positions-*").repair),
)  # fmt: skip
