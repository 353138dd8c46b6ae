"""The base of the checks of a candidate's pre-training data."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from conformance.checks.check import CheckRequest
from conformance.checks.contract import require_support
from conformance.checks.counted import Tried, counted
from conformance.checks.data.epochs import Epochs
from conformance.checks.search.identity_key import IdentityKey
from conformance.numerics.thresholds import sidak_share
from conformance.results.result import Result


@dataclass(frozen=True)
class DataCheck:
    """A check of a property that the examples of every candidate must have.

    Attributes:
        violations: function of the examples and the false-alarm probability that yields one sentence per violated property; raises
            `NotApplicable` with the reason if the property is not defined for these examples.
    """

    violations: Callable[[Epochs, float], Iterable[str]]

    def __call__(self, request: CheckRequest) -> Result:
        """Request the examples, judge them and return the result; no exception is raised."""

        def wrong(tried: Tried) -> str:
            require_support(request.candidate, request.golden, request.case.device, request.case.dtype)
            epochs = _epochs(IdentityKey(request.candidate))
            tried.count = len(epochs.first.ids)
            return "; ".join(self.violations(epochs, sidak_share(request.runs)))

        return counted(request.case, wrong)


@lru_cache(maxsize=1)
def _epochs(candidate: IdentityKey[Any]) -> Epochs:
    """Return the candidate's examples, cached because the data checks of one candidate run in succession."""
    return Epochs(candidate.value)
