"""The judged tokens of an activation whose positions do not interact, as a batch of sequences of one token; padding costs nothing so."""

from dataclasses import dataclass, replace

import numpy as np

from conformance.judge.evidence import LocalJudgement
from conformance.judge.observation import SMALL, CutWhenRead, Observation
from conformance.judge.segment import couples_positions
from conformance.model.activation import HIDDEN
from conformance.model.batch import Batch, Ids
from conformance.numerics.formats import Captured


@dataclass(frozen=True, eq=False)
class JudgedTokens:
    """The judged tokens of an activation.

    Attributes:
        observation: the activation at these N tokens, (N, 1, F); so are the activations that it is computed from.
        places: their row of the batch and position, (N, 2).
    """

    observation: Observation
    places: Ids

    @classmethod
    def of(cls, whole: Observation) -> "JudgedTokens | None":
        """Return the judged tokens of an activation, in the order of the batch.

        None is returned if it is small or on a device, if a dropout mask is given, or if the tokens of a row interact.
        """
        table, batch = whole.network.table, whole.network.batch
        if whole.on_device or whole.network.kept or whole.actual.size <= SMALL or batch.length == 1:
            return None
        rows = [*whole.steps, *(table[parent] for step in whole.steps for parent in step.parents)]
        if any(row.axes[:2] != HIDDEN[:2] for row in rows) or any(step.layer is None for step in whole.steps):
            return None
        return None if couples_positions(step.kind for step in whole.steps) else cls._at(whole, np.argwhere(batch.mask))

    @classmethod
    def _at(cls, whole: Observation, places: Ids) -> "JudgedTokens":
        rows, positions = places.T
        every = len(places) == whole.network.batch.mask.size

        def at(array: Captured) -> Captured:
            return array.reshape(-1, 1, array.shape[-1]) if every else array[rows, positions][:, None]

        network = replace(whole.network, batch=Batch(np.zeros((len(places), 1), np.int64)))
        network.__dict__["table"] = whole.network.table
        captured = CutWhenRead(whole.captured, lambda _, array: at(array), lambda array, _: array)
        return cls(replace(whole, network=network, actual=at(whole.actual), captured=captured), places)

    def part(self, numbers: Ids) -> "JudgedTokens":
        """Return the tokens of these numbers."""
        part = self._at(self.observation, np.stack([numbers, np.zeros_like(numbers)], 1))
        return replace(part, places=self.places[numbers])

    def in_whole(self, local: LocalJudgement) -> LocalJudgement:
        """Return a judgement of these tokens with the index of its largest error in the whole activation."""
        token, _, feature = local.error.index
        row, position = self.places[token]
        return replace(local, error=replace(local.error, index=(int(row), int(position), feature)))
