"""Fitted faults of the slots of keys and values: each is right, but in the place of another position."""

import math
from dataclasses import dataclass, replace

import numpy as np

from conformance.faults.attention import CONTEXT, SCORES
from conformance.faults.fault import MOST_OPERATIONS
from conformance.faults.fitted.fitted_fault import LEAST_ROWS, Fit, FitData, Fitted, nearest_fit
from conformance.faults.fitted.rows import shifts
from conformance.model.batch import Ids
from conformance.numerics.arrays import as_array
from conformance.numerics.formats import Array
from conformance.oracle import Step
from conformance.oracle.bilinear import split_heads

ITERATIONS = 100
"""Limits the work of a search, and nothing else: the matrix is only the start of `_ValueSearch.descended`."""


def _slots_shifted(step: Step, data: FitData) -> Fit | None:
    """Return the step with keys, or values, moved by one position, as by `shifts`."""
    *others, read = step.parents
    if read.shape[1] < LEAST_ROWS or not data.is_finite:
        return None
    moved = [(by, step.replaced(parents=(*others, x))) for by in (1, -1) for x in shifts(read, by)]
    return nearest_fit(step, data, moved, "positions")


def _keys_read(step: Step, data: FitData) -> Ids | None:
    """Return, for each position, the position whose key the scores read there, in all rows and heads.

    None if the scores overflow, and if there are too many.

    It is the one whose correct scores are nearest. The distance Σ (a − e)²/s² over the judged scores of both keys, with the allowed
    error s, is computed without its constant term Σ a²/s²: by the products of e with a/s² and of e² with 1/s².
    """
    shape = step.value.shape
    if step.value.size * shape[-1] > MOST_OPERATIONS:
        return None
    precision = np.where(data.judged, 1.0 / np.broadcast_to(data.allowed, shape) ** 2, 0.0)
    weighted = np.where(data.judged, data.actual, 0.0) * precision
    if not np.isfinite(weighted).all():
        return None
    expected, weighted, precision = (np.moveaxis(x, -1, 0).reshape(shape[-1], -1) for x in (step.value, weighted, precision))
    distances = precision @ (expected**2).T - 2.0 * weighted @ expected.T
    return as_array(np.where(precision.any(1), distances.argmin(1), np.arange(shape[-1])), np.int64)


@dataclass(frozen=True)
class _ValueSearch:
    """The search for the values that the context reads: c = P V_π, with the probabilities P and the captured context c.

    The sum to be minimised is Σ (c − P V_π)² over all rows and heads, in units of the error that the context may have; a
    change of less than 1 is not significant. The sum is quadratic in the permutation matrix.

    Attributes:
        probs: the probabilities, (B, h, Q, S), zero at queries that are not judged.
        context: the captured context, (B, h, Q, d).
        values: the correct values, (B, h, S, d).
        read: the positions that have a probability other than 0, in increasing order.
    """

    probs: Array
    context: Array
    values: Array
    read: Ids

    def gains(self, left: Array, *values: Array) -> tuple[Array, ...]:
        """Return Σ (Pᵀ left)_j v_k over rows, heads and features, (S, S), for each array of values."""
        reached = self.probs.swapaxes(-1, -2) @ left
        return tuple((reached @ x.swapaxes(-1, -2)).sum((0, 1)) for x in values)

    def distance(self, places: Ids) -> float:
        """Return the sum that is to be minimised, for a permutation."""
        return float(((self.context - self.probs @ self.values[:, :, places]) ** 2).sum())

    def relaxed(self) -> Ids:
        """Return the permutation nearest to the doubly stochastic matrix M that minimises Σ (c − P M V)².

        By the method of Frank and Wolfe (1956), An algorithm for quadratic programming, as for graph matching in Vogelstein et al.
        (2015), Fast approximate quadratic programming for graph matching; the sum is convex here.
        """
        matrix = np.eye(len(self.values[0, 0]))
        left = self.context - self.probs @ self.values
        for _ in range(ITERATIONS):
            (gain,) = self.gains(left, self.values)
            direction = np.eye(len(matrix))[self._assigned(gain)] - matrix
            change = self.probs @ (direction @ self.values)
            slope, curvature = float((change * left).sum()), float((change**2).sum())
            if slope <= 0.5 or curvature == 0.0:  # No matrix lowers the sum by more than twice the slope.
                break
            step = min(1.0, slope / curvature)
            matrix, left = matrix + step * direction, left - step * change
        return self._assigned(matrix)

    def _assigned(self, gain: Array) -> Ids:
        """Return the permutation of the positions that are read for which the sum of gains is largest."""
        from scipy.optimize import linear_sum_assignment  # slow to import

        places = np.arange(len(gain))
        places[self.read] = self.read[linear_sum_assignment(gain[np.ix_(self.read, self.read)], maximize=True)[1]]
        return places

    def descended(self, places: Ids) -> Ids:
        """Return the positions after the best change, a replacement or an exchange of two, was made until none lowers the sum.

        Where probabilities are nearly equal, a replacement changes the context of all queries, and only an exchange does not.
        """
        places = places.copy()
        columns = self.probs.swapaxes(-1, -2)
        power, distance = (columns**2).sum(-1)[..., None], _squared_distances(columns, columns)
        for _ in range(len(places)):
            moved = self.values[:, :, places]
            left = self.context - self.probs @ moved
            by_other, by_moved = self.gains(left, self.values, moved)
            own = np.diag(by_moved)[:, None]
            # Σ left² falls by 2 Σ left δ − Σ δ² if the context changes by δ = p_j (v_k − v_π(j)) or (p_j − p_k) (v_π(k) − v_π(j)).
            replaced = 2.0 * (by_other - own) - (power * _squared_distances(moved, self.values)).sum((0, 1))
            exchanged = 2.0 * (by_moved + by_moved.T - own - own.T) - (distance * _squared_distances(moved, moved)).sum((0, 1))
            replaced, exchanged = replaced[self.read], exchanged[np.ix_(self.read, self.read)]
            if max(replaced.max(), exchanged.max()) <= 1.0:
                break
            if replaced.max() >= exchanged.max():
                j, k = divmod(int(replaced.argmax()), len(places))
                places[self.read[j]] = k
            else:
                pair = self.read[list(divmod(int(exchanged.argmax()), len(self.read)))]
                places[pair] = places[pair[::-1]]
        return places


