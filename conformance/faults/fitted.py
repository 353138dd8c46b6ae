"""Faults that are a whole tensor: parameters that are not the checkpoint's, found by fitting the step to the candidate's array.

They explain much, and are asked last: a fit counts only where more rows are seen than there are numbers to fit them with.
"""

import numpy as np

from conformance.faults.altered import Altered
from conformance.faults.approximated import APPROXIMATED
from conformance.faults.embeddings import POSITIONS_FIX, TYPES_FIX
from conformance.faults.fault import with_batch, with_parameters
from conformance.faults.fit import Fit, FitData, Fitted
from conformance.faults.projections import LINEARS
from conformance.model.batch import Ids
from conformance.oracle import Step
from conformance.oracle.embeddings import positions
from conformance.oracle.products import Linear

LEARNED = frozenset({"position_lookup"})


def _linear(step: Step, seen: FitData) -> Fit | None:
    """Least squares for weight and bias; the rows that are different must outnumber the columns."""
    assert isinstance(step, Linear)
    rows = seen.judged.any(-1).reshape(-1)
    inputs = step.inputs.reshape(-1, step.inputs.shape[-1])[rows]
    columns = np.concatenate([inputs, np.ones((len(inputs), 1))], 1)
    if len(np.unique(inputs, axis=0)) <= columns.shape[1] or np.linalg.matrix_rank(columns) < columns.shape[1]:
        return None
    solution = np.linalg.lstsq(columns, seen.actual.reshape(-1, seen.actual.shape[-1])[rows], rcond=None)[0]
    return Fit(with_parameters(step, weight=solution[:-1].T, bias=solution[-1]), solution.size)


def _affine(step: Step, seen: FitData) -> Fit | None:
    """Gamma and beta, a feature at a time, from the normalised input."""
    gamma, beta = step.site.parameters["weight"], step.site.parameters["bias"]
    rows = seen.judged.any(-1)
    normal = ((step.value - beta) / np.where(gamma == 0.0, 1.0, gamma))[rows]
    target = seen.actual[rows]
    if len(np.unique(target, axis=0)) <= 2 or (gamma == 0.0).any():
        return None
    centred = normal - normal.mean(0)
    slope = (centred * target).sum(0) / np.maximum((centred**2).sum(0), np.finfo(np.float64).tiny)
    return Fit(with_parameters(step, weight=slope, bias=target.mean(0) - slope * normal.mean(0)), 2 * gamma.size)


def _table(step: Step, seen: FitData) -> Fit | None:
    """A row of the table for each row that is read; one must be read twice."""
    width = step.value.shape[-1]
    rows = seen.judged.any(-1).reshape(-1)
    read, found = (x.reshape(-1, width)[rows] for x in (step.value, seen.actual))
    _, first, which = np.unique(read, axis=0, return_index=True, return_inverse=True)
    if len(first) == len(read):
        return None
    value = np.array(seen.actual, np.float64).reshape(-1, width)
    value[rows] = found[first][which.reshape(-1)]
    return Fit(Altered(step, lambda inner: value.reshape(inner.value.shape)), first.size * width)


def _dropped(step: Step, seen: FitData) -> Fit | None:
    """Each element zero, or the right one over 1 − p."""
    right = step.value
    kept = seen.judged & (seen.actual != 0.0) & (right != 0.0)
    dropped = seen.judged & (seen.actual == 0.0) & (right != 0.0)
    if not kept.any() or not dropped.any():
        return None
    factor = float(np.median(seen.actual[kept] / right[kept]))
    if factor <= 1.0:
        return None
    share = 1.0 - 1.0 / factor
    count = int(kept.sum() + dropped.sum())
    close = np.abs(seen.actual - factor * right) <= np.abs(factor * right) * 2.0**-7  # one rounding of bfloat16
    if not close[kept].all():
        return None
    return Fit(
        Altered(step, lambda _: np.where(seen.judged, seen.actual, right)),
        1,
        "p",
        share,
        float(np.sqrt(share * (1.0 - share) / count)),
    )


def _other_mask(step: Step, seen: FitData) -> Fit | None:
    """The keys that get any probability, taken as the mask."""
    mask = step.site.batch.mask
    if seen.actual.shape[-1] != mask.shape[-1] or "key" not in step.site.activation.axes:
        return None
    attended = (seen.actual >= np.finfo(np.float32).tiny) & mask[:, None, :, None]
    other = np.where(mask.any(1, keepdims=True), attended.any((1, 2)), mask)  # (B, S)
    return Fit(with_batch(step, attention_mask=other.astype(np.int64)), int((other != mask).sum()))


