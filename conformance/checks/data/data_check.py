"""The base of the checks of a candidate's pre-training data.

They judge epochs of examples that are requested from the candidate.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from conformance.checks.check import CheckRequest
from conformance.checks.contract import require_support
from conformance.checks.counted import Tried, counted
from conformance.checks.data.corpus import CONVERSATIONS, indexed_corpus
from conformance.checks.data.examples import Examples, examples_of
from conformance.checks.data.request_examples import epoch_of, require_data
from conformance.model.pretraining import NEXT
from conformance.numerics.memo import IdentityKey
from conformance.numerics.thresholds import FALSE_ALARM, sidak_share
from conformance.results.result import Result

_FEW = 2  # number of conversations; their pairs fill a typical batch of 32
# One of n utterances drawn at random is the next one with probability 1/n. In E epochs of n pairs, half of which are random, the
# probability that none of the random ones is the next one is (1 − 1/n)^(n E/2) < exp(−E/2), for every n.
_REPEATS = math.ceil(-math.log(FALSE_ALARM) / NEXT)


@dataclass(frozen=True)
class Epochs:
    """A candidate's examples, each epoch requested at the first access of its property.

    The properties raise `Unsupported` if the candidate provides no pre-training data, and `CandidateFailure` as `epoch_of` does.

    Attributes:
        candidate: the implementation.
        seed: the seed of the corpus.
    """

    candidate: Any
    seed: int = 0

    @cached_property
    def first(self) -> Examples:
        """The examples of the first epoch."""
        return self._examples(range(1), CONVERSATIONS)

    @cached_property
    def second(self) -> Examples | None:
        """The examples of the second epoch; None if the candidate does not declare dynamic masking."""
        return self._examples(range(1, 2), CONVERSATIONS) if self.first.conventions.dynamic else None

    @cached_property
    def of_few(self) -> Examples:
        """The examples of many epochs of a small corpus, where events that occur once in n rows of n utterances are frequent."""
        return self._examples(range(_REPEATS), _FEW)

    def _examples(self, epochs: Iterable[int], conversations: int) -> Examples:
        data, corpus = require_data(self.candidate), indexed_corpus(self.seed, conversations)
        batches = [batch for i in epochs for batch in epoch_of(data, corpus.given, i)]
        return examples_of(batches, corpus, data.conventions)


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
