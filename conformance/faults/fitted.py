"""Fitted faults: parameters, positions, token types or ids other than the correct ones, read off the candidate's array.

Such fits can explain many errors, so they are tried last, and a fit counts only if the number of rows exceeds that of the numbers
fitted to them.
"""

import numpy as np

from conformance.faults.altered import Altered
from conformance.faults.approximated import APPROXIMATED
from conformance.faults.embeddings import POSITIONS_FIX, TYPES_FIX
from conformance.faults.fault import with_batch, with_parameters
from conformance.faults.fit import Fit, FitData, Fitted
from conformance.faults.fitted_attention import FITTED_ATTENTION
from conformance.faults.fitted_dropout import FITTED_DROPOUT
from conformance.faults.fitted_functions import FITTED_FUNCTIONS, UNNORMALISED
from conformance.faults.fitted_products import FITTED_PRODUCTS
from conformance.faults.projections import LINEARS
from conformance.faults.quantized import DYNAMIC
from conformance.faults.wrong_rows import wrong_outputs, wrong_table_rows
from conformance.model.batch import Ids
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array
from conformance.oracle import Step
from conformance.oracle.embeddings import positions
from conformance.oracle.linear import Linear

LEARNED = frozenset({"position_lookup"})
MANY = 3  # The least number of different rows from which one number per feature can be estimated.
MOST_ROWS, MOST_FEATURES = 64, 4096  # Limits of the search for another order of features, which then takes at most a second.


def _linear(step: Step, seen: FitData) -> Fit | None:
    """Return the linear layer with weight and bias by least squares; None unless there are more different rows than columns."""
    assert isinstance(step, Linear)
    rows = seen.judged.any(-1).reshape(-1)
    inputs = step.inputs.reshape(-1, step.inputs.shape[-1])[rows]
    columns = np.concatenate([inputs, np.ones((len(inputs), 1))], 1)
    if len(np.unique(inputs, axis=0)) <= columns.shape[1] or np.linalg.matrix_rank(columns) < columns.shape[1]:
        return None
    solution = np.linalg.lstsq(columns, seen.actual.reshape(-1, seen.actual.shape[-1])[rows], rcond=None)[0]
    return Fit(with_parameters(step, weight=solution[:-1].T, bias=solution[-1]), solution.size, *wrong_outputs(step, seen))


def _other_bias(step: Step, seen: FitData) -> Fit | None:
    """Return the linear layer with another bias, which is corrected by the mean of the residual over the rows.

    None is returned unless the median of the corrections exceeds the noise of a single element: a weight rounded to fewer digits
    changes the means, too, but only slightly.
    """
    rows = seen.judged.any(-1)
    if "bias" not in step.site.parameters or len(np.unique(seen.actual[rows], axis=0)) < MANY:
        return None
    moved = (seen.actual - step.value)[rows].mean(0)
    if np.median(np.abs(moved)) <= seen.threshold * np.median(seen.allowed[rows]):
        return None
    return Fit(with_parameters(step, bias=step.site.parameters["bias"] + moved), moved.size, *wrong_outputs(step, seen))


def _other_order(step: Step, seen: FitData) -> Fit | None:
    """Return the linear layer with, for each output feature, the row of weight and bias whose result is nearest."""
    assert isinstance(step, Linear)
    rows, features = seen.judged.any(-1).reshape(-1), step.value.shape[-1]
    right, found = (a.reshape(-1, features)[rows][:MOST_ROWS] for a in (step.value, seen.actual))
    if features > MOST_FEATURES or len(right) < MANY:
        return None
    order = ((right**2).sum(0) - 2.0 * found.T @ right).argmin(1)
    moved = order != np.arange(features)
    if not moved.any():
        return None
    return Fit(with_parameters(step, **{name: value[order] for name, value in step.site.parameters.items()}), int(moved.sum()))


def _zero_tokens(step: Step, seen: FitData) -> Fit | None:
    """Return the step with zeros at the tokens for which the candidate's judged elements are all zero."""
    zero = seen.judged.any(-1) & ~(seen.judged & (seen.actual != 0.0)).any(-1) & (step.value != 0.0).any(-1)
    if not zero.any() or (zero == seen.judged.any(-1)).all() or "position" not in step.site.activation.axes:
        return None
    first = int(zero.any(0).argmax())
    return Fit(Altered(step, lambda inner: np.where(zero[..., None], 0.0, inner.value)), int(zero.sum()), "position", first)


