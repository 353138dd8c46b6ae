"""The equations by which a candidate computes its wrong steps, as far as mistakes of the catalogue explain them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from conformance.faults import BY_NAME, Fault, FaultContext
from conformance.judge.evidence import Explanation, LocalJudgement
from conformance.judge.explanation_search import is_of_catalogue
from conformance.judge.failing_activation import judge_exact_steps
from conformance.judge.local_error import judge_locally
from conformance.judge.observation import Observation
from conformance.numerics.arithmetic import Hypothesis
from conformance.numerics.formats import Array
from conformance.oracle import Network, Step


@dataclass(frozen=True, eq=False)
class FoundEquations:
    """The mistakes found in one run of a candidate.

    Attributes:
        faults: by the name of a step, its faults, each with the value of its parameter or None.
        unknown: names of the wrong activations that no mistakes of the catalogue explain, and of those after the first of them.
    """

    faults: Mapping[str, Sequence[tuple[Fault, float | None]]] = field(default_factory=dict)
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
    faults: dict[str, list[tuple[Fault, float | None]]] = {}
    unknown, seen = set[str](), dict[str, Array]()
    for name in network.table:
        if name not in values:
            continue
        if name in wrong:
            known = {fault.name for of_step in faults.values() for fault, _ in of_step}
            observation = Observation(network, name, values[name], dict(seen))
            explanation = None if unknown else _explanation(observation, legal, alpha, known)
            if explanation is None:
                unknown.add(name)
            for found in explanation.faults if explanation else ():
                number = found.estimate.value if found.estimate else None
                faults.setdefault(found.step, []).append((BY_NAME[found.name], number))
        seen[name] = values[name]
    return FoundEquations(faults, frozenset(unknown))


def _explanation(observation: Observation, legal: Sequence[Hypothesis], alpha: float, known: Collection[str]) -> Explanation | None:
    """Return the best explanation by mistakes of the catalogue, under the tightest arithmetic that has one; None without one."""
    judgements: Sequence[LocalJudgement]
    if observation.is_exact:
        judgements = (judge_exact_steps(observation, legal[0], alpha, "full"),)
    else:
        judgements, _ = judge_locally(observation, legal, alpha, known=known)
    return next((e for local in judgements for e in local.explanations[:1] if is_of_catalogue(e)), None)
