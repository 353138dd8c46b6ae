"""A check of a pipeline's examples: of one epoch, or of two where it chooses tokens anew in every one."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from conformance.candidates.torch_state import restored
from conformance.checks.check import CheckRequest
from conformance.checks.data.asking import epoch_of, require_data
from conformance.checks.data.corpus import indexed_corpus
from conformance.checks.data.examples import Examples, examples_of
from conformance.checks.search.identity_key import IdentityKey
from conformance.checks.session import require_support
from conformance.judge.statistics import share
from conformance.results.result import Result, Searched
from conformance.results.termination import Termination, run_guarded

Epochs = Sequence[Examples]
Violations = Callable[[Epochs, float], Iterable[str]]


@dataclass(frozen=True)
class DataCheck:
    """What holds of every example.

    Attributes:
        violations: of the epochs and the probability of a false alarm, a sentence for each property that does not hold; raises
            `NotApplicable` with the reason where it says nothing of such examples.
    """

    violations: Violations

    def __call__(self, request: CheckRequest) -> Result:
        """Ask for the examples and judge them; nothing is raised."""
        start, searched = time.perf_counter(), Searched()

        def judged() -> Termination:
            nonlocal searched
            case, candidate = request.case, request.candidate
            require_support(candidate, request.golden.checkpoint, case.device, case.dtype)
            epochs, seconds = _epochs(IdentityKey(candidate))
            searched = Searched(sum(len(each.ids) for each in epochs), candidate=seconds)
            found = list(self.violations(epochs, share(request.runs)))
            return Termination("fail", "; ".join(found), 1) if found else Termination("pass")

        with restored():
            ending = run_guarded(judged)
        return Result(
            request.case,
            ending.outcome,
            ending.reason,
            ending.exit_code,
            ending.declared,
            executed=searched.tried > 0 and ending.outcome in ("pass", "fail"),
            seconds=time.perf_counter() - start,
            searched=searched,
        )


def epochs_of(candidate: Any, seed: int = 0) -> Epochs:
    """A candidate's examples of the corpus of a seed.

    Raises:
        Unsupported: it brings no pre-training data.
        CandidateFailure: as `epoch_of` raises it.
    """
    data, corpus = require_data(candidate), indexed_corpus(seed)
    numbers = range(1 + data.conventions.dynamic)
    return [examples_of(epoch_of(data, corpus.given, i), corpus, data.conventions) for i in numbers]


@lru_cache(maxsize=1)
def _epochs(candidate: IdentityKey[Any]) -> tuple[Epochs, float]:
    """Made once for the checks that come one after the other, and the seconds that it took."""
    start = time.perf_counter()
    found = epochs_of(candidate.value)
    return found, time.perf_counter() - start
