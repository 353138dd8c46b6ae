"""Candidates in a worker, with the interface of an implementation: the judge treats them like candidates in this process."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import fields
from functools import cache, partial
from itertools import islice
from math import prod
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

from conformance.candidates.arrays import Described, Unreadable
from conformance.candidates.capture import is_at_once
from conformance.candidates.registry import Isolated
from conformance.checks.data.data_check import most_rows
from conformance.checks.search.subject import IsolatedRunner, Subject
from conformance.checks.search.surroundings import ModuleState, Surroundings
from conformance.errors import CandidateEnded, CandidateError, UsageError
from conformance.isolation.candidate_work import CandidateWork
from conformance.isolation.messages import (
    TOGETHER,
    WIDEST_ELEMENT,
    Conventions,
    Done,
    Epoch,
    Found,
    Head,
    Heads,
    Message,
    ProjectError,
    Question,
    Reason,
    TokenizerReading,
    Traits,
)
from conformance.isolation.worker_process import Reply, WorkerProcess
from conformance.model.architecture import Architecture
from conformance.model.batch import Batch, TorchBatch
from conformance.model.checkpoint import Checkpoint
from conformance.model.pretraining import PretrainingCorpus, PretrainingData
from conformance.model.training import Training

S = TypeVar("S", bound=Message)
Method = Callable[..., Reply]  # a method of CandidateWork

_OF_THE_PROCESS = (CandidateWork.enter, CandidateWork.leave)  # can be asked whichever runner the worker has prepared
_OF_A_CALL = (CandidateWork.next, CandidateWork.read)


class RemoteCandidate(Isolated):
    """A candidate that is loaded by name in a worker.

    Attributes:
        name: the name by which it is loaded.
        is_instrumented, known_failures, batch_invariant, features: as in `messages.Traits`.

    Raises:
        ConformanceError: raised by `candidates.registry.load_implementation` in the worker if the candidate cannot be loaded.
        CandidateTimeout, CandidateCrash: the import of the candidate does not end, or ends the process.

    Example:
        >>> from conformance.isolation.worker_process import WorkerProcess
        >>> from conformance.isolation.candidate_work import CandidateWork
        >>> with WorkerProcess(CandidateWork) as worker:
        ...     check(RemoteCandidate(worker, "hf-eager"), "tiny").outcome
        'pass'
    """

    def __init__(self, worker: WorkerProcess, name: str, *, unobserved: bool = False) -> None:
        self._worker, self.name, self._unobserved = worker, name, unobserved
        self._load()

    def _load(self) -> None:
        traits, _ = ask(self._worker, Traits, CandidateWork.load, self.name)
        self.is_instrumented, self.known_failures = traits.is_instrumented, traits.known_failures
        self.batch_invariant, self.features, self._tokenizes = traits.batch_invariant, traits.features, traits.tokenizes
        self._process = self._worker.process

    def _require_loaded(self) -> None:
        """Load the candidate again if its process has ended."""
        if self._worker.process is not self._process:
            self._load()

    @property
    def unobserved(self) -> "RemoteCandidate":
        """The candidate's attribute `unobserved` as a remote candidate, if it has one; else the candidate."""
        return RemoteCandidate(self._worker, self.name, unobserved=self.is_instrumented)

    @property
    def tokenizer(self) -> Callable[..., Any] | None:
        """The candidate's tokenizer, with the interface in `checks.laws.tokenization`; None if it has none."""
        return self._tokenizer if self._tokenizes else None

    def _tokenizer(self, vocabulary: Sequence[str], *, lower_case: bool, strip_accents: bool | None) -> Callable[[str], Any]:
        def read(text: str) -> tuple[Sequence[int], Sequence[tuple[int, int]] | None]:
            self._require_loaded()
            reading, _ = ask(
                self._worker, TokenizerReading, CandidateWork.tokenize, tuple(vocabulary), lower_case, strip_accents, text
            )
            return reading.ids, reading.offsets

        return read

    @property
    def pretraining_data(self) -> PretrainingData | None:
        """The pipeline that makes the candidate's pre-training examples; None if it has none."""
        self._require_loaded()
        conventions = ask(self._worker, Conventions, CandidateWork.conventions)[0].conventions
        return None if conventions is None else PretrainingData(self._epoch, conventions)

    def _epoch(self, corpus: PretrainingCorpus, epoch: int) -> Iterator[Mapping[str, Any]]:
        self._require_loaded()
        most = WIDEST_ELEMENT * len(fields(Batch)) * most_rows(corpus) * corpus.length
        found, arrays = ask(self._worker, Epoch, CandidateWork.epoch, corpus, epoch, most=most)
        left = iter(arrays)
        for names in found.batches:
            yield dict(zip(names, islice(left, len(names)), strict=True))

    def supports(self, architecture: Architecture, device: str, dtype: str) -> object:
        """Return the reason why a case is not supported, or None."""
        self._require_loaded()
        return ask(self._worker, Reason, CandidateWork.supports, architecture, device, dtype, self._unobserved)[0].text

    def prepare(self, checkpoint: Checkpoint, device: str, dtype: str) -> "RemoteRunner":
        """Return a runner; the worker requests those parameters of the checkpoint that the candidate reads."""
        self._require_loaded()
        return RemoteRunner(self._worker, checkpoint, device, dtype, self._unobserved)


