"""A segment: an activation computed from the nearest activations that the candidate exposes.

Usually one step. Where a candidate hides a parent, the oracle computes it as well, from that one's parents, and the error that a
correct candidate may make is propagated through: elementwise for sigma, backwards for the noise's projection on a direction.
"""

import copy
from collections import ChainMap
from collections.abc import Collection, Container, Iterable, Mapping

import numpy as np

from conformance.judge.effective_samples import NOTHING, Hashes, Repeats, hashed
from conformance.numerics.arithmetic import Arithmetic, Hypothesis
from conformance.numerics.formats import FORMATS, Array, Format
from conformance.numerics.memo import cached_property
from conformance.oracle import Network, Step
from conformance.oracle.equations import EQUATIONS
from conformance.oracle.maps import Roundings
from conformance.oracle.pointwise import Pointwise
from conformance.oracle.propagation import propagated

ORACLE = FORMATS["float64"]


def couples_positions(kinds: Iterable[str]) -> bool:
    """Whether an error at one position reaches others in any of these kinds of step."""
    return any(EQUATIONS[kind].couples_positions for kind in kinds)


def between(network: Network, name: str, observed: Container[str]) -> list[str]:
    """The steps from what is observed to `name`, in the order of computation."""
    table, found, todo = network.table, {name}, [name]
    while todo:
        parents = {p for p in table[todo.pop()].parents if p not in observed and p not in found}
        found |= parents
        todo += parents
    return [n for n in table if n in found]


