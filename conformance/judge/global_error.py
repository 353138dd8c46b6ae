"""The global error, the difference of an activation from the oracle's own forward pass from the token ids, and its unit.

Where the true value is not stored, it is computed from the true parents: with e the errors of the parents x,

    e_out = actual − f(x − e).

The error is kept in float32, because it is small. At depth `full`, the
error of the first rows of a large batch is followed alone, one row in eight. A passing step has a role in its propagation: it
amplifies the arriving error, attenuates it, or neither.

Its unit is the accumulated rounding error of all earlier steps, sampled by Monte Carlo arithmetic (Parker 1997). Each replica is a
forward pass in which a normal error of the step's own sigma is added to every step's result; the error e of a replica propagates as
f(x + e) − f(x). Sigma is pooled over replicas and rows, to one value for each feature (one for each head in attention). Enough
batch rows are used, and replicas if the batch is too small, for 200 judged tokens in total: with fewer, a threshold on a ratio to
an estimated sigma would have to be much wider. If rows are whole sentences, features are pooled as well.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from operator import add

import numpy as np

from conformance.judge.evidence import Error
from conformance.judge.judged_elements import judged_elements, sums_of_independent_rows, zeroed
from conformance.judge.noise import ErrorSums
from conformance.judge.observation import Block, Observation
from conformance.judge.threads import on_all_cores
from conformance.numerics.arithmetic import Arithmetic, Hypothesis
from conformance.numerics.formats import Array, Captured, Mask, Single, as_array
from conformance.numerics.thresholds import rms_threshold, smallest_rms
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


@dataclass(frozen=True, eq=False)
class GlobalError:
    """The global error of an activation or of one block of it.

    Attributes:
        error: the global error, including padded positions, because a candidate may attend to them.
        sums: statistics of the global error over the judged elements, in units of the accumulated sigma.
        has_sigma: whether the accumulated sigma is positive anywhere.
    """

    error: Single
    sums: ErrorSums
    has_sigma: bool

    @classmethod
    def of(cls, block: Block, sigma: Array) -> "GlobalError":
        """Return the global error of a block; `sigma` broadcasts to the block's array."""
        error = block.error.astype(np.float32)
        judged = zeroed(error, block.judged)
        precision = np.divide(1.0, sigma, out=np.zeros(sigma.shape), where=sigma > 0)
        scaled = as_array(judged * precision, np.float64)
        return cls(error, ErrorSums.of(scaled, int(block.judged.sum()), judged, block.first), bool(np.any(sigma)))

    def __add__(self, other: "GlobalError") -> "GlobalError":
        """Return the global error of both blocks, concatenated along the batch."""
        error = np.concatenate([self.error, other.error])
        return GlobalError(error, self.sums + other.sums, self.has_sigma)

    @property
    def summary(self) -> Error:
        """RMS and maximum of the global error in sigma; for exact activations, the largest difference alone."""
        return self.sums.error if self.has_sigma else self.sums.exact


def global_error(observation: Observation, sigma: Array, rows: int | None = None) -> GlobalError:
    """Return the global error of an activation.

    Args:
        observation: the activation.
        sigma: the rounding error accumulated since the token ids; broadcasts to the activation.
        rows: number of the batch's first rows that are followed; None for all.
    """
    most = observation.network.batch.size if rows is None else rows
    blocks = (slice(part.start, min(part.stop, most)) for part in observation.rows if part.start < most)
    return reduce(add, (GlobalError.of(observation.block(each), sigma) for each in blocks))


def error_role(block: Block, global_errors: Mapping[str, Single], hypothesis: Hypothesis, alpha: float) -> str | None:
    """Return whether the step is an amplifier or an attenuator of the arriving global error, or None if it is neither.

    It is one if the global error grew or shrank beyond what propagating the arriving error, taken as normal and random, predicts.
    The result is None if no error beyond rounding arrives. The tails are tested at the bounds of `rms_threshold` and
    `smallest_rms`.

    Args:
        block: the rows of the activation whose global error is followed.
        global_errors: the global errors of the activation and of those from which it is computed, by name.
        hypothesis: the hypothesis under which errors are propagated.
        alpha: false-alarm probability of each tail.
    """
    segment, judged = block.segment, block.judged
    arriving = {n: _judged_squares(block, n, global_errors[n]) for n in segment.leaves if n in global_errors}
    if not any(squares.any() for squares in arriving.values()):
        return None
    predicted, local = (_by_row(block, segment.propagate(leaves, hypothesis), judged) for leaves in (arriving, {}))
    actual = _judged_squares(block, segment.name, global_errors[segment.name]).sum()
    if max(actual, predicted.sum()) <= rms_threshold(local, alpha) ** 2 * local.sum() or not predicted.any():
        return None  # indistinguishable from this step's own rounding
    if actual > rms_threshold(predicted, alpha) ** 2 * predicted.sum():
        return "amplifier"
    return "attenuator" if actual < smallest_rms(predicted, alpha) ** 2 * predicted.sum() else None


def _by_row(block: Block, variance: Array, judged: Mask) -> Array:
    """Return the sum of the variances of the judged elements for each independent row."""
    coupled = block.segment.couples_positions
    return np.asarray(sums_of_independent_rows(block.activation, np.where(judged, variance, 0.0), coupled=coupled))


def _judged_squares(block: Block, name: str, error: Single) -> Array:
    """Return the squared global error of an activation, with 0 at elements that are not judged."""
    judged = judged_elements(block.network.table[name], block.network.batch, error.shape)
    return np.square(zeroed(error, judged).astype(np.float64))
