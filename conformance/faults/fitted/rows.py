"""Fitted faults of the order of rows and tokens: the right results, in the place of another row or of another token."""

from collections.abc import Iterator

import numpy as np

from conformance.faults.changes import Altered, Rearranged
from conformance.faults.fault import FUNCTIONS, LINEARS
from conformance.faults.fitted.fitted_fault import LEAST_ROWS, Fit, FitData, Fitted
from conformance.model.batch import Ids
from conformance.numerics.formats import Array
from conformance.oracle import Step

_ROWS = "Compute every row of the batch from its own inputs, and restore the order of rows that were sorted."
_BY_ROW = LINEARS | FUNCTIONS | {"context", "norm", "tanh"}
MOST_TOKENS = 2**12  # A limit of the time: each wrong token is compared with all tokens.


def _nearest_rows(step: Step, data: FitData) -> Ids | None:
    """Return, for each row of the batch, the row of the oracle's result that is nearest on the judged elements; None for one row.

    A row is its own nearest unless another is nearer.
    """
    if step.site.activation.axes[:1] != ("batch",) or len(data.actual) < 2:
        return None
    found = np.arange(len(data.actual))
    for row, (actual, judged, allowed) in enumerate(zip(data.actual, data.judged, data.allowed, strict=True)):
        if judged.any():
            left = [float((((actual - other) / allowed)[judged] ** 2).sum()) for other in step.value]
            found[row] = row if left[row] <= min(left) else int(np.argmin(left))
    return None if (found == np.arange(len(found))).all() else found


def _of_rows(step: Step, rows: Ids) -> Step:
    """Return the step with, in each row of the batch, the result of another row."""
    return Rearranged(step, lambda x: x[rows])


def _first_row(step: Step, data: FitData) -> Fit | None:
    """Return the step with the first row's result in every row; rows with equal results may each be nearest."""
    rows = _nearest_rows(step, data)
    return None if rows is None else Fit(_of_rows(step, np.zeros_like(rows)), 1)


def _other_rows(step: Step, data: FitData) -> Fit | None:
    """Return the step with, in each row of the batch, the result of the nearest row."""
    rows = _nearest_rows(step, data)
    if rows is None:
        return None
    moved = rows != np.arange(len(rows))
    return Fit(_of_rows(step, rows), int(moved.sum()), "row", int(moved.argmax()))


def shifts(x: Array, by: int) -> Iterator[Array]:
    """Yield x, (B, S, …), with tokens moved by one position, and at the end the last token in turn, the same token, and zeros."""
    turned = np.roll(x, by, 1)
    yield turned
    end = 0 if by > 0 else -1
    for filled in (x[:, end], 0.0):
        other = turned.copy()
        other[:, end] = filled
        yield other


def _shifted(step: Step, data: FitData) -> Fit | None:
    """Return the step with tokens moved by one position, in the direction and with the end that leave least of the residual."""
    if step.site.activation.axes[:2] != ("batch", "position") or data.actual.shape[1] < 3:
        return None
    options = [(data.distance(value), by, index) for by in (1, -1) for index, value in enumerate(shifts(step.value, by))]
    least, by, index = min(options)
    if least >= data.distance(step.value):
        return None
    return Fit(_with_tokens_moved(step, by, index), 1, "positions", by)


def _with_tokens_moved(step: Step, by: int, index: int) -> Step:
    """Return the step with tokens moved as by the shift of this index; each token keeps its rounding errors, zeros have none."""

    def moved(x: Array) -> Array:
        return list(shifts(x, by))[index]

    kept = moved(np.ones((1, step.value.shape[1], 1))) > 0.0
    if kept.all():
        return Rearranged(step, moved)
    return Altered(Rearranged(step, lambda x: np.roll(x, by, 1)), lambda turned: np.where(kept, turned.value, 0.0))


def _of_other_tokens(step: Step, data: FitData) -> Fit | None:
    """Return the step with, at each token whose result is wrong, that of the nearest token of the batch.

    A token is compared by all its features, so it needs `LEAST_ROWS` of them for one fitted index.
    """
    judged, width = data.judged.any(-1), step.value.shape[-1]
    if step.site.activation.axes[:2] != ("batch", "position") or judged.size > MOST_TOKENS or width < LEAST_ROWS:
        return None
    wrong = judged & (np.abs(data.actual - step.value) > data.largest * data.allowed).any(-1, where=data.judged)
    right, found = step.value.reshape(-1, width), data.actual[wrong]
    if not wrong.any() or not np.isfinite(found).all():
        return None
    source = np.arange(judged.size)
    source[wrong.reshape(-1)] = ((right**2).sum(-1) - 2.0 * found @ right.T).argmin(-1)
    first = int(wrong.any(0).argmax())
    return Fit(Rearranged(step, lambda x: x.reshape(-1, width)[source].reshape(x.shape)), int(wrong.sum()), "position", first)


def _zero_tokens(step: Step, data: FitData) -> Fit | None:
    """Return the step with zeros at the tokens for which the candidate's judged elements are all zero."""
    zero = data.judged.any(-1) & ~(data.judged & (data.actual != 0.0)).any(-1) & (step.value != 0.0).any(-1)
    if not zero.any() or (zero == data.judged.any(-1)).all() or "position" not in step.site.activation.axes:
        return None
    first = int(zero.any(0).argmax())
    return Fit(Altered(step, lambda inner: np.where(zero[..., None], 0.0, inner.value)), int(zero.sum()), "position", first)


ZERO_TOKENS = Fitted(
    "tokens-zero", frozenset({"linear", "context", "norm"}),
    "it is zero at some tokens, the first of them at position {value}", "constructed", _zero_tokens,
    "a chunk, or the last partial chunk, that was never computed",
    fix="Compute every token, including those of a last partial chunk.",
)  # fmt: skip

_LOOKUPS = frozenset({"word_lookup", "position_lookup"})
_TYPES = frozenset({"token_type_lookup"})  # Types are so few that those of a row often equal those of another row by chance.


def _of_other_rows(kinds: frozenset[str], of_first: frozenset[str] = frozenset()) -> tuple[Fitted, Fitted]:
    """Return the faults in which rows of the batch have the results of the first row, or of others, at steps of these kinds."""
    return (
        Fitted("rows-first", kinds | of_first, "every row of the batch has the result of the first row", "constructed", _first_row,
               "a buffer or a static input of one row, expanded to the batch", equation="y_b = f(x_0)", fix=_ROWS),
        Fitted("rows-other", kinds, "rows of the batch have the results of other rows, the first of them row {value}",
               "constructed", _other_rows, "rows sorted by length and not put back; a micro-batch that is not written",
               equation="y_b = f(x_π(b))", fix=_ROWS),
    )  # fmt: skip


ROWS_OF_LOOKUPS = _of_other_rows(_LOOKUPS, _TYPES)
"""Tried before other ids, types or positions, which could explain other rows as well."""

FITTED_ROWS = (
    *_of_other_rows(_BY_ROW),
    Fitted("tokens-shifted", _BY_ROW, "the tokens are moved by {value} position", "constructed", _shifted,
           "a cache whose position is off by one", equation="y_s = f(x_(s − k))",
           fix="Write the result of token s at position s."),
    Fitted("tokens-other", _BY_ROW,
           "some tokens have the results of other tokens of the batch, the first of them at position {value}",
           "constructed", _of_other_tokens,
           "a cache of keys and values whose blocks belong to another row, or a buffer that a later chunk overwrites",
           equation="y_bs = f(x_π(b, s))",
           fix="Write each token's result to a place of its own, and look up blocks of a cache by their row and contents."),
)  # fmt: skip
