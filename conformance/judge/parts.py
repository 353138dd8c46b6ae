"""Parts of an activation that are judged like an activation: its judged tokens, some of these, or some rows of the batch."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from conformance.judge.evidence import LocalJudgement
from conformance.judge.observation import SMALL, CutWhenRead, Observation
from conformance.judge.segment import couples_positions
from conformance.model.activation import HIDDEN
from conformance.model.batch import Batch, Ids
from conformance.numerics.formats import Captured
from conformance.oracle import Network


@dataclass(frozen=True, eq=False)
class Part:
    """A part of an activation.

    Attributes:
        observation: the activation at this part alone; so are the activations that it is computed from.
        rows, positions: for each index of the part's first axis, its row of the batch, and its position if it is a token, (N,).
    """

    observation: Observation
    rows: Ids
    positions: Ids | None = None

    def in_whole(self, local: LocalJudgement) -> LocalJudgement:
        """Return a judgement of this part with the index of its largest error in the whole activation."""
        first, *others = local.error.index
        row = int(self.rows[first])
        index = (row, *others) if self.positions is None else (row, int(self.positions[first]), *others[1:])
        return replace(local, error=replace(local.error, index=index))

    def at(self, numbers: Ids) -> "Part":
        """Return the part of this part with these indices of its first axis."""
        network = _with_batch(self.observation.network, self.observation.network.batch.cut(numbers))
        part = _cut(self.observation, network, lambda array: array[numbers])
        return Part(part, self.rows[numbers], None if self.positions is None else self.positions[numbers])


def whole(observation: Observation) -> Part:
    """Return an activation as a part of itself."""
    return Part(_reading(observation, ("batch",)), np.arange(len(observation.actual)))


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
    return Part(_cut(_reading(observation, HIDDEN[:2]), network, tokens), row, position)


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
    captured = CutWhenRead(observation.captured, lambda _, array: cut(array), lambda array, _: array)
    return replace(observation, network=network, actual=cut(observation.actual), captured=captured)
