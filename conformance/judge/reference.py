"""What rounding errors of all earlier steps add up to: sampled, not propagated (Monte Carlo arithmetic; Parker 1997).

Replicas of the forward pass, in each of which every step's result is moved by a normal error of its own sigma; the error e of a
replica travels as f(x + e) − f(x). Sigma is pooled over replicas and rows, one value a feature (one a head in attention), over so
many rows of the batch, or else replicas, that the judged tokens number 200: below that a threshold on a ratio to an estimated
sigma would have to be far wider. Where rows are whole sentences, features are pooled as well.
"""

import math
from collections.abc import Iterator, Mapping

import numpy as np

from conformance.judge.selection import Mask, judged_elements
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array, Single
from conformance.oracle import Network

DEGREES = 200


def reference(
    network: Network, arithmetic: Arithmetic, stored: Mapping[str, Array] | None = None
) -> Iterator[tuple[str, Array, Array]]:
    """(activation, true value, global sigma) in the table's order; sigma broadcasts to the value.

    Stored true values, where given, take the place of computed ones.
    """
    for (name, value), (_, sigma) in zip(network.walk(), accumulated_sigma(network, arithmetic), strict=True):
        yield name, stored[name] if stored and name in stored else value, sigma


def accumulated_sigma(network: Network, arithmetic: Arithmetic) -> Iterator[tuple[str, Array]]:
    """(activation, global sigma) in the table's order; sigma broadcasts to the activation. Holds no more than it needs."""
    network = network.cut(slice(0, _rows_of(network)))
    replicas = math.ceil(DEGREES / max(int(network.batch.mask.sum()), 1))
    rng = np.random.default_rng(0)
    last_use = {parent: name for name, row in network.table.items() for parent in row.parents}
    held: dict[str, tuple[Array, list[Array | Single]]] = {}
    for name, row in network.table.items():
        step = network.step(name, *(held[p][0] for p in row.parents))
        deviation = np.zeros(()) if row.exact else np.sqrt(step.roundings(arithmetic).variance())
        errors: list[Array | Single] = []
        for replica in range(replicas):
            arriving = (-held[p][1][replica] for p in row.parents)
            moved = -step.moved_by(*arriving) if row.parents else np.zeros(step.value.shape)
            own = 0.0 if row.exact else deviation * rng.standard_normal(step.value.shape, np.float32)
            errors.append(moved + own)
        held[name] = step.value, errors
        yield name, _pooled(errors, row.axes, judged_elements(row, network.batch, step.value.shape))
        for parent in row.parents:
            if last_use[parent] == name:
                held.pop(parent, None)


def _rows_of(network: Network) -> int:
    """So many of the batch's rows have enough judged tokens, or all; all where an activation is of all of them, as a loss is."""
    if not all(row.axes[:1] == ("batch",) for row in network.table.values()):
        return network.batch.size
    return min(int(np.searchsorted(network.batch.mask.sum(1).cumsum(), DEGREES)) + 1, network.batch.size)


def _pooled(errors: list[Array | Single], axes: tuple[str, ...], judged: Mask) -> Array:
    """Root mean square of the errors, over all but what sigma is kept apart for."""
    over: tuple[int, ...] | None
    if "query" in axes:
        over = (0, 2, 3)
    elif "position" in axes:
        over = (0, 1)
    else:
        over = None
    count = np.maximum(np.sum(judged, axis=over, keepdims=True), 1)
    squares = sum(np.sum(np.where(judged, e, 0.0) ** 2, axis=over, keepdims=True) for e in errors)
    return np.asarray(np.sqrt(squares / (count * len(errors))))