class RemoteRunner(IsolatedRunner):
    """A runner in a worker. A worker holds one runner; this one is prepared again if another has replaced it.

    The worker sends the descriptions of activations. Small arrays are sent with their descriptions, others when they are read.
    """

    def __init__(self, worker: WorkerProcess, checkpoint: Checkpoint, device: str, dtype: str, unobserved: bool) -> None:
        self._worker, self._checkpoint, self._place = worker, checkpoint, (device, dtype, unobserved)
        self._training = False
        self._prepare()
        self._process = worker.process

    def initial(self) -> Iterator[tuple[Any, Any]]:
        """Yield the initial parameters of training; raise `NotApplicable` if the runner in the worker does not provide them."""
        import torch

        self._ask(Done, CandidateWork.initialize, torch.initial_seed())
        return self._pairs()

    def trainer(self, training: Training) -> Callable[[TorchBatch], Iterator[tuple[Any, Any]]]:
        """Start the training loop in the worker and return a function that does one step on a batch.

        Raises:
            NotApplicable: the runner in the worker has no training loop. Its own errors are raised here, too.
        """
        import torch

        self._ask(Done, CandidateWork.train, training, torch.initial_seed())

        def step(batch: TorchBatch) -> Iterator[tuple[Any, Any]]:
            self._ask(Done, CandidateWork.step, batch.numpy())
            return self._pairs()

        return step

    def train(self, mode: bool) -> None:
        """Set training mode or eval mode for the next calls; torch's random numbers are seeded as in this process."""
        self._training = mode

    def _seed(self) -> int | None:
        import torch

        return torch.initial_seed() if self._training else None

    def _prepare(self) -> None:
        self._worker.holds = None
        architecture, parameters = self._checkpoint.architecture, tuple(self._checkpoint.weights)
        ask(self._worker, Done, CandidateWork.prepare, architecture, parameters, *self._place, checkpoint=self._checkpoint)
        self._worker.holds = self

    def _ask(self, kind: type[S], method: Method, *arguments: object, most: float = 0) -> tuple[S, Sequence[Any]]:
        if self._worker.process is not self._process:  # this runner was prepared in a process that has ended
            raise self._worker.failure
        if self._worker.holds is not self and method not in _OF_THE_PROCESS:
            if method in _OF_A_CALL:
                raise RuntimeError("it is gone: another one has been prepared")
            self._prepare()
        return ask(self._worker, kind, method, *arguments, checkpoint=self._checkpoint, most=most)

    def __call__(self, batch: TorchBatch) -> Iterator[tuple[Any, Any]]:
        """Yield each pair when it arrives; after the last, copy the candidate's changes of its inputs to the batch's tensors."""
        mask = "int64" if batch.attention_mask is None else str(batch.attention_mask.dtype).removeprefix("torch.")
        source = batch.numpy()
        inputs = [getattr(batch, name) for name in source.arrays()]
        self._ask(Done, CandidateWork.call, source, mask, is_at_once(), None, self._seed())
        return self._pairs(inputs)

    def gradients(self, batch: TorchBatch, source: str, gradient: Any) -> Iterator[tuple[Any, Any]]:
        """Yield the pairs of a forward and a backward pass; raise `NotApplicable` if the runner has no backward pass."""
        start = (source, np.asarray(gradient.double().cpu()))
        self._ask(Done, CandidateWork.call, batch.numpy(), "int64", False, start, self._seed())
        return self._pairs()

    def _pairs(self, inputs: Sequence[Any] = ()) -> Iterator[tuple[Any, Any]]:
        import torch

        most = TOGETHER + sum(tensor.nbytes for tensor in inputs)
        while True:
            found, arrays = self._ask(Heads, CandidateWork.next, most=most)
            if not found.heads:
                if len(arrays) != len(inputs):
                    raise CandidateEnded("its process did not send the inputs of a call back")
                for tensor, now in zip(inputs, arrays, strict=True):
                    tensor.data = torch.from_numpy(now).to(tensor)
                return
            left = iter(arrays)
            for head in found.heads:
                if head.name is None:
                    raise CandidateError(head.unreadable)
                if head.unreadable:
                    yield head.name, Unreadable(head.unreadable)
                else:
                    sent = next(left, None) if head.is_sent else None
                    yield head.name, Described(head.dtype, head.shape, head.device, cache(partial(self._values, head, sent)))

    def _values(self, head: Head, sent: Any) -> Any:
        values = sent
        if sent is None:
            _, arrays = self._ask(Done, CandidateWork.read, head.number, most=prod(head.shape) * WIDEST_ELEMENT)
            values = arrays[0] if arrays else None
        if values is None or values.shape != head.shape:
            raise CandidateEnded("what its process sent for an activation is not of the shape that it said")
        return values

    @property
    def surroundings(self) -> Surroundings:
        """The surroundings of the runner in the worker."""
        return _RemoteSurroundings(self)

    def answers_apart(self, subject: Subject, batch: Batch) -> bool:
        """Return whether the candidate answers a batch in a separate process; see `IsolatedRunner`."""
        accepted: bool = self._found(bool, CandidateWork.answers_apart, subject.golden, subject.name, batch)
        return accepted

    def _found(self, form: Any, method: Method, *arguments: object) -> Any:
        """Return the plain data of an answer, converted to the type `form`; raise `CandidateEnded` if it has another schema."""
        try:
            return msgspec.convert(self._ask(Found, method, *arguments)[0].value, form)
        except msgspec.ValidationError as error:
            raise CandidateEnded(f"its process answers {method.__name__} by what it cannot be: {error}") from error