def _affine(step: Step, seen: FitData) -> Fit | None:
    """Return the norm with gamma and beta fitted for each feature to the normalized input."""
    gamma, beta = step.site.parameters["weight"], step.site.parameters["bias"]
    rows = seen.judged.any(-1)
    normal = ((step.value - beta) / np.where(gamma == 0.0, 1.0, gamma))[rows]
    target = seen.actual[rows]
    if len(np.unique(target, axis=0)) <= 2 or (gamma == 0.0).any():
        return None
    centred = normal - normal.mean(0)
    slope = (centred * target).sum(0) / np.maximum((centred**2).sum(0), np.finfo(np.float64).tiny)
    fitted = with_parameters(step, weight=slope, bias=target.mean(0) - slope * normal.mean(0))
    return Fit(fitted, 2 * gamma.size, *wrong_outputs(step, seen))


def _statistics(step: Step, seen: FitData) -> Fit | None:
    """Return the norm with a mean and a standard deviation fitted for each token to the normalized input."""
    gamma, beta = step.site.parameters["weight"], step.site.parameters["bias"]
    if (gamma == 0.0).any() or step.value.shape[-1] <= 2 * MANY:
        return None
    normal, target = (step.value - beta) / gamma, (seen.actual - beta) / gamma
    centred = normal - normal.mean(-1, keepdims=True)
    slope = (centred * target).sum(-1, keepdims=True) / np.maximum((centred**2).sum(-1, keepdims=True), np.finfo(np.float64).tiny)
    value = gamma * (target.mean(-1, keepdims=True) + slope * centred) + beta
    off = np.where(seen.judged.any(-1, keepdims=True), np.abs(slope - 1.0), 0.0)
    noise = float(seen.threshold * np.median((seen.allowed / np.abs(gamma))[seen.judged]) / gamma.size**0.5)

    def slack(altered: Altered, arithmetic: Arithmetic) -> Array:
        return np.asarray(np.maximum(slope**2 - 1.0, 0.0) * altered.inner.roundings(arithmetic).variance())

    faulty = Altered(step, lambda _: np.where(seen.judged, value, step.value), slack)
    return Fit(faulty, 2 * int(off.size), "error", float(off.max()), noise)


def _table(step: Step, seen: FitData) -> Fit | None:
    """Return the look-up with a fitted row for each row of the table that is read; None unless some row is read twice."""
    width = step.value.shape[-1]
    rows = seen.judged.any(-1).reshape(-1)
    read, found = (x.reshape(-1, width)[rows] for x in (step.value, seen.actual))
    _, first, which = np.unique(read, axis=0, return_index=True, return_inverse=True)
    if len(first) == len(read):
        return None
    value = np.array(seen.actual, np.float64).reshape(-1, width)
    value[rows] = found[first][which.reshape(-1)]
    named = wrong_table_rows(step, seen, _rows_read(step))
    return Fit(Altered(step, lambda inner: value.reshape(inner.value.shape)), first.size * width, *named)


def _rows_read(step: Step) -> Ids:
    """Return the index of the row that each token reads of a table, (B, S) or (S,)."""
    if step.site.activation.kind == "position_lookup":
        return positions(step)
    return step.site.batch.input_ids if step.site.activation.kind == "word_lookup" else step.site.batch.types


def _other_words(step: Step, seen: FitData) -> Fit | None:
    """Return the look-up of other ids: those whose rows of the table equal the candidate's rows bit for bit."""
    table, ids = step.site.parameters["weight"], step.site.batch.input_ids
    known = {row.tobytes(): index for index, row in reversed(list(enumerate(table)))}
    other = np.array([known.get(row.tobytes(), -1) for row in np.asarray(seen.actual, table.dtype).reshape(-1, table.shape[1])])
    other = np.where(seen.judged.any(-1), other.reshape(ids.shape), ids)
    if (other < 0).any():
        return None
    return Fit(Altered(step, lambda inner: inner.site.parameters["weight"][other]), int((other != ids).sum()))


