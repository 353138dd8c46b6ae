"""Faults in which tokens attend to the tokens of other rows of the batch: along the batch, or to all of its tokens.

With query, key and value Q_b, K_b and V_b of row b, the usual context is softmax(Q_b K_bᵀ / √d) V_b. Here keys and values are
those of the tokens at one position s, K_s = (k_(1,s), …, k_(B,s)), or those of all rows, K = (K_1; …; K_B). Scores and
probabilities then have other shapes than in BERT, so a candidate does not expose them, or exposes others than it uses: the fault is
one of the context, computed from query, key and value.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from conformance.faults.attention import CONTEXT
from conformance.faults.changes import Altered
from conformance.faults.fault import ALONE, MOST_OPERATIONS, ROWS, Change, Fault, FaultContext
from conformance.model.batch import Batch
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array, Mask, as_array
from conformance.oracle import Step
from conformance.oracle.propagation import propagated
from conformance.oracle.step import elementwise_roundings

_SELF = ".attention.self.context"


@dataclass(frozen=True)
class _Grouping:
    """Which tokens attend to which.

    Attributes:
        queries: function from an array (B, S, …) to its parts, (B', Q, …) each, that are computed one after the other.
        keys: function from an array (B, S, …) to the keys of each part, (B', K, …).
        restored: function from the parts of a result to an array (B, S, …).
    """

    queries: Callable[[Array], Iterable[Array]]
    keys: Callable[[npt.NDArray[Any]], npt.NDArray[Any]]
    restored: Callable[[Sequence[Array]], Array]


_ALONG_BATCH = _Grouping(lambda x: (x.swapaxes(0, 1),), lambda x: x.swapaxes(0, 1), lambda parts: parts[0].swapaxes(0, 1))
# A row at a time, so that as many scores are held as there are scores of all rows in the usual attention.
_OVER_ALL = _Grouping(lambda x: (row[None] for row in x), lambda x: x.reshape(1, -1, *x.shape[2:]), np.concatenate)


@dataclass(frozen=True, eq=False)
class _Attention:
    """The attention of one part of the queries to its keys.

    Attributes:
        context: the data of the fault.
        names: names of scores, probabilities and context in the table, and of copies between them.
        query: (B', Q, H).
        key, value: (B', K, H).
        mask: which keys are attended to, (B', K).
    """

    context: FaultContext
    names: Sequence[str]
    query: Array
    key: Array
    value: Array
    mask: Mask

    def _steps(self, result: Callable[[Step], Array] = lambda step: step.value) -> dict[str, Step]:
        """Return the steps, by name, in the order of computation, each with the result of the one before as a parent.

        They are not kept, since their scores are large.
        """
        mask = np.asarray(self.mask, np.int64)
        batch = Batch(input_ids=mask, attention_mask=mask)  # Of the ids, only the shape is read.
        before, steps = self.query, dict[str, Step]()
        for name in self.names:
            kind = self.context.network.table[name].kind
            factor = {"scores": (self.key,), "context": (self.value,)}.get(kind, ())
            step = self.context.network.step(name, before, *factor)
            steps[name] = step.replaced(site=replace(step.site, batch=batch))
            before = result(steps[name])
        return steps

    @property
    def result(self) -> Array:
        """The context, (B', Q, H)."""
        return self._steps()[self.names[-1]].value

    def variance(self, arithmetic: Arithmetic) -> Array:
        """Return the elementwise variance of the rounding errors of the steps before the context, whose own are the inner step's.

        The square of the effect of known rounding errors is added: those of nearly equal probabilities are not independent.
        """
        inner, last = arithmetic.intermediate(), self.names[-1]
        steps, stored = self._steps(), self._steps(lambda step: step.stored(inner))
        nothing = elementwise_roundings(np.zeros(steps[last].value.shape))
        errors = propagated(
            self.context.network.table, steps, {}, lambda name: nothing if name == last else steps[name].roundings(inner)
        )
        return as_array(errors + (stored[last].value - steps[last].value) ** 2)


def _among(grouping: _Grouping, *, masked: bool) -> Change:
    """Return the change to the context of tokens that attend to those of the grouping, without padding if `masked`."""
    return lambda step, context: _attending(step, context, grouping, masked=masked)


def _attending(step: Step, context: FaultContext, grouping: _Grouping, *, masked: bool) -> Step | None:
    """Return the context of `_among`; None for a batch of one row, and without padding where that is to be included."""
    names, batch = _names(step, context), step.site.batch
    if names is None or batch.size == 1 or (not masked and batch.mask.all()):
        return None
    query, key = (context.values.get(name) for name in context.network.table[names[0]].parents)
    value = step.parents[1]
    if query is None or key is None or not query.shape == key.shape == value.shape == (*batch.mask.shape, value.shape[-1]):
        return None
    mask = batch.mask if masked else np.ones_like(batch.mask)
    read = (grouping.keys(key), grouping.keys(value), grouping.keys(mask))
    if mask.size * read[2].shape[1] * value.shape[-1] > MOST_OPERATIONS:  # the products of all queries and keys
        return None
    parts = [_Attention(context, names, part, *read) for part in grouping.queries(query)]
    result = grouping.restored([part.result for part in parts])
    return Altered(step, lambda _: result, lambda _, arithmetic: grouping.restored([part.variance(arithmetic) for part in parts]))


def _names(step: Step, context: FaultContext) -> list[str] | None:
    """Return the names of the steps from the scores to the context; None for a decoder's, and for scores that are a sum."""
    table, names = context.network.table, [step.site.activation.name]
    while table[names[0]].kind in CONTEXT | {"copy", "probs"}:
        names.insert(0, table[names[0]].parents[0])
    scores = table[names[0]]
    return names if scores.kind == "scores" and not scores.causal else None


# fmt: off
FAULTS: tuple[Fault, ...] = (
    *(
        Fault(f"attention-{which}{end}", CONTEXT, f"a token attends to the tokens {phrase}{clause}",
              _among(grouping, masked=masked), only=(_SELF,), extent=ROWS, tried=ALONE)
        for which, grouping, phrase in (
            ("along-batch", _ALONG_BATCH, "at its position in all rows, not to its own row"),
            ("over-rows", _OVER_ALL, "of all rows of the batch, not only to its own row"),
        )
        for end, masked, clause in (("", True, ""), ("-unmasked", False, ", padding included"))
    ),
)
# fmt: on
