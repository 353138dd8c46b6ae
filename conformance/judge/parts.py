"""Parts of an activation that are judged like an activation: tokens, rows of the batch, or rows of a weight's gradient."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from conformance.judge.evidence import LocalJudgement
from conformance.judge.observation import SMALL, Observation
from conformance.judge.segment import WhenRead, couples_positions
from conformance.model.activation import HIDDEN
from conformance.model.batch import Batch, Ids
from conformance.numerics.formats import Captured
from conformance.oracle import Network
from conformance.oracle.equations import EQUATIONS
from conformance.oracle.gradients.products import LinearGradient


@dataclass(frozen=True, eq=False)
class Part:
    """A part of an activation.

    Attributes:
        observation: the activation at this part alone; so are the activations that it is computed from.
        rows, positions: for each index of the part's first axis, that of the activation, and its position if it is a token, (N,).
        ends: the indices of the part's first axis at which mistakes are likeliest, such as the first token of each row.
        taken: function that returns an observation at some indices of the first axis.
    """

    observation: Observation
    rows: Ids
    ends: Ids
    taken: Callable[[Observation, Ids], Observation]
    positions: Ids | None = None

    def in_whole(self, local: LocalJudgement) -> LocalJudgement:
        """Return a judgement of this part with the index of its largest error in the whole activation."""
        first, *others = local.error.index
        row = int(self.rows[first])
        index = (row, *others) if self.positions is None else (row, int(self.positions[first]), *others[1:])
        return replace(local, error=replace(local.error, index=index))

    def at(self, numbers: Ids) -> "Part":
        """Return the part of this part with these indices of its first axis."""
        positions = None if self.positions is None else self.positions[numbers]
        return Part(self.taken(self.observation, numbers), self.rows[numbers], np.arange(0), self.taken, positions)


def rows_of(observation: Observation) -> Part:
    """Return an activation as the rows of its batch; the ends have the least and the most padding, or sum of token types."""
    batch = observation.network.batch
    ends = np.unique([end for sums in (batch.mask.sum(1), batch.types.sum(1)) for end in (sums.argmin(), sums.argmax())])
    return Part(_reading(observation, ("batch",)), np.arange(batch.size), ends, _with_rows)


def judged_tokens(observation: Observation) -> Part | None:
    """Return the judged tokens of an activation as a batch of sequences of one token, in which padding costs nothing.

    None is returned if the tokens of a row interact, or are too few for that to pay.
    """
    table, batch = observation.network.table, observation.network.batch
    if observation.on_device or observation.network.kept or observation.actual.size <= SMALL:
        return None
    rows = [*observation.steps, *(table[parent] for step in observation.steps for parent in step.parents)]
    if any(row.axes[:2] != HIDDEN[:2] for row in rows) or any(step.layer is None for step in observation.steps):
        return None
    if couples_positions(step.kind for step in observation.steps):
        return None
    row, position = np.argwhere(batch.mask).T
    every = row.size == batch.mask.size

    def tokens(array: Captured) -> Captured:
        return array.reshape(-1, 1, array.shape[-1]) if every else array[row, position][:, None]

    network = _with_batch(observation.network, Batch(np.zeros((row.size, 1), np.int64)))
    first = np.flatnonzero(np.diff(row, prepend=-1))
    ends = np.unique(np.concatenate([first, first - 1]) % len(row))
    return Part(_cut(_reading(observation, HIDDEN[:2]), network, tokens), row, ends, _with_rows, position)


def features_of_gradient(observation: Observation) -> Part | None:
    """Return the gradient of a linear layer's weight as its rows, one for each feature of the layer; None for other activations."""
    if len(observation.steps) > 1 or EQUATIONS[observation.activation.kind] is not LinearGradient:
        return None
    return Part(observation, np.arange(len(observation.actual)), np.array([0, len(observation.actual) - 1]), _with_features)


def _with_rows(observation: Observation, numbers: Ids) -> Observation:
    network = _with_batch(observation.network, observation.network.batch.cut(numbers))
    return _cut(observation, network, lambda array: array[numbers])


def _with_features(observation: Observation, numbers: Ids) -> Observation:
    of_result, inputs = observation.activation.parents
    captured = {of_result: observation.captured[of_result][..., numbers], inputs: observation.captured[inputs]}
    return replace(observation, actual=observation.actual[numbers], captured=captured)


def _reading(observation: Observation, axes: tuple[str, ...]) -> Observation:
    """Return an observation with those captured activations alone whose first axes are these."""
    table = observation.network.table
    captured = {name: array for name, array in observation.captured.items() if table[name].axes[: len(axes)] == axes}
    return replace(observation, captured=captured)


def _with_batch(network: Network, batch: Batch) -> Network:
    other = replace(network, batch=batch)
    other.__dict__["table"] = network.table
    return other


def _cut(observation: Observation, network: Network, cut: Callable[[Captured], Captured]) -> Observation:
    before = observation.captured
    captured = WhenRead(before, lambda name: cut(before[name]))
    return replace(observation, network=network, actual=cut(observation.actual), captured=captured)
