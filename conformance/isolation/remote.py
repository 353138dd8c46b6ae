"""A candidate in a worker, as an implementation here: what judges it cannot tell it from one in this process."""

from collections.abc import Iterator
from functools import cache, partial
from typing import Any

from conformance.candidates.arrays import Described, Unreadable
from conformance.isolation.messages import Call, Failure, Head, Load, Next, Prepare, Read, Supports, Traits
from conformance.isolation.process import WorkerProcess
from conformance.model.architecture import Architecture
from conformance.model.batch import TorchBatch
from conformance.model.checkpoint import Checkpoint


class RemoteCandidate:
    """The candidate of that name, loaded in the worker.

    Raises:
        ConformanceError: it cannot be loaded, as `candidates.registry.load` raises it there.
        CandidateTimeout, CandidateCrash: its import does not end, or ends the process.

    Example:
        >>> from conformance.isolation.process import WorkerProcess
        >>> from conformance.isolation.serve import CandidateWork
        >>> with WorkerProcess(CandidateWork) as worker:
        ...     check(RemoteCandidate(worker, "hf-eager"), "tiny").outcome
        'pass'
    """

    def __init__(self, worker: WorkerProcess, name: str, *, unobserved: bool = False) -> None:
        self._worker, self.name, self._unobserved = worker, name, unobserved
        self._load()

    def _load(self) -> None:
        traits = asked(self._worker, Load(self.name))
        assert isinstance(traits, Traits)
        self.is_instrumented, self.known_failures = traits.is_instrumented, traits.known_failures
        self._process = self._worker.process

    def _require_loaded(self) -> None:
        """Load it again where its process has ended."""
        if self._worker.process is not self._process:
            self._load()

    @property
    def unobserved(self) -> "RemoteCandidate":
        """It without what looks into it, where it has such a form."""
        return RemoteCandidate(self._worker, self.name, unobserved=self.is_instrumented)

    def supports(self, architecture: Architecture, device: str, dtype: str) -> object:
        """None or a reason."""
        self._require_loaded()
        return asked(self._worker, Supports(architecture, device, dtype, self._unobserved))

    def prepare(self, checkpoint: Checkpoint, device: str, dtype: str) -> "RemoteRunner":
        """A runner; the worker asks for the parameters that the candidate reads."""
        self._require_loaded()
        names = tuple(checkpoint.weights)
        asked(self._worker, Prepare(checkpoint.architecture, names, device, dtype, self._unobserved), checkpoint)
        return RemoteRunner(self._worker, checkpoint)


class RemoteRunner:
    """A runner in a worker. What it yields is described first, and sent when it is read."""

    def __init__(self, worker: WorkerProcess, checkpoint: Checkpoint) -> None:
        self._worker, self._checkpoint, self._process = worker, checkpoint, worker.process

    def __call__(self, batch: TorchBatch) -> Iterator[tuple[Any, Any]]:
        """The pairs, each as it comes."""
        self._ask(Call(batch.numpy()))
        return self._pairs()

    def _pairs(self) -> Iterator[tuple[Any, Any]]:
        while isinstance(head := self._ask(Next()), Head):
            if head.unreadable:
                yield head.name, Unreadable(head.unreadable)
            else:
                read = cache(partial(self._ask, Read(head.number)))
                yield head.name, Described(head.dtype, head.shape, head.device, read)

    def _ask(self, question: object) -> object:
        if self._worker.process is not self._process:  # another one has not prepared it
            raise self._worker.failure
        return asked(self._worker, question, self._checkpoint)


def asked(worker: WorkerProcess, question: object, checkpoint: Checkpoint | None = None) -> object:
    """The answer of a worker; a failure there is raised here."""
    found = worker.ask(question, checkpoint.weights if checkpoint else None)
    if isinstance(found, Failure):
        raise found.kind(found.text)
    return found
