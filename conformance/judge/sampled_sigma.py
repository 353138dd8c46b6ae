"""Accumulated rounding errors of all earlier steps, sampled by Monte Carlo arithmetic (Parker 1997).

Each replica is a forward pass in which a normal error of the step's own sigma is added to every step's result; the error e of a
replica propagates as f(x + e) − f(x). Sigma is pooled over replicas and rows, to one value for each feature (one for each head in
attention). Enough batch rows are used, and replicas if the batch is too small, for 200 judged tokens in total: with fewer, a
threshold on a ratio to an estimated sigma would have to be much wider. If rows are whole sentences, features are pooled as well.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from conformance.judge.judged_elements import judged_elements
from conformance.judge.threads import on_all_cores
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array, Captured, Mask, as_array
from conformance.oracle import Network

DEGREES = 200


def reference(
    network: Network, arithmetic: Arithmetic, stored: Mapping[str, Array] | None = None
) -> Iterator[tuple[str, Array, Array]]:
    """Yield (activation, true value, global sigma) in the order of the table; sigma broadcasts to the value.

    Args:
        network: the oracle's network.
        arithmetic: the arithmetic model.
        stored: stored true values by name, used instead of computed ones.
    """
    for (name, value), (_, sigma) in zip(network.walk(), accumulated_sigma(network, arithmetic), strict=True):
        yield name, stored[name] if stored and name in stored else value, sigma


@dataclass(frozen=True)
class _Rows:
    """Some rows of the batch, with the true value of each activation and the errors of its replicas."""

    network: Network
    replicas: int
    rng: np.random.Generator
    held: dict[str, tuple[Array, list[Captured]]] = field(default_factory=dict)

    def taken(self, name: str, arithmetic: Arithmetic) -> tuple[list[Captured], Mask]:
        """Return the errors of each replica at the next activation, and the mask of its judged elements."""
        row = self.network.table[name]
        step = self.network.step(name, *(self.held[p][0] for p in row.parents))
        deviation = np.zeros(()) if row.exact else np.sqrt(step.roundings(arithmetic).variance())
        errors: list[Captured] = []
        for replica in range(self.replicas):
            arriving = (-self.held[p][1][replica] for p in row.parents)
            propagated = -step.effect_of(*arriving) if row.parents else np.zeros(step.value.shape)
            own = 0.0 if row.exact else deviation * self.rng.standard_normal(step.value.shape, np.float32)
            errors.append(propagated + own)
        self.held[name] = step.value, errors
        return errors, judged_elements(row, self.network.batch, step.value.shape)


def accumulated_sigma(network: Network, arithmetic: Arithmetic) -> Iterator[tuple[str, Array]]:
    """Yield (activation, global sigma) in table order; sigma broadcasts to the activation. Arrays are freed after use."""
    rows = _enough_rows(network)
    tokens = int(sum(network.batch.mask[some].sum() for some in rows))
    replicas = math.ceil(DEGREES / max(tokens, 1))
    parts = [_Rows(network.cut(some), replicas, np.random.default_rng(some.start)) for some in rows]
    last_use = {parent: name for name, row in network.table.items() for parent in row.parents}
    for name, row in network.table.items():
        taken = on_all_cores(partial(_Rows.taken, name=name, arithmetic=arithmetic), parts)
        yield name, _pooled(taken, row.axes)
        for parent in row.parents:
            if last_use[parent] == name:
                for part in parts:
                    part.held.pop(parent, None)


def _enough_rows(network: Network) -> list[slice]:
    """Return single rows, fullest first, until they hold DEGREES judged tokens; the whole batch if a loss couples sequences."""
    if not all(row.axes[:1] == ("batch",) for row in network.table.values()):
        return [slice(0, network.batch.size)]
    tokens = network.batch.mask.sum(1)
    fullest = np.argsort(-tokens, kind="stable")
    count = min(int(np.searchsorted(tokens[fullest].cumsum(), DEGREES)) + 1, network.batch.size)
    return [slice(int(row), int(row) + 1) for row in fullest[:count]]


def _pooled(taken: Sequence[tuple[list[Captured], Mask]], axes: tuple[str, ...]) -> Array:
    """Return the root mean square of the errors over all axes except those along which sigma varies."""
    over: tuple[int, ...] | None
    if "query" in axes:
        over = (0, 2, 3)
    elif "position" in axes or "state" in axes:
        over = (0, 1)
    else:
        over = None
    count = sum(np.sum(judged, axis=over, keepdims=True) * len(errors) for errors, judged in taken)
    squares = sum(np.sum(np.square(e * judged), axis=over, keepdims=True) for errors, judged in taken for e in errors)
    return as_array(np.sqrt(squares / np.maximum(count, 1)), np.float64)