def _squared_distances(a: Array, b: Array) -> Array:
    """Return Σ (a_j − b_k)² over the last axis, (…, J, K), for a (…, J, n) and b (…, K, n)."""
    return as_array((a**2).sum(-1)[..., None] + (b**2).sum(-1)[..., None, :] - 2.0 * a @ b.swapaxes(-1, -2))


def _values_read(step: Step, data: FitData) -> Ids | None:
    """Return, for each position, the position whose values the context reads there, in all rows and heads.

    It is found from the rows with the most tokens, as many as the limit of work allows. None if that is none, if the context
    overflows, and if there are no probabilities.
    """
    probs, value = step.parents
    size = step.site.architecture.head_size
    count = MOST_OPERATIONS // (ITERATIONS * math.prod(probs.shape[1:]) * size)
    rows = np.argsort(-data.judged.any(-1).sum(-1), kind="stable")[:count]
    masked = (np.where(data.judged, x, 0.0) for x in (data.actual, data.allowed**2))
    context, squares, value = (split_heads(x[rows], size) for x in (*masked, value))
    # The variance of query q and feature k is nearly that of q times that of k: the context is a mean of nearly the same values.
    of_query = _inverse_rms(squares)
    of_feature = _inverse_rms((squares * of_query**2).swapaxes(-1, -2)).swapaxes(-1, -2)
    weights = probs[rows] * of_query
    if not (np.isfinite(context).all() and weights.any()):
        return None
    read = np.flatnonzero(weights.any(axis=(0, 1, 2)))
    by_query = _ValueSearch(weights, context * of_query, value, read)
    search = replace(by_query, context=by_query.context * of_feature, values=value * of_feature)
    # Features that are known much better than others make the convergence slow, so that the other start may be the better one.
    return min((search.descended(start.relaxed()) for start in (by_query, search)), key=search.distance)


def _inverse_rms(squares: Array) -> Array:
    """Return 1/√(the mean over the last axis), (…, 1), and 0 where that is 0."""
    mean = squares.mean(-1, keepdims=True)
    return as_array(np.where(mean > 0.0, 1.0 / np.sqrt(np.where(mean > 0.0, mean, 1.0)), 0.0))


def _in_other_order(step: Step, data: FitData) -> Fit | None:
    """Return the scores with the keys, or the context with the values, of other positions, the same in all rows."""
    first, read = step.parents
    places = (_keys_read if step.site.activation.kind in SCORES else _values_read)(step, data)
    if places is None:
        return None
    moved = np.flatnonzero(places != np.arange(len(places)))
    if not len(moved):
        return None
    return Fit(step.replaced(parents=(first, read[:, places])), len(moved), "position", int(moved[0]))


FITTED_SLOTS = (
    Fitted("slots-shifted", SCORES | CONTEXT, "the keys, or the values, are moved by {value} position",
           "constructed", _slots_shifted, "a paged cache whose slots of keys or of values are off by one",
           equation="s_ij = q_i k_(j − n) / √d, or c_i = Σ_j p_ij v_(j − n)",
           fix="Write and read the key and the value of token s in the same slot."),
    Fitted("keys-reordered", SCORES | CONTEXT,
           "the keys, or the values, are in another order, the first that is moved at position {value}",
           "constructed", _in_other_order,
           "keys and values that are reordered for context parallelism or by a paged cache, without the mask", per_token=True,
           equation="s_ij = q_i k_π(j) / √d, or c_i = Σ_j p_ij v_π(j)",
           fix="Put the keys, the values and the mask in the same order."),
)  # fmt: skip