def _nearest(step: Step, seen: FitData, otherwise: Ids) -> Ids:
    """(B, S): the row of the table that each token's embedding is nearest to; `otherwise` where that is not judged."""
    least, found = np.full(seen.actual.shape[:-1], np.inf), np.zeros(seen.actual.shape[:-1], np.int64)
    for index, row in enumerate(step.site.parameters["weight"]):
        distance = np.abs(seen.actual - row).max(-1)
        found[distance < least] = index
        np.minimum(least, distance, out=least)
    return np.where(seen.judged.any(-1), found, otherwise)


def _clipped_positions(step: Step, seen: FitData) -> Fit | None:
    """Positions past the largest that is read are taken as that one."""
    right = np.broadcast_to(positions(step), seen.actual.shape[:-1])
    largest = int(np.where(seen.judged.any(-1), _nearest(step, seen, right), 0).max())
    return Fit(_at(step, np.minimum(right, largest)), 1, "position", largest) if largest < right.max() else None


def _other_positions(step: Step, seen: FitData) -> Fit | None:
    """The row of the table that each token's embedding is, taken as its position."""
    right = np.broadcast_to(positions(step), seen.actual.shape[:-1])
    other = _nearest(step, seen, right)
    return Fit(_at(step, other), int((other != right).sum()))


def _at(step: Step, rows: Ids) -> Step:
    return Altered(step, lambda inner: inner.site.parameters["weight"][rows])


def _zero_heads(step: Step, seen: FitData) -> Fit | None:
    """Heads of which the candidate has zeros alone, taken out."""
    heads = (*step.value.shape[:-1], -1, step.site.architecture.head_size)
    zero = ~(seen.judged & (seen.actual != 0.0)).reshape(heads).any((0, 1, 3))
    if not zero.any() or zero.all():
        return None
    return Fit(
        Altered(step, lambda inner: np.where(zero[:, None], 0.0, inner.value.reshape(heads)).reshape(inner.value.shape)),
        int(zero.sum()),
        "head",
        int(zero.argmax()),
    )


def _other_types(step: Step, seen: FitData) -> Fit | None:
    """The row of the table that each token's embedding is, taken as its type."""
    other = _nearest(step, seen, step.site.batch.types)
    return Fit(with_batch(step, token_type_ids=other.astype(np.int64)), int((other != step.site.batch.types).sum()))


OTHER = "the equation is right, the parameters are not the checkpoint's"

FITTED = (
    Fitted("dropout-active", frozenset({"copy"}), "dropout is active, with p = {value}",
           "transformers#695, google-research/bert#857", _dropped, "eval() was not called",
           equation="y = x / (1 − p) or 0, at random",
           fix="Call eval() before the forward pass."),
    Fitted("mask-other", frozenset({"probs"}), "the mask is another than the batch's", "constructed",
           _other_mask, "the mask of the example that was traced, baked into the graph; another batch's mask", True,
           fix="Use the attention_mask of each call; export with the mask as an input."),
    Fitted("token-types-other", frozenset({"token_type_lookup"}), "the token types are others than the batch's", "constructed",
           _other_types, "the token types of the example that was traced, baked into the graph",
           fix=TYPES_FIX),
    Fitted("positions-clipped", LEARNED, "positions past {value} are taken as {value}", "constructed",
           _clipped_positions, "a table, or an export, that was made for shorter text",
           fix=POSITIONS_FIX),
    Fitted("positions-other", LEARNED, "the positions are others than the batch's", "constructed",
           _other_positions, "position ids that are made from something else",
           fix=POSITIONS_FIX),
    Fitted("head-zero", frozenset({"context"}), "heads are zero, the first of them head {value}", "constructed",
           _zero_heads, "a head mask that is left in; heads pruned and not taken out",
           fix="Use every head that the checkpoint has."),
    Fitted("parameters-other", LINEARS, OTHER, "constructed",
           _linear, "parameters that were not loaded, or trained further; an untied decoder",
           fix="Load every parameter from the checkpoint, and fail on missing and unexpected names."),
    Fitted("parameters-other", frozenset({"norm"}), OTHER, "constructed",
           _affine, "parameters that were not loaded, or trained further",
           fix="Load every parameter from the checkpoint, and fail on missing and unexpected names."),
    Fitted("parameters-other", frozenset({"word_lookup", "position_lookup", "token_type_lookup"}),
           OTHER, "constructed", _table, "parameters that were not loaded",
           fix="Load every parameter from the checkpoint, and fail on missing and unexpected names."),
    *APPROXIMATED,
)  # fmt: skip
