"""Detection of candidates that run at only one length or batch size, like a program exported with static shapes."""

from collections.abc import Mapping
from contextlib import suppress

import numpy as np

from conformance.checks.search.subject import Subject
from conformance.errors import CandidateCrash, CandidateEnded, CandidateError
from conformance.model.batch import Batch


def static_shape(subject: Subject, batches: Mapping[str, Batch]) -> str:
    """Return a message on the static size if the largest batch runs and no smaller version of it does; otherwise empty text.

    The largest must run after those as well. A candidate whose process ends is not known to have a static size.
    """
    with suppress(CandidateEnded):
        return _static_shape(subject, batches)
    return ""


def _static_shape(subject: Subject, batches: Mapping[str, Batch]) -> str:
    whole = max(batches.values(), key=lambda batch: batch.input_ids.size)
    if not _runs(subject, whole):
        return ""
    for what, size, cut in (("length", whole.length, shorter), ("batch size", whole.size, fewer)):
        # Size 1 is used only if there is no other, since broadcasting would let it run with a wrong result.
        smaller = sorted({2, (size + 1) // 2, size - 1} - {0, 1, size}) or [1] * (size > 1)
        if smaller and not any(_runs(subject, cut(whole, n)) for n in smaller) and _runs(subject, whole):
            return fixed_size(what, size, f" ({', '.join(map(str, smaller))})")
    return ""


def fixed_size(what: str, size: int, tried: str = "") -> str:
    """Return the start of a message on a candidate that runs at one length or batch size (`what`) only."""
    return f"its {what} is fixed: it runs at {size}, and at no other that was tried{tried}; "


def _runs(subject: Subject, batch: Batch) -> bool:
    """Return whether the candidate runs a batch without violating the contract."""
    try:
        subject.run(batch)
    except CandidateEnded:
        raise
    except (CandidateError, CandidateCrash):
        return False
    return True


def shorter(batch: Batch, length: int) -> Batch:
    """Return the first tokens of each row of a batch."""
    return batch.at(np.arange(length))


def fewer(batch: Batch, size: int) -> Batch:
    """Return the first rows of a batch."""
    return Batch.of({name: array[:size] for name, array in batch.arrays().items()})
