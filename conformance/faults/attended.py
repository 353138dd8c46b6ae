"""Faults of the attention as a whole, whose context is computed from query, key and values: other heads, a kernel, other rows.

With another number of heads, or with the keys of other rows of the batch, scores and probabilities have other shapes than in BERT,
so that a candidate does not expose them, or exposes others than it uses: the fault is one of the context. A kernel computes the
context beside scores and probabilities that are exposed and right: its context is that of the scores, or probabilities, with one of
their faults. Where these are not exposed, it is no other function than that fault, which is reported.

With query, key and value Q_b, K_b and V_b of row b, the usual context is softmax(Q_b K_bᵀ / √d) V_b. Among other rows, keys and
values are those of the tokens at one position s, K_s = (k_(1,s), …, k_(B,s)), or those of all rows, K = (K_1; …; K_B).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from conformance.faults.attention import CONTEXT, keys_of, softmax
from conformance.faults.changes import Altered, run
from conformance.faults.edits import with_operand
from conformance.faults.fault import ALONE, EVERY_LAYER, MOST_OPERATIONS, ROWS, Change, Fault, FaultContext, ignored
from conformance.faults.masks import added_raw, causal, inverted, unmasked
from conformance.model.architecture import Architecture
from conformance.model.batch import Batch
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array, as_array
from conformance.oracle import Network, Step
from conformance.oracle.linear_maps import LinearMap
from conformance.oracle.propagation import propagated
from conformance.oracle.step import elementwise_roundings

_SELF = (".self.context",)
WIDTH, HEADS = 64, 12  # Those of BERT base (Devlin et al. 2019, section 3); BERT large has the same head size.
_TILES = (32, 64, 128)  # The usual numbers of keys in a tile of a fused kernel.


def _names(step: Step, context: FaultContext) -> list[str]:
    """Return the names of the steps from the scores to the context; none where the scores are a sum, or heads are pruned."""
    table, names = context.network.table, [step.site.activation.name]
    while table[names[0]].kind in CONTEXT | {"copy", "probs"}:
        names.insert(0, table[names[0]].parents[0])
    return names if table[names[0]].kind == "scores" and not step.site.architecture.pruned_heads else []


@dataclass(frozen=True, eq=False)
class _Attention:
    """The attention of some queries to some keys.

    Attributes:
        network: the network, whose equations it has.
        names: names of scores, probabilities and context, and of copies between them.
        values: query, key and value, (B', Q, H), (B', K, H) and (B', K, H), by name.
        edit: the change of each step.
    """

    network: Network
    names: Sequence[str]
    values: Mapping[str, Array]
    edit: Callable[[Step], Step] = lambda step: step

    def steps(self, result: Callable[[Step], Array] = lambda step: step.value) -> Mapping[str, Step]:
        """Return the steps, by name; they are not kept, since their scores are large."""
        return run(self.network, self.names, self.values, self.edit, result) or {}

    @property
    def result(self) -> Array:
        """The context, (B', Q, H)."""
        return self.steps()[self.names[-1]].value

    def variance(self, arithmetic: Arithmetic) -> Array:
        """Return the elementwise variance of the rounding errors of the steps before the context, whose own are the inner step's.

        The square of the effect of known rounding errors is added: those of nearly equal probabilities are not independent.
        """
        inner, last = arithmetic.intermediate(), self.names[-1]
        steps, stored = self.steps(), self.steps(lambda step: step.stored(inner))
        nothing = elementwise_roundings(np.zeros(steps[last].value.shape))
        errors = propagated(self.network.table, steps, {}, lambda name: nothing if name == last else steps[name].roundings(inner))
        return as_array(errors + (stored[last].value - steps[last].value) ** 2)


class _Attended(Altered):
    """A context that another attention computes from the values; the right probabilities are not used."""

    def __init__(self, inner: Step, attention: Callable[[Step], _Attention]) -> None:
        super().__init__(inner, lambda step: attention(step).result, lambda altered, a: attention(altered.inner).variance(a))
        self._attention = attention

    def with_inner(self, inner: Step) -> Step:
        return _Attended(inner, self._attention)

    def jacobians(self) -> tuple[LinearMap, ...]:
        nothing = LinearMap(lambda _: np.zeros_like(self.value), lambda _: np.zeros_like(self.parents[0]))
        return nothing, self._attention(self.inner).steps()[self.site.activation.name].jacobians()[1]


def _recomputed(
    step: Step, context: FaultContext, network: Network, edit: Callable[[Step], Step] = lambda step: step
) -> Step | None:
    """Return the context computed from query, key and values by the steps of `network`, each as `edit` returns it.

    None is returned where query or key is not known, and for relative positions and pruned heads, which have arrays of the head
    size.
    """
    names, table = _names(step, context), context.network.table
    known = {name: context.values[name] for name in (table[names[0]].parents if names else ()) if name in context.values}
    if len(known) < 2:
        return None
    value = table[names[-1]].parents[1]

    def attention(inner: Step) -> _Attention:
        return _Attention(network, names, {**known, value: inner.parents[1]}, edit)

    return _Attended(step, attention)


def _of(heads: Callable[[Architecture], int]) -> Change:
    """Return the change to `heads(architecture)` heads; None if that number is the config's or does not divide the hidden size."""

    def change(step: Step, context: FaultContext) -> Step | None:
        a = step.site.architecture
        count = heads(a)
        if count in (0, a.num_attention_heads) or a.hidden_size % count or a.pruned_heads:
            return None
        return _recomputed(step, context, replace(context.network, architecture=a.with_(num_attention_heads=count)))

    return change


def _twelve(a: Architecture) -> int:
    """Return 12, or 0 where twelve heads are 64 wide, which the fault `heads-64-wide` describes."""
    return 0 if a.hidden_size == HEADS * WIDTH else HEADS


def _halved(a: Architecture) -> int:
    """Return half the number of heads, or 0 if it is odd."""
    return a.num_attention_heads // 2 if a.num_attention_heads % 2 == 0 else 0


def _scaled(scale: Callable[[Step], float]) -> Change:
    """Return the change of scores to another factor in place of 1/√d; None if it is that one."""

    def change(step: Step, _: FaultContext) -> Step | None:
        by = scale(step) * step.site.architecture.head_size**0.5
        return None if by == 1.0 else with_operand(step, step.parents[0] * by)

    return change


def _of_kernel(kind: str, change: Change) -> Change:
    """Return the change of the context to that of the scores, or of the probabilities, with a fault."""

    def of_context(step: Step, context: FaultContext) -> Step | None:
        network, names = context.network, _names(step, context)
        if not names or network.table[names[0]].causal:
            return None
        right = run(network, names[:-1], context.values)
        if right is None or np.array_equal(right[names[-2]].value, step.parents[0]):
            return None  # The probabilities are not exposed, but computed from the query and the key.
        possible = [change(inner, context) is not None for inner in right.values() if inner.site.activation.kind == kind]

        def changed(inner: Step) -> Step:
            return (change(inner, context) if inner.site.activation.kind == kind else None) or inner

        return _recomputed(step, context, network, changed) if any(possible) else None

    return of_context


def _tile(size: int) -> Change:
    """Return the change of the softmax to one over the keys and the zeros that fill up a tile of `size` keys; None if none do."""

    def change(step: Step, _: FaultContext) -> Step | None:
        more = -step.parents[0].shape[-1] % size
        return Altered(step, lambda inner: softmax(inner.parents[0], keys_of(step), more=float(more))) if more else None

    return change


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


def _among(grouping: _Grouping, *, masked: bool) -> Change:
    """Return the change to the context of tokens that attend to those of the grouping, without padding if `masked`.

    It gives None for a batch of one row, and without padding where that is to be included.
    """

    def change(step: Step, context: FaultContext) -> Step | None:
        batch, table, names = step.site.batch, context.network.table, _names(step, context)
        if not names or table[names[0]].causal or batch.size == 1 or (not masked and batch.mask.all()):
            return None
        (query, key), value = table[names[0]].parents, table[names[-1]].parents[1]
        known = {**{name: context.values.get(name) for name in (query, key)}, value: step.parents[1]}
        if any(x is None or x.shape != (*batch.mask.shape, step.value.shape[-1]) for x in known.values()):
            return None
        values = {name: as_array(x) for name, x in known.items()}
        mask = np.asarray(grouping.keys(batch.mask if masked else np.ones_like(batch.mask)), np.int64)
        if batch.mask.size * mask.shape[1] * step.value.shape[-1] > MOST_OPERATIONS:  # the products of all queries and keys
            return None
        keys = Batch(input_ids=mask, attention_mask=mask)  # Of the ids, only the shape is read.

        def of_keys(inner: Step) -> Step:
            return inner.replaced(site=replace(inner.site, batch=keys))

        read = {key: grouping.keys(values[key]), value: grouping.keys(values[value])}
        parts = [_Attention(context.network, names, {query: part, **read}, of_keys) for part in grouping.queries(values[query])]
        result = grouping.restored([part.result for part in parts])
        return Altered(step, lambda _: result, lambda _, a: grouping.restored([part.variance(a) for part in parts]))

    return change


# fmt: off
FAULTS: tuple[Fault, ...] = (
    Fault("heads-64-wide", CONTEXT, f"heads are {WIDTH} wide{ignored('num_attention_heads')}",
          _of(lambda a: a.hidden_size // WIDTH if a.hidden_size % WIDTH == 0 else 0), only=(".context",), extent=EVERY_LAYER),
    Fault("heads-twelve", CONTEXT, f"there are {HEADS} heads{ignored('num_attention_heads')}", _of(_twelve), only=(".context",),
          extent=EVERY_LAYER),
    Fault("heads-halved", CONTEXT, "there are half as many heads, each twice as wide", _of(_halved), only=_SELF, tried=ALONE),
    Fault("heads-doubled", CONTEXT, "there are twice as many heads, each half as wide", _of(lambda a: 2 * a.num_attention_heads),
          only=_SELF, tried=ALONE),
)
# fmt: on

# fmt: off
KERNEL_FAULTS: tuple[Fault, ...] = (
    *(
        Fault(f"kernel-{name}", CONTEXT,
              f"the context is not that of the exposed probabilities: the kernel that computes it {phrase}",
              _of_kernel(kind, change), only=_SELF, tried=ALONE)
        for name, kind, change, phrase in (
            ("scale-missing", "scores", _scaled(lambda step: 1.0), "does not divide the scores by √d"),
            ("scale-of-width", "scores", _scaled(lambda step: float(step.site.architecture.hidden_size**-0.5)),
             "divides the scores by √H, not by √d"),
            ("mask-ignored", "probs", unmasked, "attends to padded keys"),
            ("mask-inverted", "probs", inverted, "attends to padded keys only"),
            ("mask-added-raw", "probs", added_raw, "adds the ones and zeros of the mask to the scores"),
            *((f"tile-{n}", "probs", _tile(n), f"attends to the zeros that fill up a tile of {n} keys") for n in _TILES),
            ("causal", "probs", causal, "masks later keys"),
        )
    ),
)
# fmt: on

# fmt: off
OVER_BATCH: tuple[Fault, ...] = (
    *(
        Fault(f"attention-{which}{end}", CONTEXT, f"a token attends to the tokens {phrase}{clause}",
              _among(grouping, masked=masked), only=(".attention.self.context",), extent=ROWS, tried=ALONE)
        for which, grouping, phrase in (
            ("along-batch", _ALONG_BATCH, "at its position in all rows, not to its own row"),
            ("over-rows", _OVER_ALL, "of all rows of the batch, not only to its own row"),
        )
        for end, masked, clause in (("", True, ""), ("-unmasked", False, ", padding included"))
    ),
)
# fmt: on
