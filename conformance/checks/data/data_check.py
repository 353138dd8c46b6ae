"""The base of the checks of a candidate's pre-training data, which judge epochs of examples that are requested from it.

The examples are validated against the contract of `conformance.PretrainingData`.
What a pipeline draws at random is judged by binomial tests.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, ClassVar

import numpy as np

from conformance.checks.check import Count, CountingCheck, Request
from conformance.checks.contract import guarded, require_support
from conformance.checks.data.examples import CONVERSATIONS, Examples, examples_of, indexed_corpus
from conformance.errors import CandidateError, Unsupported, UsageError
from conformance.model.batch import Batch
from conformance.model.pretraining import NEXT, PretrainingCorpus, PretrainingData
from conformance.numerics.formats import Mask
from conformance.numerics.memo import IdentityKey
from conformance.numerics.thresholds import FALSE_ALARM, BinomialCount, sidak_share
from conformance.results.termination import call_candidate

_FEW = 2  # number of conversations; their pairs fill a typical batch of 32
# One of n utterances drawn at random is the next one with probability 1/n. In E epochs of n pairs, half of which are random, the
# probability that none of the random ones is the next one is (1 − 1/n)^(n E/2) < exp(−E/2), for every n.
_REPEATS = math.ceil(-math.log(FALSE_ALARM) / NEXT)


def require_data(candidate: Any) -> PretrainingData:
    """Return the candidate's pipeline; raise `Unsupported` if it has none, and `CandidateError` if its pipeline is invalid."""
    found = call_candidate(lambda: getattr(candidate, "pretraining_data", None))
    if found is None:
        raise Unsupported(
            "it has no pre-training data, that is, no attribute `pretraining_data` with a conformance.PretrainingData"
        )
    if not isinstance(found, PretrainingData):
        raise CandidateError(f"pretraining_data is of {type(found).__name__}, expected a conformance.PretrainingData")
    if found.conventions.next_label not in (0, 1):
        raise CandidateError(f"pretraining_data's next_label is {found.conventions.next_label}, expected 0 or 1")
    if not 0.0 < found.conventions.chosen < 1.0:
        raise CandidateError(f"pretraining_data's chosen is {found.conventions.chosen}, expected a share between 0 and 1, as 0.15")
    return found


def most_rows(corpus: PretrainingCorpus) -> int:
    """Return how many rows of an epoch are judged: two for each utterance, since it may begin a pair of either kind."""
    return 2 * sum(map(len, corpus.conversations))


def epoch_of(data: PretrainingData, corpus: PretrainingCorpus, epoch: int) -> Sequence[Batch]:
    """Return the batches of an epoch, with at most `most_rows` rows in total.

    Raises:
        CandidateCrash: if the pipeline raises.
        CandidateError: if the pipeline yields no batch, or yields something other than a batch of that corpus with labels.
    """
    found: list[Batch] = []
    left = most_rows(corpus)
    for batch in guarded(call_candidate(lambda: iter(data.batches(corpus, epoch)))):
        found.append(_accepted(batch, corpus, f"batch {len(found)} of epoch {epoch}").cut(slice(0, left)))
        left -= found[-1].size
        if not left:
            break
    if not found:
        texts = sum(map(len, corpus.conversations))
        raise CandidateError(f"epoch {epoch} of {texts} utterances has no batches: keep the last one, or put fewer rows in each")
    if len({batch.next_sentence_label is None for batch in found}) > 1:
        raise CandidateError(f"some batches of epoch {epoch} have a next_sentence_label and others have none")
    return found


def _accepted(given: Any, corpus: PretrainingCorpus, where: str) -> Batch:
    batch = given if isinstance(given, Batch) else call_candidate(lambda: _batch_of(given, where))
    if batch.labels is None:
        raise CandidateError(f"{where} has no labels, expected masked-LM labels of shape {batch.input_ids.shape}")
    if batch.length > corpus.length:
        raise CandidateError(f"{where} has rows of {batch.length} positions, expected {corpus.length} at most")
    if not 0 <= batch.input_ids.min() <= batch.input_ids.max() < len(corpus.vocabulary):
        raise CandidateError(f"{where} has ids beyond the vocabulary, expected 0 to {len(corpus.vocabulary) - 1}")
    return batch