def _added_words(step: Step, seen: FitData) -> Fit | None:
    """Return the look-up with another row of the table added to each token's own: for each id, the row nearest to the rest."""
    table, ids = step.site.parameters["weight"], step.site.batch.input_ids
    kept = seen.judged.any(-1)
    found, first, which = np.unique(ids[kept], return_index=True, return_inverse=True)
    left = seen.actual[kept][first] - table[found]
    if not np.isfinite(left).all():
        return None
    squares = (table**2).sum(-1)
    other = np.array([int((squares - 2.0 * table @ row).argmin()) for row in left])
    value = np.array(step.value)
    value[kept] += table[other[which.reshape(-1)]]

    def slack(altered: Altered, arithmetic: Arithmetic) -> Array:
        return arithmetic.storage.rounding_variance(altered.value)

    return Fit(Altered(step, lambda _: value, slack), len(np.unique(other)))


def _nearest(step: Step, seen: FitData, otherwise: Ids) -> Ids:
    """Return the index of the row of the table nearest to each token's embedding, (B, S); `otherwise` where it is not judged."""
    least, found = np.full(seen.actual.shape[:-1], np.inf), np.zeros(seen.actual.shape[:-1], np.int64)
    for index, row in enumerate(step.site.parameters["weight"]):
        distance = np.abs(seen.actual - row).max(-1)
        found[distance < least] = index
        np.minimum(least, distance, out=least)
    return np.where(seen.judged.any(-1), found, otherwise)


def _clipped_positions(step: Step, seen: FitData) -> Fit | None:
    """Return the look-up with positions clipped to the largest position that the candidate reads."""
    right = np.broadcast_to(positions(step), seen.actual.shape[:-1])
    largest = int(np.where(seen.judged.any(-1), _nearest(step, seen, right), 0).max())
    return Fit(_at(step, np.minimum(right, largest)), 1, "position", largest) if largest < right.max() else None


def _other_positions(step: Step, seen: FitData) -> Fit | None:
    """Return the look-up with, as the position of each token, the row of the table nearest to the token's embedding."""
    right = np.broadcast_to(positions(step), seen.actual.shape[:-1])
    other = _nearest(step, seen, right)
    return Fit(_at(step, other), int((other != right).sum()))


def _places(table: Array, found: Array) -> Array:
    """Return, for each of N rows, the place k + t of the nearest point (1 − t) w_k + t w_(k+1), 0 ≤ t ≤ 1, of the table w: (N,)."""
    low_rows, along = table[:-1], table[1:] - table[:-1]
    squared = np.maximum((along**2).sum(-1), np.finfo(np.float64).tiny)
    projected = found @ along.T - (low_rows * along).sum(-1)
    part = np.clip(projected / squared, 0.0, 1.0)
    distance = (low_rows**2).sum(-1) - 2.0 * found @ low_rows.T - part * (2.0 * projected - part * squared)  # minus |found|²
    low = distance.argmin(1)
    exact = ((found - table[low]) * along[low]).sum(-1) / squared[low]  # without the cancellation of `projected`
    return np.asarray(low + np.clip(exact, 0.0, 1.0))


def _scaled_positions(step: Step, seen: FitData) -> Fit | None:
    """Return the look-up at positions a + c s, between whose neighbouring rows of the table the embedding is interpolated.

    The factor c and the offset a are fitted to the places in the table that are nearest to the tokens' embeddings.
    """
    table = step.site.parameters["weight"]
    right = np.broadcast_to(positions(step), seen.actual.shape[:-1])
    kept = seen.judged.any(-1)
    if len(table) < MANY or not np.isfinite(seen.actual[seen.judged]).all():
        return None
    counted, found = right[kept].astype(np.float64), _places(table, seen.actual[kept])
    inside = (found > 0.0) & (found < len(table) - 1)
    if len(np.unique(counted[inside])) < MANY:
        return None
    factor, offset = np.polyfit(counted[inside], found[inside], 1)
    at = np.clip(factor * right + offset, 0.0, len(table) - 1)
    low = np.minimum(at.astype(np.int64), len(table) - 2)
    part = (at - low)[..., None]
    value = table[low] + part * (table[low + 1] - table[low])

    def slack(_: Altered, arithmetic: Arithmetic) -> Array:
        return np.asarray(4.0 * arithmetic.storage.rounding_variance(np.maximum(np.abs(table[low]), np.abs(table[low + 1]))))

    return Fit(Altered(step, lambda _: value, slack), 2, "factor", float(factor))


def _at(step: Step, rows: Ids) -> Step:
    return Altered(step, lambda inner: inner.site.parameters["weight"][rows])


