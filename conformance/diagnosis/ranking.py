"""The order in which `diagnose` reports the explanations of a black box's outputs."""

from collections.abc import Sequence

from conformance.diagnosis.black_box_case import BlackBoxCase
from conformance.diagnosis.judgement import Agreement
from conformance.diagnosis.printed_problem import PrintedTrial
from conformance.faults import CATALOGUE
from conformance.judge.search.problem import FittedFaults

_ORDER = {fault.name: i for i, fault in enumerate(CATALOGUE)}


def ranked_trials(case: BlackBoxCase, trials: Sequence[PrintedTrial], best: Agreement) -> list[tuple[PrintedTrial, bool]]:
    """Return the trials in order, each with whether it is tied with the first.

    Trials that explain the numbers come first, those that need a larger sigma after the others; then trials are ordered by cost:
    the nll plus the evidence threshold for each fault, fitted number, other input, and pooling that was not asked for. Of the
    trials tied with the first, those with the fewest of these come first, then those with the widest reach, then the
    catalogue's order holds.
    """
    if not trials:
        return []
    evidence_threshold = case.limits(best.pooling_index).evidence_threshold

    def cost(t: PrintedTrial) -> float:
        """Return the nll plus the evidence threshold for each of these."""
        return t.agreement.nll + evidence_threshold * (t.complexity + (t.agreement.pooling_index not in case.pooling_indices))

    ordered = sorted(trials, key=lambda t: (not t.explains, t.loose, cost(t)))
    first = ordered[0]
    tied = [
        t
        for t in ordered
        if first.explains
        and (t.explains, t.loose) == (True, first.loose)
        and cost(t) - cost(first) < evidence_threshold
        and t.complexity <= first.complexity
    ]
    tied.sort(key=lambda t: (t.complexity, sum(s.reach for s in t.fit.placements), _catalogued(t.fit)))
    return [*((t, True) for t in tied), *((t, False) for t in ordered if t not in tied)]


def _catalogued(fit: FittedFaults) -> list[int]:
    return [_ORDER[s.fault.name] for s in fit.placements]
