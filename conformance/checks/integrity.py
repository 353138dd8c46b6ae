"""Detection of candidates that alter the data by which they are judged: files, or the memory of a shared process."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from weakref import WeakValueDictionary

from conformance.candidates.registry import Isolated
from conformance.errors import CandidateError, FixtureError
from conformance.goldens.golden import Golden, forget_checkpoints, stored_arrays
from conformance.model.checkpoint import Checkpoint, content_digest
from conformance.model.files import Stamp, stamps_of

_ALTERED: WeakValueDictionary[int, Checkpoint] = WeakValueDictionary()  # by `id`
_REWRITTEN: dict[Path, Stamp | None] = {}  # files of goldens that were changed during a check, as that check left them


@contextmanager
def unaltered(golden: Golden, candidate: object) -> Iterator[None]:
    """Compare what a golden is read from and consists of before and after the body, which runs the candidate.

    These are its files, and the digests of weights, batches and stored activations; a candidate in a process of its own cannot
    alter the latter, so no digest is computed for it.

    Raises:
        CandidateError: if a digest changed; no check in this process uses that checkpoint again.
        FixtureError: if another candidate altered the checkpoint before, or a file is not as it was when the golden was opened.
    """
    _require_files(golden)
    try:
        with _unaltered_in_memory(golden, candidate):
            yield
    finally:
        _require_files(golden)


def _require_files(golden: Golden) -> None:
    """Raise `FixtureError` if a golden's file was changed after it was opened, or before it by a check in this process."""
    now = stamps_of(golden.files)
    _REWRITTEN.update({path: stamp for path, stamp in now.items() if stamp != golden.files[path]})
    rewritten = [str(path) for path, stamp in now.items() if path in _REWRITTEN and _REWRITTEN[path] == stamp]
    if rewritten:
        raise FixtureError(
            f"{' and '.join(rewritten)} of the golden {golden.name} changed while a check ran, by its candidate or by another "
            "program, so that nothing is judged; restore the original, keep others from writing there, and run again"
        )


@contextmanager
def _unaltered_in_memory(golden: Golden, candidate: object) -> Iterator[None]:
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
