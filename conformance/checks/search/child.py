"""Call a candidate in a child process, with inputs that may end the process or break the device's context."""

import multiprocessing
from typing import Any

from conformance.candidates.registry import load_implementation
from conformance.checks.search.subject import Subject
from conformance.errors import CandidateError, ConformanceError, FixtureError, Unsupported
from conformance.model.batch import Batch
from conformance.numerics.devices import is_whole

_SECONDS = 300  # time limit of the process; includes a cold start of a device and a compiler's first run
_ACCEPTED, _REFUSED = 10, 11  # exit codes that neither Python nor a signal uses


def answers_in_a_child(subject: Subject, batch: Batch) -> bool:
    """Return whether the candidate completes the batch in a child process instead of raising or ending the process.

    Raises:
        Unsupported: if the candidate cannot be sent to another process.
        CandidateError: if the candidate exceeds the time limit.
        FixtureError: if the process could not be prepared.
    """
    import pickle

    candidate = subject.name if _is_loadable(subject) else subject.candidate
    try:
        sent = pickle.dumps((candidate, subject.golden, subject.device, subject.dtype, batch.arrays()))
    except Exception as error:
        raise Unsupported(f"it can be asked in a process of its own alone, and cannot be sent there: {error}") from error
    process = multiprocessing.get_context("spawn").Process(target=_ask, args=(sent,))
    process.start()
    process.join(_SECONDS)
    if process.is_alive():
        process.kill()
        raise CandidateError(f"no answer within {_SECONDS} s to what must be refused")
    if process.exitcode == 1:  # Python's exit code for an exception before the candidate was called
        raise FixtureError("the process in which the candidate was to be asked could not be made ready; its error is above")
    return process.exitcode == _ACCEPTED


def _is_loadable(subject: Subject) -> bool:
    """Return whether the subject's name loads the same candidate."""
    try:
        return load_implementation(subject.name) is subject.candidate
    except ConformanceError:
        return False


def _ask(sent: bytes) -> Any:
    import os
    import pickle

    from conformance.goldens.custom_golden import open_golden

    found, golden, device, dtype, arrays = pickle.loads(sent)
    candidate = load_implementation(found) if isinstance(found, str) else found
    subject = Subject.prepared(candidate, open_golden(golden).checkpoint, device, dtype, golden)
    accepted = subject.answers(Batch.of(arrays)) and is_whole(device)
    os._exit(_ACCEPTED if accepted else _REFUSED)
