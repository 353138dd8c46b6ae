"""The gradient of the word embeddings, judged on the rows that the batch looks up, of which a vocabulary has many more.

All other rows of the gradient are 0, and a correct candidate makes no rounding error there. If the candidate's are 0 as well, the
rows that are looked up are the gradient of a table that has no others, with the token ids numbered accordingly.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from conformance.judge.evidence import LocalJudgement
from conformance.judge.global_error import GlobalError, global_error
from conformance.judge.observation import Observation
from conformance.model.batch import Ids
from conformance.model.checkpoint import LazyWeights
from conformance.numerics.formats import Array

KIND = "word_lookup_gradient"


@dataclass(frozen=True)
class LookedUpRows:
    """The rows of a gradient that the batch looks up.

    Attributes:
        observation: the activation with these rows alone.
        rows: their numbers, (R,).
        shape: shape of the whole gradient.
    """

    observation: Observation
    rows: Ids
    shape: tuple[int, ...]

    @classmethod
    def of(cls, whole: Observation) -> "LookedUpRows | None":
        """Return the rows of an activation that are to be judged alone; None if it is to be judged whole.

        That is so if it is not the gradient of the word embeddings, if other steps are judged with it or read it, if it is on a
        device, if every row is looked up, and if any other row has a gradient.
        """
        network, batch = whole.network, whole.network.batch
        if whole.activation.kind != KIND or len(whole.steps) > 1 or whole.on_device:
            return None
        if any(whole.name in row.parents for row in network.table.values()):
            return None
        rows, numbers = np.unique(batch.input_ids, return_inverse=True)
        has_gradient = np.array(whole.actual.any(1))
        has_gradient[rows] = False
        if len(rows) == len(whole.actual) or has_gradient.any():
            return None
        table, weights = whole.activation.parameters["weight"], network.weights
        smaller = replace(
            network,
            weights=LazyWeights(weights, lambda name: weights[name][rows] if name == table else weights[name]),
            batch=replace(batch, input_ids=numbers.reshape(batch.input_ids.shape)),
        )
        smaller.__dict__["table"] = network.table
        truth = None if whole.truth is None else whole.truth[rows]
        observation = replace(whole, network=smaller, actual=whole.actual[rows], truth=truth)
        return cls(observation, rows, whole.actual.shape)

    def in_whole(self, judgements: Sequence[LocalJudgement]) -> tuple[LocalJudgement, ...]:
        """Return the judgements of these rows as those of the whole gradient."""
        return tuple(self._placed(local) for local in judgements)

    def global_error(self, sigma: Array) -> GlobalError:
        """Return the global error of the whole gradient; `sigma` is the root mean square over all rows of the table."""
        of_rows = sigma * np.sqrt(self.shape[0] / len(self.rows))  # the others have none
        error = global_error(self.observation, sigma=of_rows)
        whole = np.zeros(self.shape, np.float32)
        whole[self.rows] = error.error
        return replace(error, error=whole, sums=replace(error.sums, index=self._index(error.sums.index)))

    def _placed(self, local: LocalJudgement) -> LocalJudgement:
        """Return a judgement with the index in the whole gradient, and without strips, whose places would be those of the rows."""
        distribution = local.distribution and replace(local.distribution, strips=(), tokens=())
        return replace(local, error=replace(local.error, index=self._index(local.error.index)), distribution=distribution)

    def _index(self, index: tuple[int, ...]) -> tuple[int, ...]:
        return (int(self.rows[index[0]]), *index[1:])