def _other_types(step: Step, seen: FitData) -> Fit | None:
    """Return the look-up with, as the type of each token, the row of the table nearest to the token's embedding."""
    other = _nearest(step, seen, step.site.batch.types)
    return Fit(with_batch(step, token_type_ids=other.astype(np.int64)), int((other != step.site.batch.types).sum()))


OTHER = "the equation is right, but the parameters are not the checkpoint's"
_WHERE = "where they differ"

FITTED = (
    Fitted("words-other", frozenset({"word_lookup"}), "the word embeddings are those of other ids", "constructed",
           _other_words, "another vocabulary, or ids that are changed before they are looked up",
           fix="Look up input_ids as they are given, and use the checkpoint's own vocabulary.", estimates="the ids"),
    Fitted("words-added", frozenset({"word_lookup"}), "the embedding of another id is added to each token's own", "constructed",
           _added_words, "shards of the vocabulary, each of which also looks up the ids of the other shards, and a sum over them",
           equation="y = E_i + E_j", fix="Set each shard's result to zero for ids that belong to another shard, before the sum.",
           estimates="the added ids"),
    Fitted("tokens-zero", frozenset({"linear", "context", "norm"}),
           "it is zero at some tokens, the first of them at position {value}", "constructed", _zero_tokens,
           "a chunk, or the last partial chunk, that was never computed",
           fix="Compute every token, including those of a last partial chunk."),
    *FITTED_ATTENTION,
    *FITTED_DROPOUT,
    Fitted("token-types-other", frozenset({"token_type_lookup"}), "the token types are not the batch's", "constructed",
           _other_types, "the token types of the example that was traced, baked into the graph",
           fix=TYPES_FIX, estimates="the token types"),
    Fitted("positions-clipped", LEARNED, "positions beyond {value} are taken as {value}", "constructed",
           _clipped_positions, "a table, or an export, that was made for shorter text",
           fix=POSITIONS_FIX),
    Fitted("positions-other", LEARNED, "the positions are not the batch's", "constructed",
           _other_positions, "position ids computed from other data",
           fix=POSITIONS_FIX, estimates="the positions"),
    Fitted("positions-scaled", LEARNED, "positions are multiplied by {value}, and rows of the table are interpolated",
           "constructed", _scaled_positions, "a table interpolated for longer text",
           equation="row a + c s, between two rows of the table", fix=POSITIONS_FIX),
    *FITTED_PRODUCTS,
    Fitted("bias-other", LINEARS, "the bias is not the checkpoint's", "constructed",
           _other_bias, "another layer's bias, one part's bias for all parts of a fused product, or a bias not loaded",
           fix="Load each bias from the checkpoint, and fail on missing and unexpected names.", estimates=_WHERE),
    Fitted("features-reordered", LINEARS, "the features are in another order, or some are repeated", "constructed",
           _other_order, "rows of the weight in another layout",
           fix="Keep the order of the weight's rows.", estimates="the order of the features"),
    Fitted("parameters-other", LINEARS, OTHER, "constructed",
           _linear, "a decoder that is not tied to the word embeddings", only=("cls.predictions.decoder",),
           fix="Let the decoder use the weight of the word embeddings.", estimates=_WHERE),
    Fitted("parameters-other", LINEARS, OTHER, "constructed",
           _linear, "parameters that were not loaded, or trained further",
           fix="Load every parameter from the checkpoint, and fail on missing and unexpected names.", estimates=_WHERE),
    Fitted("norm-statistics-other", frozenset({"norm"}), "tokens are normalised by a wrong mean or deviation: the deviation is off "
           "by up to {value}", "constructed", _statistics, "a fast inverse root; statistics of something other than the token",
           largest=True, loose=True,
           equation="y = γ · (x − μ′) / σ′ + β", fix="Normalise each token by its own mean and deviation, with an accurate root."),
    Fitted("parameters-other", frozenset({"norm"}), OTHER, "constructed",
           _affine, "parameters that were not loaded, or trained further",
           fix="Load every parameter from the checkpoint, and fail on missing and unexpected names.", estimates=_WHERE),
    Fitted("parameters-other", frozenset({"word_lookup", "position_lookup", "token_type_lookup"}),
           OTHER, "constructed", _table, "parameters that were not loaded, or trained further",
           fix="Load every parameter from the checkpoint, and fail on missing and unexpected names.", estimates=_WHERE),
    DYNAMIC,
    *FITTED_FUNCTIONS,
    *APPROXIMATED,
    UNNORMALISED,
)  # fmt: skip
