"""A check of a candidate's pre-training data."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from conformance.checks.check import CheckRequest
from conformance.checks.data.epochs import Epochs
from conformance.checks.search.identity_key import IdentityKey
from conformance.checks.session import require_support
from conformance.judge.statistics import share
from conformance.results.result import Result, Searched
from conformance.results.termination import Termination, run_guarded


@dataclass(frozen=True)
class DataCheck:
    """What holds of every candidate's examples.

    Attributes:
        violations: of the examples and the probability of a false alarm, a sentence for each property that does not hold; raises
            `NotApplicable` with the reason where it says nothing of such examples.
    """

    violations: Callable[[Epochs, float], Iterable[str]]

    def __call__(self, request: CheckRequest) -> Result:
        """Ask for the examples and judge them; nothing is raised."""
        case, rows = request.case, 0

        def judged() -> Termination:
            nonlocal rows
            require_support(request.candidate, request.golden, case.device, case.dtype)
            epochs = _epochs(IdentityKey(request.candidate))
            rows = len(epochs.first.ids)
            found = list(self.violations(epochs, share(request.runs)))
            return Termination("fail", "; ".join(found), 1) if found else Termination("pass")

        termination = run_guarded(judged)
        return termination.result(case, executed=rows > 0 and termination.is_judged, searched=Searched(rows))


@lru_cache(maxsize=1)
def _epochs(candidate: IdentityKey[Any]) -> Epochs:
    """Kept for the checks that come one after the other."""
    return Epochs(candidate.value)