def _batch_of(given: Any, where: str) -> Batch:
    try:
        return Batch.of(dict(given))
    except UsageError as error:
        raise CandidateError(f"{where}: {error}") from error


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


class DataCheck(CountingCheck):
    """A check of a property that the examples of every candidate must have.

    Its function, of the examples and the false-alarm probability, yields one sentence per violated property; it raises
    `NotApplicable` with the reason if the property is not defined for these examples.
    """

    inputs: ClassVar[str] = (
        "examples that the candidate makes of a corpus in which each pair of neighbouring tokens occurs only once"
    )

    def wrong(self, request: Request, count: Count) -> str:
        """Request the examples and return what is wrong with them."""
        require_support(request.candidate, request.golden, request.case.device, request.case.dtype)
        epochs = _epochs(IdentityKey(request.candidate))
        count.tried = len(epochs.first.ids)
        return "; ".join(self.function(epochs, sidak_share(request.runs)))


@lru_cache(maxsize=1)
def _epochs(candidate: IdentityKey[Any]) -> Epochs:
    """Return the candidate's examples, cached because the data checks of one candidate run in succession."""
    return Epochs(candidate.value)


@dataclass(frozen=True)
class DescribedCount(BinomialCount):
    """A count with its description.

    Attributes:
        trials: the trials as a plural noun, for example "tokens of the corpus".
        what: the success as a predicate, for example "are chosen".
    """

    trials: str
    what: str

    @classmethod
    def of(cls, trials: str, what: str, came_out: Any, probability: float) -> "DescribedCount":
        """Return the count of an array of trials, true where a trial is a success."""
        return cls(int(np.count_nonzero(came_out)), np.size(came_out), probability, trials, what)

    def sentence(self, alpha: float) -> str:
        """Return a sentence with the count and the bounds that chance keeps to at a false-alarm probability of alpha."""
        low, high = self.bounds(alpha)
        bounds = f"{low} to {high} are within chance at a probability of {self.probability:.4g}"
        return f"{self.found} of {self.total} {self.trials} {self.what}, where {bounds}"


def beyond_chance(rates: Sequence[DescribedCount], agreements: Sequence[DescribedCount], total: float) -> Iterator[str]:
    """Return an iterator over sentences for the counts that chance does not explain.

    The probability that two draws agree is known only if the rates are right, so agreements are reported only if no rate is wrong.
    The exception is pairs that all agree: they are repetitions of one draw, which invalidates the tests of the rates, and are
    reported instead of the rates.

    Example:
        >>> right, wrong = (Count(n, 1000, 0.15, "tokens", "are chosen") for n in (150, 300))
        >>> pairs = Count(400, 500, 0.745, "pairs", "agree")
        >>> list(beyond_chance([right], [pairs], 1e-6))
        []
        >>> list(beyond_chance([wrong], [pairs], 1e-6))
        ['300 of 1000 tokens are chosen, where 96 to 209 are within chance at a probability of 0.15']
    """
    alpha = sidak_share(len(rates) + len(agreements), total)
    wrong, alike = ([count for count in counts if not count.is_chance(alpha)] for counts in (rates, agreements))
    is_idle = any(count.found in (0, count.total) for count in wrong)  # if an event never or always happens, all pairs agree
    repeated = [] if is_idle else [count for count in alike if count.is_every]
    return (count.sentence(alpha) for count in repeated or wrong or alike)


def wrong_rows(examples: Examples, wrong: Mask, what: str) -> Iterator[str]:
    """Yield a sentence with the number of wrong rows and the first of them, if a row (R,) or a position (R, S) is wrong."""
    rows = np.flatnonzero(wrong if wrong.ndim == 1 else wrong.any(1))
    if rows.size:
        shown = " ".join(examples.corpus.given.vocabulary[i] for i in examples.ids[rows[0]])
        yield f"in {rows.size} of {len(examples.ids)} rows {what}; the first is row {rows[0]}: {shown}"
