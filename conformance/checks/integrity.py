"""Whether what a candidate is judged by is the same before and after it ran, where both are in one process."""

from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakValueDictionary

from conformance.candidates.registry import Isolated
from conformance.errors import CandidateError, FixtureError
from conformance.goldens.golden import Golden, forget_checkpoints, stored_arrays
from conformance.model.checkpoint import Checkpoint
from conformance.model.digest import content_digest

_ALTERED: WeakValueDictionary[int, Checkpoint] = WeakValueDictionary()  # by identity


@contextmanager
def unaltered(golden: Golden, candidate: object) -> Iterator[None]:
    """Around all that a candidate does: compare the digests of weights, batches and stored activations before and after.

    A candidate in a process of its own cannot reach them, so that nothing is computed for it.

    Raises:
        CandidateError: they are not the same after it; no check in this process uses that checkpoint again.
        FixtureError: another candidate altered the checkpoint before.
    """
    if isinstance(candidate, Isolated):
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
