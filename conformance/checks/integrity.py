"""Detection of candidates that alter, in the memory of a shared process, the data by which they are judged."""

from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakValueDictionary

from conformance.candidates.registry import Isolated
from conformance.checks.viewed_candidate import without_view
from conformance.errors import CandidateError, FixtureError
from conformance.goldens.golden import Golden, forget_checkpoints, stored_arrays
from conformance.model.checkpoint import Checkpoint
from conformance.model.digest import content_digest

_ALTERED: WeakValueDictionary[int, Checkpoint] = WeakValueDictionary()  # by `id`


@contextmanager
def unaltered(golden: Golden, candidate: object) -> Iterator[None]:
    """Compare the digests of weights, batches and stored activations before and after the body, which runs the candidate.

    A candidate in a process of its own cannot alter them, so no digest is computed for it.

    Raises:
        CandidateError: if a digest changed; no check in this process uses that checkpoint again.
        FixtureError: if another candidate altered the checkpoint before.
    """
    if isinstance(without_view(candidate), Isolated):
        yield
        return
    checkpoint = golden.checkpoint
    if id(checkpoint) in _ALTERED:
        raise FixtureError(
            f"the weights of {golden.name} were altered by a candidate that ran in this process before: open it anew, or run "
            "candidates in processes of their own (`bert-conformance run`)"
        )
    weights, stored = checkpoint.digest, _stored(golden)
    try:
        yield
    finally:
        altered = [
            what
            for what, before, after in (
                ("weights", weights, content_digest(checkpoint.weights)),
                ("batches or activations", stored, _stored(golden)),
            )
            if before != after
        ]
        if altered:
            _ALTERED[id(checkpoint)] = checkpoint
            forget_checkpoints()
            raise CandidateError(f"it alters the {' and '.join(altered)} that it is judged by, in the memory of this process")


def _stored(golden: Golden) -> str:
    return content_digest(stored_arrays(golden.batches, golden.activations))
