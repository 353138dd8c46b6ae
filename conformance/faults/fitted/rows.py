"""Fitted faults of places: the right results, in the place of another row of the batch, another token or another feature."""

import numpy as np

from conformance.faults.changes import Altered, Rearranged
from conformance.faults.fault import FUNCTIONS, LINEARS
from conformance.faults.fitted.differences import MOST_FEATURES, read_instead
from conformance.faults.fitted.fitted_fault import LEAST_ROWS, MOST_ROWS, Fit, FitData, Fitted, nearest_slices
from conformance.oracle import Step

_BY_ROW = LINEARS | FUNCTIONS | {"context", "norm", "tanh"}
_LOOKUPS = frozenset({"word_lookup", "position_lookup"})  # Types are so few that those of rows are often equal by chance.
MOST_TOKENS = 2**12  # A limit of the time: each wrong token is compared with all tokens.


def _rows(step: Step, data: FitData) -> Fit | None:
    """Return the step with, in each row of the batch, the result of the row that is nearest on the judged elements.

    A row is its own nearest unless another is nearer.
    """
    if step.site.activation.axes[:1] != ("batch",) or len(data.actual) < 2:
        return None
    own = np.arange(len(data.actual))
    order = own.copy()
    for row, (actual, judged, allowed) in enumerate(zip(data.actual, data.judged, data.allowed, strict=True)):
        if judged.any():
            left = [float((((actual - other) / allowed)[judged] ** 2).sum()) for other in step.value]
            order[row] = row if left[row] <= min(left) else int(np.argmin(left))
    moved = int((order != own).sum())
    return Fit(Rearranged(step, lambda x: x[order]), moved, *read_instead(order, own, own >= 0)) if moved else None


def _tokens(step: Step, data: FitData) -> Fit | None:
    """Return the step with, at each token whose result is wrong, that of the nearest token of the batch.

    A token is compared by all its features, so it needs `LEAST_ROWS` of them for one fitted index. Tokens are counted through the
    rows of the batch.
    """
    judged, width = data.judged.any(-1), step.value.shape[-1]
    if step.site.activation.axes[:2] != ("batch", "position") or judged.size > MOST_TOKENS or width < LEAST_ROWS:
        return None
    wrong = judged & (np.abs(data.actual - step.value) > data.largest * data.allowed).any(-1, where=data.judged)
    if not wrong.any() or not np.isfinite(data.actual[wrong]).all():
        return None
    own = np.arange(judged.size)
    order = own.copy()
    order[wrong.reshape(-1)] = nearest_slices(step.value.reshape(-1, width), data.actual[wrong])
    faulty = Rearranged(step, lambda x: x.reshape(-1, width)[order].reshape(x.shape))
    return Fit(faulty, int(wrong.sum()), *read_instead(order, own, judged.reshape(-1)))


def _features(step: Step, data: FitData) -> Fit | None:
    """Return the step with, as each feature, the one that is nearest on some rows; of equal features, its own is the nearest."""
    own = np.arange(step.value.shape[-1])
    right, found = (a[:MOST_ROWS].T for a in data.rows(step.value, data.actual))
    if len(own) > MOST_FEATURES or right.shape[1] < LEAST_ROWS or not np.isfinite(found).all():
        return None
    order = nearest_slices(right, found)
    order = np.where((right[order] == right).all(1), own, order)
    moved = int((order != own).sum())
    return Fit(Rearranged(step, lambda x: x[..., order]), moved, *read_instead(order, own, own >= 0)) if moved else None


def _zero_tokens(step: Step, data: FitData) -> Fit | None:
    """Return the step with zeros at the tokens for which the candidate's judged elements are all zero."""
    zero = data.judged.any(-1) & ~(data.judged & (data.actual != 0.0)).any(-1) & (step.value != 0.0).any(-1)
    if not zero.any() or (zero == data.judged.any(-1)).all() or "position" not in step.site.activation.axes:
        return None
    first = int(zero.any(0).argmax())
    return Fit(Altered(step, lambda inner: np.where(zero[..., None], 0.0, inner.value)), int(zero.sum()), "position", first)


FITTED_PLACES = (
    Fitted("rows-other", _LOOKUPS | _BY_ROW, "rows of the batch have the results of other rows", "constructed", _rows,
           "rows sorted by length and not put back; a micro-batch that is not written; a buffer of one row, expanded to the batch",
           equation="y_b = f(x_π(b))",
           fix="Compute every row of the batch from its own inputs, and restore the order of rows that were sorted.",
           estimates="the rows"),
    Fitted("tokens-zero", frozenset({"linear", "context", "norm"}),
           "it is zero at some tokens, the first of them at position {value}", "constructed", _zero_tokens,
           "a chunk, or the last partial chunk, that was never computed",
           fix="Compute every token, including those of a last partial chunk."),
    Fitted("tokens-other", _BY_ROW, "some tokens have the results of other tokens of the batch", "constructed", _tokens,
           "a cache of keys and values whose position is off by one, or whose blocks belong to another row; a buffer that a later "
           "chunk overwrites", equation="y_bs = f(x_π(b, s))",
           fix="Write each token's result to a place of its own, and look up blocks of a cache by their row and contents.",
           estimates="the tokens, counted through the rows"),
    Fitted("features-reordered", LINEARS, "the features are in another order, or some are repeated", "constructed",
           _features, "rows of the weight in another layout", fix="Keep the order of the weight's rows.",
           estimates="the order of the features"),
)  # fmt: skip