class _RemoteSurroundings(Surroundings):
    """The surroundings of a runner in a worker: read and set there, and compared in this process."""

    def __init__(self, runner: RemoteRunner) -> None:
        self._runner = runner

    def module(self) -> ModuleState | None:
        state: ModuleState | None = self._runner._found(ModuleState | None, CandidateWork.call_surroundings, "module")
        return state

    def tensors(self, names: Sequence[str]) -> Iterator[tuple[str, Any]]:
        self._runner._ask(Done, CandidateWork.tensors, tuple(names))
        for name, (found, value) in zip(names, self._runner._pairs(), strict=False):
            if found != name:
                raise CandidateEnded(f"its process sends {found!r:.100}, where the tensor {name!r:.100} is asked for")
            yield name, value

    def save(self, path: Path) -> None:
        self._runner._found(None, CandidateWork.call_surroundings, "save", path)

    def load(self, path: Path) -> None:
        self._runner._found(None, CandidateWork.call_surroundings, "load", path)

    def settings(self) -> Mapping[str, str]:
        settings: Mapping[str, str] = self._runner._found(dict[str, str], CandidateWork.call_surroundings, "settings")
        return settings

    def usual(self) -> AbstractContextManager[object]:
        return self._inside("usual")

    def one_thread(self) -> AbstractContextManager[object]:
        return self._inside("one_thread")

    def seeded(self, seed: int) -> AbstractContextManager[object]:
        return self._inside("seeded", seed)

    @contextmanager
    def _inside(self, method: str, *arguments: object) -> Iterator[None]:
        self._runner._ask(Done, CandidateWork.enter, method, *arguments)
        try:
            yield
        finally:
            self._runner._ask(Done, CandidateWork.leave)


def ask(
    worker: WorkerProcess, kind: type[S], method: Method, *arguments: object, checkpoint: Checkpoint | None = None, most: float = 0
) -> tuple[S, Sequence[Any]]:
    """Return a worker's answer, of the type `kind`, and its arrays.

    The worker may request parameters of the checkpoint. The arrays may have at most `most` bytes in total.

    Raises:
        ConformanceError: the method raised it in the worker.
        CandidateEnded: the answer is of another type.
    """
    found, arrays = worker.ask(Question(method, arguments), checkpoint.weights if checkpoint else None, most)
    if isinstance(found, ProjectError):
        raise _error(found, arrays)
    if not isinstance(found, kind):
        raise CandidateEnded(f"its process answers {method.__name__} by {type(found).__name__}")
    return found, arrays


def _error(found: ProjectError, arrays: Sequence[Any]) -> Exception:
    """Return the exception to raise for a failure in the worker; a `CandidateEnded` if the failure is not valid."""
    try:
        return found.error(list(arrays))
    except (ValueError, UsageError) as error:
        return CandidateEnded(f"its process reports an error that cannot be one: {error}")