class Segment:
    """The steps from what is observed to `name`, evaluated in float64."""

    def __init__(self, network: Network, name: str, observed: Mapping[str, Array]) -> None:
        """Collect the hidden steps, in the order of computation, and evaluate them on the captured leaves."""
        self.network = network
        self.name = name
        self._names = between(network, name, observed)
        used = {p for n in self._names for p in network.table[n].parents}
        self.leaves = {p: observed[p] for p in used if p not in self._names}
        self._observed = observed
        self.steps: Mapping[str, Step] = self._evaluate()
        self._roundings: dict[tuple[str, Arithmetic], Roundings] = {}
        self._repeats: dict[Format, Repeats] = {}
        self._unrounded: dict[Format, dict[str, Array]] = {}

    def _evaluate(self) -> dict[str, Step]:
        values, steps = dict(self.leaves), {}
        for n in self._names:
            steps[n] = self.network.step(n, *(values[p] for p in self.network.table[n].parents))
            if n != self.name:
                values[n] = steps[n].value
        return steps

    @property
    def value(self) -> Array:
        """The activation that the captured parents call for."""
        return self.steps[self.name].value

    @cached_property
    def values(self) -> Mapping[str, Array]:
        """Everything that is known where the segment stands: what was observed and what was computed from it."""
        return ChainMap({n: step.value for n, step in self.steps.items()}, self._observed)  # type: ignore[arg-type]  # only read

    def replacing(self, name: str, step: Step) -> "Segment":
        """The same with `step` in place of the step `name`: a fault there. Later steps alone are redone."""
        other = copy.copy(self)
        other._repeats = {}
        other.__dict__.pop("values", None)
        other.steps = {**self.steps, name: step}
        changed = {name}
        for n in self._names[self._names.index(name) + 1 :]:
            parents = self.network.table[n].parents
            if changed.intersection(parents):
                known = (self.leaves[p] if p in self.leaves else other.steps[p].value for p in parents)
                other.steps[n] = other.steps[n].again(parents=tuple(known))
                changed.add(n)
        other._roundings = {key: own for key, own in self._roundings.items() if key[0] not in changed}
        return other

    @cached_property
    def couples_positions(self) -> bool:
        """Whether an error at one position reaches others within the segment."""
        return couples_positions(self.network.table[n].kind for n in self._names)

    @property
    def is_single_step(self) -> bool:
        """Whether the candidate exposes every parent, or what that is a copy of."""
        return all(self.network.table[name].kind == "copy" for name in self._names[:-1])

    @property
    def is_function(self) -> bool:
        """Whether it is one step, and that a function of single numbers."""
        return self.is_single_step and issubclass(EQUATIONS[self.network.table[self.name].kind], Pointwise)

    def _own(self, name: str, arithmetic: Arithmetic) -> Roundings:
        """The step's roundings; for a float64 candidate the oracle makes as many of its own."""
        model = arithmetic if name == self.name else arithmetic.intermediate()
        key = (name, model)
        if key not in self._roundings:
            own = self.steps[name].roundings(model)
            self._roundings[key] = own.twice() if model.accumulate == ORACLE else own
        return self._roundings[key]

    def leaf_variance(self, hypothesis: Hypothesis) -> dict[str, Array]:
        """Variance of each leaf: none as captured, that of one rounding where the kernel may have consumed it unrounded."""
        if hypothesis.parents == "as captured":
            return {}
        storage = hypothesis.arithmetic.storage
        if storage not in self._unrounded:
            # A look-up is no rounding of anything; a copy is, of what it copies.
            computed = {n: v for n, v in self.leaves.items() if self.network.table[n].parents}
            self._unrounded[storage] = {n: storage.rounding_variance(v) for n, v in computed.items()}
        return self._unrounded[storage]

    def propagate(self, leaves: Mapping[str, Array], hypothesis: Hypothesis | None = None) -> Array:
        """Elementwise variance of the result, for leaves of these variances and, given a hypothesis, every step's roundings."""
        arithmetic = hypothesis.arithmetic if hypothesis else None
        own = None if arithmetic is None else lambda name: self._own(name, arithmetic)
        return propagated(self.network.table, self.steps, leaves, own)

    def bound(self, hypothesis: Hypothesis) -> Array | float:
        """Largest deterministic error of the last step."""
        return self._own(self.name, hypothesis.arithmetic).bound

    def adjoints(self, direction: Array, leaves: Collection[str] = ()) -> dict[str, Array]:
        """Jᵀ direction for every step, and these leaves: what an error there adds to Σ direction · result."""
        found: dict[str, Array] = {self.name: direction}
        for n in reversed(self._names):
            parents = self.network.table[n].parents
            asked = [i for i, parent in enumerate(parents) if parent in self.steps or parent in leaves]
            jacobians = self.steps[n].jacobians() if asked else ()
            for i in asked:
                arriving, parent = jacobians[i].adjoint(found[n]), parents[i]
                found[parent] = found[parent] + arriving if parent in found else arriving
        return found

    def projected(self, direction: Array, hypothesis: Hypothesis, *, apart: bool = False) -> tuple[float, float]:
        """Variance of Σ direction · noise, and the most that deterministic errors can add to it.

        Σ v (Jᵀ direction)² over every source of rounding, all correlations counted, and Σ b |Jᵀ direction| over every bound; taken
        as if nothing repeated, where what repeats is counted `apart`.
        """
        leaves, repeats = self.leaf_variance(hypothesis), NOTHING if apart else self._draws(hypothesis)
        adjoints, variance, bound = self.adjoints(direction, leaves), 0.0, 0.0
        for n in self._names:
            w, own = adjoints[n], self._own(n, hypothesis.arithmetic)
            variance += sum(repeats.variance(s.variance, s.to_result.adjoint(w)) for s in own.sources)
            if np.any(own.bound):
                bound += float((own.bound * np.abs(w)).sum())
        for n, leaf in leaves.items():
            variance += repeats.variance(leaf, adjoints[n])
        return variance, bound

    def directional_variance(self, direction: Array, hypothesis: Hypothesis) -> float:
        """Variance of Σ direction · result, with leaves as captured: Σ (v + b²) (Jᵀ direction)² over every rounding and bound.

        All correlations are counted; a bound b is a variance b², as in `propagate`.
        """
        total = 0.0
        for n, w in self.adjoints(direction).items():
            own = self._own(n, hypothesis.arithmetic)
            total += sum(float(np.vdot(s.variance, s.to_result.adjoint(w) ** 2)) for s in own.sources)
            total += float((np.square(own.bound) * w**2).sum())
        return total

    def _draws(self, hypothesis: Hypothesis) -> Repeats:
        """What is the same draw of noise: elements, where a function of one captured number is all that there is; else rows.

        A half format has few numbers, so that a large batch asks for the same ones again and again.
        """
        if self.is_function and hypothesis.parents == "as captured":
            return self._equal_inputs
        return self.repeats(hypothesis.arithmetic.storage)

    @cached_property
    def _equal_inputs(self) -> Repeats:
        (inputs,) = self.leaves.values()
        distinct, number = np.unique(inputs, return_inverse=True)
        return Repeats(number.reshape(inputs.shape), len(distinct))

    def repeats(self, storage: Format) -> Repeats:
        """Rows of the same draw (`hashes`)."""
        if storage not in self._repeats:
            self._repeats[storage] = Repeats.of(self.hashes(storage))
        return self._repeats[storage]

    def hashes(self, storage: Format) -> Hashes:
        """A hash a row: whole sequences where positions meet or there is but one row a sequence, else tokens.

        Rows are the same draw where their results are stored as the same numbers, as those of the same inputs are.
        """
        row = self.network.table[self.name]
        by_token = "position" in row.axes or "state" in row.axes
        if "batch" not in row.axes:
            return np.arange(self.network.batch.size, dtype=np.uint64)
        return hashed(storage.stored(self.value), 2 if by_token and not self.couples_positions else 1)
