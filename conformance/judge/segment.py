"""A segment: the steps that compute an activation from the nearest captured activations.

An activation is captured if the candidate exposes it. The captured parents from which a segment starts are its leaves. A segment
is usually one step; if a parent is not captured, the oracle computes the parent as well, from the parent's own parents. The error
that a correct candidate may make is propagated through the segment: forwards and elementwise for sigma, backwards for the noise's
projection on a direction.
"""

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from copy import copy
from typing import Any, Self, TypeVar

import numpy as np

from conformance.judge.judged_elements import NOTHING, Hashes, Repeats, hashed, repeats_of
from conformance.numerics.arithmetic import Arithmetic, Hypothesis
from conformance.numerics.formats import FORMATS, Array, Format
from conformance.numerics.memo import cached_property
from conformance.oracle import Network, Step
from conformance.oracle.equations import EQUATIONS
from conformance.oracle.linear_maps import Roundings
from conformance.oracle.norm import Norm
from conformance.oracle.pointwise import Pointwise
from conformance.oracle.propagation import propagated

ORACLE = FORMATS["float64"]
Computed = TypeVar("Computed")


def couples_positions(kinds: Iterable[str]) -> bool:
    """Return whether a step of any of these kinds carries an error from one position to others."""
    return any(EQUATIONS[kind].couples_positions for kind in kinds)


def between(network: Network, name: str, captured: Container[str]) -> list[str]:
    """Return the names of the steps from the captured activations to `name`, in the order of computation."""
    table, found, todo = network.table, {name}, [name]
    while todo:
        parents = {p for p in table[todo.pop()].parents if p not in captured and p not in found}
        found |= parents
        todo += parents
    return [n for n in table if n in found]


