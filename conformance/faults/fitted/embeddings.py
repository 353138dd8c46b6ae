"""Fitted faults of the embeddings: the ids, positions or types that a candidate looked up, or other rows, read off its array."""

import numpy as np

from conformance.faults.changes import Altered
from conformance.faults.fault import with_parameters
from conformance.faults.fitted.differences import DIGITS, Estimated, assignment, counted, read_instead
from conformance.faults.fitted.fitted_fault import Fit, FitData, Fitted
from conformance.faults.fitted.parameters import described
from conformance.numerics.formats import as_array
from conformance.oracle import Step
from conformance.oracle.embeddings import Lookup


def _other_ids(step: Step, data: FitData) -> Fit | None:
    """Return the look-up of other ids: those whose rows of the table equal the candidate's rows bit for bit."""
    assert isinstance(step, Lookup)
    table, judged = np.asarray(step.site.parameters["weight"]), as_array(data.judged.any(-1))
    ids = np.broadcast_to(step.ids, judged.shape)
    known = {row.tobytes(): index for index, row in reversed(list(enumerate(table)))}
    rows = np.asarray(data.actual, table.dtype).reshape(-1, table.shape[1])
    other = np.array([known.get(row.tobytes(), -1) for row in rows]).reshape(ids.shape)
    other = np.where(judged & (data.actual != step.value).any(-1), other, ids)  # Other ids may have the same row.
    if (other < 0).any():
        return None
    pairs = np.unique(np.stack([ids, other], -1)[other != ids], axis=0)
    return Fit(Altered(step, lambda inner: inner.site.parameters["weight"][other]), len(pairs), *read_instead(other, ids, judged))


def _table(step: Step, data: FitData) -> Fit | None:
    """Return the look-up of another table, with the candidate's rows; None unless some row is read twice.

    A look-up does not round, so that every difference counts. The text has the element of the first wrong row that differs most.
    """
    assert isinstance(step, Lookup)
    judged, right = data.judged.any(-1), np.asarray(step.site.parameters["weight"])
    ids = np.broadcast_to(step.ids, judged.shape)[judged]
    read, first = np.unique(ids, return_index=True)
    if len(read) == len(ids) or not data.is_finite:
        return None
    table = np.array(right, np.float64)
    table[read] = data.actual[judged][first]
    wrong = np.flatnonzero((table != right).any(1))
    name = step.site.activation.parameters["weight"]
    assigned = assignment(Estimated(right, table, np.zeros(right.shape), 0.0))
    fitted = with_parameters(step, weight=table)
    if assigned is not None:
        return Fit(fitted, len(wrong), f"{name}{assigned.code}", assigned.value)
    if not len(wrong):
        return None
    row = int(wrong[0])
    at = int(np.abs(table[row] - right[row]).argmax())
    rows = counted(wrong, len(read), "row", " that the batch reads")
    text = f"{name}, {rows}: element {at}, expected {right[row, at]:.{DIGITS}g}, estimated"
    return Fit(fitted, len(wrong) * right.shape[1], text, float(table[row, at]))


FITTED_EMBEDDINGS = (
    *(
        Fitted(f"{which}-other", frozenset({f"{kind}_lookup"}), f"the equation holds with other {ids} than the batch's", _other_ids,
               estimates=f"the {short}", is_description=True)
        for which, kind, ids, short in (
            ("words", "word", "token ids", "ids"),
            ("token-types", "token_type", "token types", "token types"),
            ("positions", "position", "positions", "positions"),
        )
    ),
    described(frozenset({"word_lookup", "position_lookup", "token_type_lookup"}), _table),
)  # fmt: skip
