"""Faults of the number of heads: the same features, split among fewer or more heads than the config says.

Faults of a fused kernel that computes the context from query, key and values, beside scores and probabilities that are right. Code
that exposes scores and probabilities often computes them apart from the context, which comes of one call such as
`scaled_dot_product_attention`. A mistake in that call is one of the context alone: the context of the scores, or probabilities,
with a fault of theirs. Where they are not exposed, it is no other function than that fault, which is reported.
"""

from collections.abc import Callable, Mapping

import numpy as np

from conformance.faults.attention import CONTEXT, keys_of, softmax
from conformance.faults.changes import Altered
from conformance.faults.fault import ALONE, EVERY_LAYER, Change, Fault, FaultContext, ignored
from conformance.faults.masks import added_raw, causal, inverted, unmasked
from conformance.model.activation import Activation
from conformance.model.architecture import Architecture
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array
from conformance.numerics.memo import cached_property
from conformance.oracle import Network, Step
from conformance.oracle.linear_maps import LinearMap, Roundings, Source, identity
from conformance.oracle.propagation import propagated
from conformance.oracle.step import Site

_SELF = (".self.context",)
WIDTH, HEADS = 64, 12  # Those of BERT base (Devlin et al. 2019, section 3); BERT large has the same head size.

Run = Callable[[Array], Mapping[str, Step]]


class Attended(Step):
    """The context of another number of heads, computed from query, key and values with scores and probabilities.

    Scores and probabilities of another number of heads have another shape than the config's, so all three steps are replaced as
    one, at the context.
    """

    def __init__(self, right: Step, table: Mapping[str, Activation], run: Run) -> None:
        """Initialize the step with the correct step, the table, and the function from the values (B, S, H) to the faulty steps."""
        super().__init__(right.site, *right.parents)
        self._right, self._table, self._run = right, table, run

    def replaced(self, *, site: Site | None = None, parents: tuple[Array, ...] | None = None) -> Step:
        """Return the step with the same number of heads at another site or with other parents."""
        return Attended(self._right.replaced(site=site, parents=parents), self._table, self._run)

    @cached_property
    def _steps(self) -> Mapping[str, Step]:
        return self._run(self.parents[1])

    @property
    def _last(self) -> Step:
        return self._steps[self.site.activation.name]

    @property
    def probabilities(self) -> Array:
        """The probabilities from which the context is computed, (B, h, S, S)."""
        return self._steps[self._table[self.site.activation.name].parents[0]].value

    @property
    def value(self) -> Array:
        """The context, (B, S, H)."""
        return self._last.value

    def jacobians(self) -> tuple[LinearMap, ...]:
        """Return 0 for the config's probabilities, which are not used, and the Jacobian of the context for the values."""
        probs = self.parents[0]
        nothing = LinearMap(lambda _: np.zeros_like(self.value), lambda _: np.zeros_like(probs))
        return (nothing, self._last.jacobians()[1])

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """Return the rounding errors of scores, probabilities and context, propagated to the context."""
        steps, inner = self._steps, arithmetic.intermediate()
        variance = propagated(self._table, steps, {}, lambda n: steps[n].roundings(arithmetic if steps[n] is self._last else inner))
        return Roundings((Source(variance, identity()),), self._last.roundings(arithmetic).bound)


def recomputed(
    step: Step, context: FaultContext, network: Network, changed: Callable[[Step], Step] = lambda step: step
) -> Attended | None:
    """Return the context computed from query, key and values by the steps of `network`, each as `changed` returns it.

    None is returned where query or key is not known, and for relative positions and pruned heads, which have arrays of the head
    size.
    """
    attention = step.site.activation.name.removesuffix("context")
    known = {name: context.values[name] for name in (f"{attention}query", f"{attention}key") if name in context.values}
    if len(known) < 2 or step.site.architecture.has_relative_positions or step.site.architecture.pruned_heads:
        return None

    def run(values: Array) -> Mapping[str, Step]:
        found, steps = {**known, f"{attention}value": values}, {}
        for name in (f"{attention}{part}" for part in ("scores", "probs", "dropout", "context")):
            steps[name] = changed(network.step(name, *(found[parent] for parent in network.table[name].parents)))
            found[name] = steps[name].value
        return steps

    return Attended(step, network.table, run)


def _of(heads: Callable[[Architecture], int]) -> Change:
    """Return the change to `heads(architecture)` heads; None if that number is the config's or does not divide the hidden size."""

    def change(step: Step, context: FaultContext) -> Step | None:
        a = step.site.architecture
        count = heads(a)
        if count in (0, a.num_attention_heads) or a.hidden_size % count or a.pruned_heads:
            return None
        return recomputed(
            step, context, Network(a.with_(num_attention_heads=count), context.network.weights, context.network.batch)
        )

    return change


def _twelve(a: Architecture) -> int:
    """Return 12, or 0 where twelve heads are 64 wide, which the fault `heads-64-wide` describes."""
    return 0 if a.hidden_size == HEADS * WIDTH else HEADS


def _halved(a: Architecture) -> int:
    """Return half the number of heads, or 0 if it is odd."""
    return a.num_attention_heads // 2 if a.num_attention_heads % 2 == 0 else 0


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


_TILES = (32, 64, 128)  # The usual numbers of keys in a tile of a fused kernel.

Scale = Callable[[Step], float]


def _scaled(scale: Scale) -> Change:
    """Return the change of scores to another factor in place of 1/√d; None if it is that one."""

    def change(step: Step, _: FaultContext) -> Step | None:
        by = scale(step) * step.site.architecture.head_size**0.5
        return None if by == 1.0 else step.replaced(parents=(step.parents[0] * by, *step.parents[1:]))

    return change


def _of_kernel(kind: str, change: Change) -> Change:
    """Return the change of the context to that of the scores, or of the probabilities, with a fault."""

    def of_context(step: Step, context: FaultContext) -> Step | None:
        network, attention = context.network, step.site.activation.name.removesuffix("context")
        scores = network.table.get(f"{attention}scores")
        if scores is None or scores.kind != "scores" or scores.causal:
            return None

        def changed(inner: Step) -> Step:
            return (change(inner, context) if inner.site.activation.kind == kind else None) or inner

        right = recomputed(step, context, network)
        if right is None or np.array_equal(right.probabilities, step.parents[0]):
            return None  # The probabilities are not exposed, but computed from the query and the key.
        # Whether the change is possible depends on the batch and the sizes alone, not on the parents.
        name, parents = ("scores", step.parents[1:] * 2) if kind == "scores" else (kind, step.parents[:1])
        is_possible = change(network.step(f"{attention}{name}", *parents), context) is not None
        return recomputed(step, context, network, changed) if is_possible else None

    return of_context


def _tile(size: int) -> Change:
    """Return the change of the softmax to one over the keys and the zeros that fill up a tile of `size` keys; None if none do."""

    def change(step: Step, _: FaultContext) -> Step | None:
        more = -step.parents[0].shape[-1] % size
        return Altered(step, lambda inner: softmax(inner.parents[0], keys_of(step), more=float(more))) if more else None

    return change


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
