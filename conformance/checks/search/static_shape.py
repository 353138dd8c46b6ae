"""Whether a candidate runs at one length or batch size alone, as a program does that was exported with static shapes."""

from collections.abc import Mapping

from conformance.checks.search.subject import Subject
from conformance.errors import CandidateCrash, CandidateError
from conformance.model.batch import Batch


def static_shape(subject: Subject, batches: Mapping[str, Batch]) -> str:
    """Which size is static, as the beginning of a sentence, where the largest of these batches runs and no smaller one does."""
    whole = max(batches.values(), key=lambda batch: batch.input_ids.size)
    if not _runs(subject, whole):
        return ""
    for what, size, cut in (("length", whole.length, _shorter), ("batch size", whole.size, _fewer)):
        # Not 1 where there are others: what is of one length is broadcast over it, and runs, and is wrong.
        smaller = sorted({2, (size + 1) // 2, size - 1} - {0, 1, size}) or [1] * (size > 1)
        if smaller and not any(_runs(subject, cut(whole, n)) for n in smaller):
            tried = ", ".join(map(str, smaller))
            return f"its {what} is baked in: it runs at {size}, and at no other that was tried ({tried}); "
    return ""


def _runs(subject: Subject, batch: Batch) -> bool:
    """Whether the candidate keeps the contract on that batch."""
    try:
        subject.run(batch)
    except (CandidateError, CandidateCrash):
        return False
    return True


def _shorter(batch: Batch, length: int) -> Batch:
    inputs = ("input_ids", "token_type_ids", "attention_mask")
    return Batch.of({name: array[:, :length] for name, array in batch.arrays().items() if name in inputs})


def _fewer(batch: Batch, size: int) -> Batch:
    return Batch.of({name: array[:size] for name, array in batch.arrays().items()})
