"""The epochs of examples that a candidate is asked for."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from conformance.checks.data.asking import epoch_of, require_data
from conformance.checks.data.corpus import CONVERSATIONS, indexed_corpus
from conformance.checks.data.examples import Examples, examples_of
from conformance.judge.statistics import FALSE_ALARM
from conformance.model.pretraining import NEXT

_FEW = 2  # conversations, whose pairs fill a usual batch of 32
# A random one of n utterances is the next with probability 1/n. Of E epochs of n pairs half have a random one: that none of them is
# the next has the probability (1 − 1/n)^(n E/2), less than exp(−E/2), whatever n is.
_REPEATS = math.ceil(-math.log(FALSE_ALARM) / NEXT)


@dataclass(frozen=True)
class Epochs:
    """A candidate's examples, made when they are first looked at.

    Raises, when they are:
        Unsupported: it brings no pre-training data.
        CandidateFailure: as `epoch_of` raises it.

    Attributes:
        candidate: the implementation.
        seed: that of the corpus.
    """

    candidate: Any
    seed: int = 0

    @cached_property
    def first(self) -> Examples:
        """Those of the first epoch."""
        return self._examples(range(1), CONVERSATIONS)

    @cached_property
    def second(self) -> Examples | None:
        """Those of the second epoch, where the candidate says that it chooses tokens anew; else None."""
        return self._examples(range(1, 2), CONVERSATIONS) if self.first.conventions.dynamic else None

    @cached_property
    def of_few(self) -> Examples:
        """Those of many epochs of a small corpus, together: what happens to one in n rows of n utterances is frequent there."""
        return self._examples(range(_REPEATS), _FEW)

    def _examples(self, epochs: Iterable[int], conversations: int) -> Examples:
        data, corpus = require_data(self.candidate), indexed_corpus(self.seed, conversations)
        batches = [batch for i in epochs for batch in epoch_of(data, corpus.given, i)]
        return examples_of(batches, corpus, data.conventions)
