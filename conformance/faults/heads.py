"""Heads of another width than the config's: the same features, split among fewer or more heads."""

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from conformance.faults.fault import Change, Fault, FaultContext, ignored
from conformance.model.activation import Activation
from conformance.model.architecture import Architecture
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array
from conformance.numerics.memo import cached_property
from conformance.oracle import Network, Step
from conformance.oracle.maps import LinearMap, Roundings, Source, identity
from conformance.oracle.propagation import propagated
from conformance.oracle.step import Site

WIDTH, HEADS = 64, 12  # of BERT base (Devlin et al. 2019, section 3); BERT large's heads are as wide

Run = Callable[[Array], Mapping[str, Step]]


class _Attended(Step):
    """The context of other heads than the config's, from query and key on, which `run` holds: scores and probabilities with it.

    Those of other heads are of another shape than the config's, so that the three steps are changed in one, at the last.
    """

    def __init__(self, right: Step, table: Mapping[str, Activation], run: Run) -> None:
        """In place of `right`, with the same parents; `run` takes the values, (B, S, H), to the steps."""
        super().__init__(right.site, *right.parents)
        self._right, self._table, self._run = right, table, run

    def again(self, *, site: Site | None = None, parents: tuple[Array, ...] | None = None) -> Step:
        """The same heads, of other values."""
        return _Attended(self._right.again(site=site, parents=parents), self._table, self._run)

    @cached_property
    def _steps(self) -> Mapping[str, Step]:
        return self._run(self.parents[1])

    @property
    def _last(self) -> Step:
        return self._steps[self.site.activation.name]

    @property
    def value(self) -> Array:
        """(B, S, H)."""
        return self._last.value

    def jacobians(self) -> tuple[LinearMap, ...]:
        """None of the config's probabilities, which have no part in it; the last step's of the values."""
        probs = self.parents[0]
        nothing = LinearMap(lambda _: np.zeros_like(self.value), lambda _: np.zeros_like(probs))
        return (nothing, self._last.jacobians()[1])

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """Those of scores, probabilities and context, propagated."""
        steps, inner = self._steps, arithmetic.intermediate()
        variance = propagated(self._table, steps, {}, lambda n: steps[n].roundings(arithmetic if steps[n] is self._last else inner))
        return Roundings((Source(variance, identity()),), self._last.roundings(arithmetic).bound)


def _of(heads: Callable[[Architecture], int]) -> Change:
    """As many heads as `heads` says, where that divides the features and is not what the config says."""

    def change(step: Step, place: FaultContext) -> Step | None:
        a = step.site.architecture
        count, attention = heads(a), step.site.activation.name.removesuffix("context")
        known = {name: place.values[name] for name in (f"{attention}query", f"{attention}key") if name in place.values}
        unlike = count in (0, a.num_attention_heads) or a.hidden_size % count
        if unlike or len(known) < 2 or a.has_relative_positions or a.pruned_heads:  # what is there is of the width of a head
            return None
        network = Network(a.with_(num_attention_heads=count), place.network.weights, place.network.batch)

        def run(values: Array) -> Mapping[str, Step]:
            found, steps = {**known, f"{attention}value": values}, {}
            for name in (f"{attention}{part}" for part in ("scores", "probs", "dropout", "context")):
                steps[name] = network.step(name, *(found[parent] for parent in network.table[name].parents))
                found[name] = steps[name].value
            return steps

        return _Attended(step, network.table, run)

    return change


def _twelve(a: Architecture) -> int:
    """0 where that is named heads of 64."""
    return 0 if a.hidden_size == HEADS * WIDTH else HEADS


def faults() -> Iterator[Fault]:
    """Heads as BERT base has them, whatever the config says."""
    context, ends = frozenset({"context"}), ignored("num_attention_heads")
    yield Fault(
        "heads-64-wide", context, f"heads are {WIDTH} wide{ends}", "constructed",
        _of(lambda a: a.hidden_size // WIDTH if a.hidden_size % WIDTH == 0 else 0), "a head size that is hard-coded",
        (".context",), whole=True,
        fix="Read num_attention_heads from the config; d = hidden_size / num_attention_heads.",
    )  # fmt: skip
    yield Fault(
        "heads-twelve", context, f"there are {HEADS} heads{ends}", "constructed", _of(_twelve), "BERT base's number, hard-coded",
        (".context",), whole=True,
        fix="Read num_attention_heads from the config; d = hidden_size / num_attention_heads.",
    )  # fmt: skip
