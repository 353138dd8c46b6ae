"""The global reference: the oracle's own forward pass, and noisy replicas of it for the sigma of an accumulated error.

How rounding errors of all earlier steps add up is sampled, not propagated (Monte Carlo arithmetic; Parker 1997): replicas of the
forward pass in which each step's result is moved by a normal error of its own sigma. Sigma is pooled over replicas and rows, one
value a feature (one a head in attention), over so many replicas that the judged rows number 200: below that a threshold on a
ratio to an estimated sigma would have to be far wider. Where rows are whole sentences, features are pooled as well.
"""

import math
from collections.abc import Iterator, Mapping

import numpy as np

from conformance.judge.selection import Mask, judged_elements
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array
from conformance.oracle import Network

DEGREES = 200


def reference(
    network: Network, arithmetic: Arithmetic, stored: Mapping[str, Array] | None = None
) -> Iterator[tuple[str, Array, Array]]:
    """(activation, true value, global sigma) in the table's order; sigma broadcasts to the value. Holds no more than it needs.

    Stored true values, where given, take the place of computed ones.
    """
    replicas = math.ceil(DEGREES / max(int(network.batch.mask.sum()), 1))
    rng = np.random.default_rng(0)
    last_use = {parent: name for name, row in network.table.items() for parent in row.parents}
    lanes: dict[str, list[Array]] = {}
    for name, row in network.table.items():
        step = network.step(name, *(lanes[p][0] for p in row.parents))
        value = stored[name] if stored and name in stored else step.value
        deviation = np.sqrt(step.roundings(arithmetic).variance()) if not row.exact else np.zeros(())
        noisy = []
        for lane in range(1, replicas + 1):
            moved = network.step(name, *(lanes[p][lane] for p in row.parents)).value if row.parents else step.value
            noisy.append(moved + deviation * rng.standard_normal(value.shape) if not row.exact else moved)
        lanes[name] = [value, *noisy]
        yield name, value, _pooled([n - value for n in noisy], row.axes, judged_elements(row, network.batch, value.shape))
        for parent in row.parents:
            if last_use[parent] == name:
                lanes.pop(parent, None)


def _pooled(errors: list[Array], axes: tuple[str, ...], judged: Mask) -> Array:
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
