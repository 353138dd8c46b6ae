"""Search for mistakes in the layers that a candidate does not expose between one exposed activation and the next.

A port that makes a mistake makes it in every layer. If each layer is exposed, each failure is named on its own. If no layer is
exposed, there is a single failure, caused by all layers together. It is searched in the same way as the outputs of a black box:
each fault everywhere it can act, in one kind of place, in one layer or at one place, and sets of two and three faults.
"""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from conformance.diagnosis.black_box import BlackBox, PrintedNumbers
from conformance.diagnosis.explanations import BlackBoxCase, JudgedCase
from conformance.diagnosis.judgement import JudgedForward
from conformance.diagnosis.problem import Filtered, PrintedProblem, effect_of_fault
from conformance.judge.evidence import Explanation, FilterResult, LocalJudgement
from conformance.judge.fault_directions import Direction
from conformance.judge.filters import is_gross, project
from conformance.judge.observation import Observation
from conformance.judge.search.placements import FaultPlacement
from conformance.judge.search.problem import FittedFaults
from conformance.judge.threads import on_all_cores
from conformance.model.checkpoint import Checkpoint
from conformance.numerics.arithmetic import hypotheses
from conformance.numerics.function_error_bounds import FunctionErrorBounds

# Number of searches of all faults in a run; one costs hundreds of passes, and a port makes a mistake everywhere it can.
SEARCHES = 2


class UnexposedLayersSearch:
    """The search in unexposed layers, for the activations of one candidate in all batches of a run.

    Faults that explained other activations are tried first; all others are tried for the first `SEARCHES` failures only.
    """

    def __init__(self, dtype: str, device: str = "cpu", functions: FunctionErrorBounds | None = None) -> None:
        """Start without known faults.

        Args:
            dtype: name of the format that the candidate was asked for.
            device: the device that it was asked for.
            functions: error bounds of the library functions where the candidate ran; default: the table.
        """
        self._dtype = dtype
        self._legal = partial(hypotheses, device=device, functions=functions)
        self._left = SEARCHES
        self._found: set[str] = set()

    def explanations(
        self, observation: Observation, known: Collection[str], detected: Sequence[Direction]
    ) -> tuple[Explanation, ...]:
        """Return the sets of faults that explain an activation, the best first; empty if there are none.

        The activation does not distinguish between these sets.

        Args:
            observation: the activation.
            known: names of the faults that explained other activations of the batch.
            detected: the faults whose filters found that the residual is not noise; under an explanation they must not find it.
        """
        case = self._case(observation)
        base, known = case.arithmetics[0], self._found.union(known)
        (part,) = case.network.reading.parts
        effects = tuple(Filtered(look.fault.name, math.inf, look.known_effect.reshape(-1)[part.flat]) for look in detected)
        judged = JudgedCase(case, base, base.best(), filters=effects)
        explanations: tuple[Explanation, ...] = ()
        if known:
            explanations = _explanations(judged, [p for p in case.right.placements if p.fault.name in known])
        if not explanations and self._left:
            self._left -= 1
            explanations = _explanations(judged, case.right.placements)
        self._found.update(fault.name for explanation in explanations for fault in explanation.faults)
        return explanations

    def with_layer_filters(self, observation: Observation, locals_: Sequence[LocalJudgement]) -> tuple[LocalJudgement, ...]:
        """Return the judgements; those that pass get a filter for each fault that has none.

        The filter is derived from the fault's largest error if it acted everywhere it can. A fault that is not gross
        (`filters.is_gross`) on the searched part of the batch does not count as separable, since its own filter is not evaluated.
        """
        case, known = self._case(observation), {f.name for local in locals_ for f in local.filters}
        part = PrintedProblem(case.arithmetics[0]).part(()).right
        absent = [placement for placement in part.filtered if placement.fault.name not in known]
        bases = {base.hypothesis.arithmetic.name: JudgedForward(part, base.hypothesis).sigma[0] for base in case.arithmetics}
        widest = np.max(list(bases.values()), axis=0)
        effects_of_absent = on_all_cores(lambda placement: effect_of_fault(part, placement, None, 0), absent)

        def filters(local: LocalJudgement) -> Iterator[FilterResult]:
            sigma, limit = bases.get(local.arithmetic, widest), local.max_threshold
            for placement, change in zip(absent, effects_of_absent, strict=True):
                if change is not None:
                    z = float((np.abs(change) / sigma).max())
                    seen = z if is_gross(z, limit) else min(z, limit)
                    yield FilterResult(placement.fault.name, placement.places[0], 0.0, 0.0, seen)

        return tuple(replace(one, filters=(*one.filters, *filters(one))) if one.passes else one for one in locals_)

    def _case(self, observation: Observation) -> BlackBoxCase:
        """Return the activation as the output of a black box, whose inputs are the activations captured before it."""
        network, block = observation.network, observation.whole
        outputs = {observation.name: PrintedNumbers(block.actual, np.zeros(block.actual.shape))}
        black_box = BlackBox(
            network.architecture, network.weights, network.batch, outputs, leaves=block.segment.leaves, kept=network.kept
        )
        checkpoint = Checkpoint(network.architecture, network.weights)
        return BlackBoxCase(checkpoint, black_box, self._dtype, legal=self._legal)


def _explanations(judged: JudgedCase, tried: Sequence[FaultPlacement]) -> tuple[Explanation, ...]:
    """Return the explanations by some placements of faults; of sets with the same faults, that with the widest reach."""
    explanations: dict[frozenset[str], Explanation] = {}
    for trial, is_tied in judged.ranked(judged.trials(tried)):
        faults = tuple(_faults(judged, trial.fit)) if is_tied else ()
        if faults:
            explanation = Explanation(faults, trial.free, trial.agreement.nll, not trial.free)
            explanations.setdefault(frozenset(f.name for f in faults), explanation)
    return tuple(explanations.values())


def _faults(judged: JudgedCase, fit: FittedFaults) -> Iterator[FilterResult]:
    """Yield each fault at each of its places, with the evidence of all its places together while the other faults are in place."""
    problem = judged.problem
    with_all = problem.value(fit.placements)[0]
    for index, (placement, estimate) in enumerate(zip(fit.placements, problem.estimates(fit), strict=True)):
        others = problem.value([*fit.placements[:index], *fit.placements[index + 1 :]])[0]
        projection = project(problem.actual - others, with_all - others, judged.base.noise(0))
        if projection is not None:
            for place in placement.places:
                yield projection.result(placement.fault.name, place, detected=True, estimate=estimate)
