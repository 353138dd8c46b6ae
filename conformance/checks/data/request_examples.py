"""Request examples from a candidate and validate them against the contract of `conformance.PretrainingData`."""

from collections.abc import Sequence
from typing import Any

from conformance.checks.contract import guarded
from conformance.errors import CandidateError, Unsupported, UsageError
from conformance.model.batch import Batch
from conformance.model.pretraining import PretrainingCorpus, PretrainingData
from conformance.results.termination import call_candidate


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
