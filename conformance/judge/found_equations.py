"""The equations by which a candidate computes its wrong steps, as far as mistakes of the catalogue explain them.

Elementwise variance of the rounding errors accumulated since the token ids, propagated analytically rather than sampled.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, product

import numpy as np

from conformance.faults import BY_NAME, Fault, FaultContext
from conformance.judge.evidence import Explanation, LocalJudgement
from conformance.judge.explanation_search import is_of_catalogue
from conformance.judge.failing_activation import judge_exact_steps
from conformance.judge.fault_directions import direction, faults_at_steps
from conformance.judge.judged_array import LocalTest, without_faults
from conformance.judge.local_error import judge_locally
from conformance.judge.observation import Observation
from conformance.numerics.arithmetic import Arithmetic, Hypothesis
from conformance.numerics.formats import Array
from conformance.oracle import Network, Step
from conformance.oracle.propagation import accumulated_errors

Found = tuple[Fault, float | None]  # a fault, and the value of its parameter


@dataclass(frozen=True, eq=False)
class FoundEquations:
    """The mistakes found in one run of a candidate.

    Attributes:
        faults: by the name of a step, its faults, each with the value of its parameter or None.
        unknown: names of the wrong activations that no mistakes of the catalogue explain, and of those after the first of them.
    """

    faults: Mapping[str, Sequence[Found]] = field(default_factory=dict)
    unknown: frozenset[str] = frozenset()

    def __or__(self, other: "FoundEquations") -> "FoundEquations":
        """Return these mistakes, and those of another run in the activations that are unknown here and explained there."""
        explained = self.unknown - other.unknown
        more = {name: faults for name, faults in other.faults.items() if name not in self.faults} if explained else {}
        return FoundEquations({**self.faults, **more}, self.unknown & other.unknown)

    def applied(self, name: str, step: Step, context: FaultContext) -> Step:
        """Return the step `name` with the faults that were found in it."""
        for fault, value in self.faults.get(name, ()):
            step = fault.applied(step, context, value) or step
        return step


def found_equations(
    network: Network, values: Mapping[str, Array], wrong: Collection[str], legal: Sequence[Hypothesis], alpha: float
) -> FoundEquations:
    """Return the mistakes that explain the wrong activations of a run, up to the first that none explains.

    Args:
        network: the oracle's network.
        values: the exposed activations by name.
        wrong: names of the exposed activations that are wrong for the candidate's own inputs to them.
        legal: the hypotheses about the arithmetic.
        alpha: false-alarm probability of one activation.
    """
    faults: dict[str, list[Found]] = {}
    unknown, seen = set[str](), dict[str, Array]()
    for name in network.table:
        if name not in values:
            continue
        if name in wrong:
            known = list(chain.from_iterable(faults.values()))
            observation = Observation(network, name, values[name], dict(seen))
            found = [] if unknown else _mistakes(observation, legal, alpha, known)
            if not found:
                unknown.add(name)
            for step, mistake in found:
                faults.setdefault(step, []).append(mistake)
        seen[name] = values[name]
    return FoundEquations(faults, frozenset(unknown))


def _mistakes(
    observation: Observation, legal: Sequence[Hypothesis], alpha: float, known: Sequence[Found]
) -> list[tuple[str, Found]]:
    """Return the steps and mistakes that explain an activation; a known one, with the same number, is tried without a search."""
    repeated = _repeated(observation, legal, alpha, known)
    if repeated is not None:
        return [repeated]
    explanation = _explanation(observation, legal, alpha, {fault.name for fault, _ in known})
    each = explanation.faults if explanation else ()
    return [(found.step, (BY_NAME[found.name], found.estimate.value if found.estimate else None)) for found in each]


def _repeated(
    observation: Observation, legal: Sequence[Hypothesis], alpha: float, known: Sequence[Found]
) -> tuple[str, Found] | None:
    """Return the step and the known mistake that explains the activation by itself; None if there is none."""
    if observation.is_exact:
        return None
    segment, test = observation.whole.segment, LocalTest(observation, alpha, without_faults(observation))
    for (fault, step), one in product(faults_at_steps(segment), known):
        if one[0] == fault:
            faulty = direction(fault, step, segment, legal[0].arithmetic.storage).applied(one[1])
            if faulty is not None and any(test.of_array(hypothesis, faulty).passes for hypothesis in legal):
                return step, one
    return None


def _explanation(observation: Observation, legal: Sequence[Hypothesis], alpha: float, known: Collection[str]) -> Explanation | None:
    """Return the best explanation by mistakes of the catalogue, under the tightest arithmetic that has one; None without one."""
    judgements: Sequence[LocalJudgement]
    if observation.is_exact:
        judgements = (judge_exact_steps(observation, legal[0], alpha, "full"),)
    else:
        judgements = judge_locally(observation, legal, alpha, known=known)
    return next((e for local in judgements for e in local.explanations[:1] if is_of_catalogue(e)), None)


CORRECT = FoundEquations()  # no mistake


@dataclass(frozen=True)
class Accumulated:
    """Elementwise variance of the rounding errors accumulated by one correct run, and the last step's deterministic bound.

    Attributes:
        variance: variance of the accumulated error of each element.
        bound: largest deterministic error of the activation's own step; broadcasts to `variance`.
    """

    variance: Array
    bound: Array | float


def accumulated(
    network: Network,
    arithmetic: Arithmetic,
    captured: Mapping[str, Array] = {},
    found: FoundEquations = CORRECT,
) -> Mapping[str, Accumulated]:
    """Return the accumulated error of every activation; the recursion starts at the token ids and is first order, as in a segment.

    Each step's Jacobian and rounding errors are those at the candidate's own inputs to it, as far as it exposes them. If its
    forward pass is wrong, they differ by any factor from those at a correct BERT's values. The deterministic bound b of an earlier
    step enters as a variance b², because the signs of later weights are independent of that error.

    Args:
        network: the oracle's network.
        arithmetic: the arithmetic model.
        captured: the candidate's exposed activations by name; others are computed from these.
        found: the mistakes with which the candidate computes its steps.
    """
    values: dict[str, Array] = {}

    def steps() -> Iterator[tuple[str, Step]]:
        for name, row in network.table.items():
            right = network.step(name, *(values[p] for p in row.parents))
            step = found.applied(name, right, FaultContext(network, values, arithmetic.storage))
            values[name] = captured.get(name, step.value)
            yield name, step

    errors = accumulated_errors(network.table, steps(), {}, lambda _, step: step.roundings(arithmetic))
    return {
        name: Accumulated(np.broadcast_to(made.variance, values[name].shape), bound)
        for name, (made, bound) in zip(network.table, errors, strict=True)
    }