class WhenRead(Mapping[str, Any]):
    """A mapping whose values are computed when they are first read."""

    def __init__(self, names: Iterable[str], read: Callable[[str], Any]) -> None:
        """Bind the names, and the function that returns the value of each."""
        self._names, self._read = dict.fromkeys(names), read
        self._values: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        """Return a value; raises `KeyError` for a name that there is not."""
        if name not in self._values:
            if name not in self._names:
                raise KeyError(name)
            self._values[name] = self._read(name)
        return self._values[name]

    def __contains__(self, name: object) -> bool:
        """Return whether there is such a name, without reading its value."""
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names."""
        return iter(self._names)

    def __len__(self) -> int:
        """Return the number of names."""
        return len(self._names)


class Segment:
    """The steps from the captured activations to `name`, evaluated in float64.

    Attributes:
        network: the oracle's network.
        name: the activation that the segment computes.
        captured: every captured activation, by name.
        leaves: those of them that are parents of the steps, in the order in which the steps use them.
        steps: the evaluated steps, by name, in the order of computation.
    """

    def __init__(self, network: Network, name: str, captured: Mapping[str, Array]) -> None:
        """Collect the steps, in the order of computation, and evaluate them on the leaves."""
        self.network = network
        self.name = name
        self._names = between(network, name, captured)
        parents = dict.fromkeys(p for n in self._names for p in network.table[n].parents)  # a set's order would vary by run
        self.leaves = {p: captured[p] for p in parents if p not in self._names}
        self.captured = captured
        self.steps: Mapping[str, Step] = self._evaluate()
        self._computed: dict[tuple[Any, ...], Any] = {}  # by what was computed, and from what

    def _evaluate(self) -> dict[str, Step]:
        values, steps = dict(self.leaves), {}
        for n in self._names:
            steps[n] = self.network.step(n, *(values[p] for p in self.network.table[n].parents))
            if n != self.name:
                values[n] = steps[n].value
        return steps

    @property
    def value(self) -> Array:
        """The activation computed by the oracle from the leaves."""
        return self.steps[self.name].value

    @cached_property
    def values(self) -> Mapping[str, Array]:
        """Every activation that is known in the segment: the captured ones and those computed from them."""
        steps, captured = self.steps, self.captured
        return WhenRead((*captured, *steps), lambda n: steps[n].value if n in steps else captured[n])

    def replacing(self, name: str, step: Step) -> "Segment":
        """Return a copy with `step`, a fault, in place of the step `name`; only later steps are recomputed."""
        steps, changed = {**self.steps, name: step}, {name}
        for n in self._names[self._names.index(name) + 1 :] if name != self.name else ():
            parents = self.network.table[n].parents
            if not changed.isdisjoint(parents):
                known = (self.leaves[p] if p in self.leaves else steps[p].value for p in parents)
                steps[n] = steps[n].replaced(parents=tuple(known))
                changed.add(n)
        return self.with_steps(steps, changed)

    def with_steps(self, steps: Mapping[str, Step], changed: Collection[str]) -> Self:
        """Return a copy with other steps, of which those in `changed` differ from this segment's."""
        other = copy(self)
        other.__dict__.pop("values", None)
        other.steps = steps
        other._computed = {
            key: found
            for key, found in self._computed.items()
            if key[0] == "leaves" or (key[0] in self.steps and key[0] not in changed)
        }
        return other

    def _once(self, key: tuple[Any, ...], compute: Callable[[], Computed]) -> Computed:
        """Return what `compute` returns, computed once for each key."""
        if key not in self._computed:
            self._computed[key] = compute()
        found: Computed = self._computed[key]
        return found

    @cached_property
    def couples_positions(self) -> bool:
        """Whether an error at one position reaches others within the segment."""
        return couples_positions(self.network.table[n].kind for n in self._names)

    @property
    def is_single_step(self) -> bool:
        """Whether every parent of the last step is captured, or the activation of which that parent is a copy."""
        return all(self.network.table[name].kind == "copy" for name in self._names[:-1])

    @cached_property
    def _stored(self) -> frozenset[str]:
        """The steps whose result is stored: the last one and, if it is a copy, that of which it is a copy."""
        found = [self.name]
        while self.network.table[found[-1]].kind == "copy" and self.network.table[found[-1]].parents[0] in self.steps:
            found.append(self.network.table[found[-1]].parents[0])
        return frozenset(found)

    @property
    def is_function(self) -> bool:
        """Whether the segment is a single step that applies a function to each element."""
        return self.is_single_step and issubclass(EQUATIONS[self.network.table[self.name].kind], Pointwise)

    def _step_roundings(self, name: str, arithmetic: Arithmetic) -> Roundings:
        """Return the step's own roundings; doubled for a float64 candidate, because the oracle rounds in float64 as well."""
        model = arithmetic if name in self._stored else arithmetic.intermediate()

        def roundings() -> Roundings:
            own = self.steps[name].roundings(model)
            return own.twice() if model.accumulate == ORACLE else own

        return self._once((name, model), roundings)

    def leaf_variance(self, hypothesis: Hypothesis) -> dict[str, Array]:
        """Return the variance of each leaf: none as captured, else that of one rounding the kernel may have left out."""
        if hypothesis.parents == "as captured":
            return {}
        storage = hypothesis.arithmetic.storage
        # A table look-up is not the result of a rounding; a copy is, because what it copies was rounded.
        rounded = {n: v for n, v in self.leaves.items() if self.network.table[n].parents}
        return self._once(("leaves", storage), lambda: {n: storage.rounding_variance(v) for n, v in rounded.items()})

    def propagate(self, leaves: Mapping[str, Array], hypothesis: Hypothesis) -> Array:
        """Return the elementwise variance of the result.

        Args:
            leaves: variance of each leaf.
            hypothesis: the hypothesis under whose arithmetic every step rounds.
        """
        return propagated(self.network.table, self.steps, leaves, lambda name: self._step_roundings(name, hypothesis.arithmetic))

    def least_noise(self, hypothesis: Hypothesis) -> tuple[Array, Array | float]:
        """Return a lower bound of the variance of `propagate`, and of `bound` (`Step.least_roundings`)."""

        def least(name: str) -> Roundings:
            model = hypothesis.arithmetic if name in self._stored else hypothesis.arithmetic.intermediate()
            return self.steps[name].least_roundings(model)

        last = least(self.name)
        leaves, table = self.leaf_variance(hypothesis), self.network.table
        return propagated(table, self.steps, leaves, lambda name: last if name == self.name else least(name)), last.bound

    def bound(self, hypothesis: Hypothesis) -> Array | float:
        """Return the largest deterministic error of the last step."""
        return self._step_roundings(self.name, hypothesis.arithmetic).bound

    def adjoints(self, direction: Array, leaves: Collection[str] = ()) -> dict[str, Array]:
        """Return Jᵀ direction for every step and the given leaves: the effect of an error there on Σ direction · result."""
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
        """Return the variance of Σ direction · noise, and the largest contribution of deterministic errors to the sum.

        The variance is Σ v (Jᵀ direction)² over every rounding error source, with all correlations counted; the contribution is
        Σ b |Jᵀ direction| over every bound. If `apart`, repeated draws of noise are counted elsewhere, and all draws are taken as
        independent here.
        """
        leaves, repeats = self.leaf_variance(hypothesis), NOTHING if apart else self._draws(hypothesis)
        adjoints = self.adjoints(direction, leaves)
        variance = self._variance_of_roundings(adjoints, hypothesis, repeats)
        for n, leaf in leaves.items():
            variance += repeats.variance(leaf, adjoints[n])
        bounds = self._bounds(hypothesis)
        return variance, sum((float((bound * np.abs(adjoints[n])).sum()) for n, bound in bounds.items()), 0.0)

    def directional_variance(self, direction: Array, hypothesis: Hypothesis) -> float:
        """Return the variance of Σ direction · result with leaves as captured.

        The variance is Σ (v + b²) (Jᵀ direction)² over every rounding and bound, with all correlations counted; a bound b enters as
        a variance b², as in `propagate`.
        """
        adjoints, bounds = self.adjoints(direction), self._bounds(hypothesis)
        of_bounds = sum((float((np.square(bound) * adjoints[n] ** 2).sum()) for n, bound in bounds.items()), 0.0)
        return self._variance_of_roundings(adjoints, hypothesis, NOTHING) + of_bounds

    def _variance_of_roundings(self, adjoints: Mapping[str, Array], hypothesis: Hypothesis, repeats: Repeats) -> float:
        """Return Σ v (Jᵀ direction)² over every random rounding error of the steps, given Jᵀ direction at each step."""
        variance = 0.0
        for n in self._names:
            sources = self._step_roundings(n, hypothesis.arithmetic).sources
            variance += sum(repeats.variance(s.variance, s.to_result.adjoint(adjoints[n])) for s in sources)
        return variance

    def _bounds(self, hypothesis: Hypothesis) -> dict[str, Array | float]:
        """Return the largest deterministic errors of the steps that have any, by name."""
        roundings = {n: self._step_roundings(n, hypothesis.arithmetic) for n in self._names}
        return {n: own.bound for n, own in roundings.items() if own.is_bounded}

    def _draws(self, hypothesis: Hypothesis) -> Repeats:
        """Return the elements that share a draw of noise if the segment is a function of one captured number, else the rows.

        A half-precision format has few numbers, so a large batch repeats many of them.
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
        """Return the rows that share a draw of noise, identified by `hashes`."""
        return self._once(("repeats", storage), lambda: repeats_of(self.hashes(storage)))

    def summing(self, weights: Array, storage: Format) -> float:
        """Return Σ w e for the errors e of the result that rounding a norm's residual sum to `storage` makes, to first order.

        It is 0 for other steps, and where the addends are not captured.
        """
        step = self.steps[self.name]
        if not (isinstance(step, Norm) and len(step.parents) > 1 and self.is_single_step):
            return 0.0
        error = self._once(("summing", storage), lambda: _finite(lambda: storage.round(step.summed) - step.summed))
        return float(np.vdot(step.jacobians()[0].adjoint(weights), error))

    def storing(self, arithmetic: Arithmetic) -> Array:
        """Return the error of the result that is stored if nothing rounds but library calls; 0 where it is not finite."""
        step = self.steps[self.name]
        return self._once(("storing", arithmetic), lambda: _finite(lambda: step.stored(arithmetic) - step.value))

    def hashes(self, storage: Format) -> Hashes:
        """Return one hash for each row: a whole sequence if positions are coupled or a sequence has a single row, else a token.

        Rows share a draw if their results are stored as the same numbers, as the results of equal inputs are.
        """
        row = self.network.table[self.name]
        if "batch" not in row.axes:
            return np.arange(self.network.batch.size, dtype=np.int64)
        by_token = ("position" in row.axes or "state" in row.axes) and not self.couples_positions
        return self._once(("hashes", storage), lambda: hashed(storage.stored(self.value), 2 if by_token else 1))


def _finite(error: Callable[[], Array]) -> Array:
    """Return errors, and 0 where they are not finite."""
    with np.errstate(invalid="ignore"):
        found = error()
    return np.where(np.isfinite(found), found, 0.0)
