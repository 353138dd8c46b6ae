"""Candidates in a worker, with the interface of an implementation: the judge treats them like candidates in this process."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import cache, partial
from math import prod
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np

from conformance.candidates.arrays import Described, Unreadable
from conformance.candidates.capture import is_at_once
from conformance.candidates.lookup import arguments_of, is_command
from conformance.candidates.registry import Isolated
from conformance.checks.data.data_check import most_rows
from conformance.checks.search.subject import Subject
from conformance.checks.search.surroundings import Surroundings
from conformance.checks.snippet import loadable
from conformance.errors import CandidateEnded, CandidateError, CandidateTimeout, Unsupported
from conformance.isolation.candidate_work import TOGETHER, WIDEST_ELEMENT, CandidateWork, Head
from conformance.isolation.link import PAGE, PROTOCOL, types_of
from conformance.isolation.worker_process import ResourceLimits, WorkerProcess
from conformance.model.activations import table
from conformance.model.architecture import Architecture
from conformance.model.batch import Batch, TorchBatch
from conformance.model.checkpoint import Checkpoint
from conformance.model.pretraining import PretrainingCorpus, PretrainingData
from conformance.model.training import Training

P = ParamSpec("P")
T = TypeVar("T")

_SECONDS = 300.0  # time limit of a worker for one batch; includes a cold start of a device and a compiler's first run
_OF_THE_PROCESS = (CandidateWork.enter, CandidateWork.leave)  # can be asked whichever runner the worker has prepared
_OF_A_CALL = (CandidateWork.next, CandidateWork.read)


class RemoteCandidate(Isolated):
    """A candidate that is loaded by name in a worker.

    Attributes:
        name: the name by which it is loaded.
        is_program: whether it is the command line of a program in any language, which answers what `PROTOCOL.md` lists.
        is_instrumented, known_failures, batch_invariant, features: as in `candidate_work.Traits`.

    Raises:
        ConformanceError: raised by `candidates.registry.load_implementation` in the worker if the candidate cannot be loaded.
        CandidateError: a program speaks another version of the protocol.
        CandidateTimeout, CandidateCrash: the import of the candidate does not end, or ends the process.

    Example:
        >>> from conformance.isolation.worker_process import WorkerProcess
        >>> from conformance.isolation.candidate_work import CandidateWork
        >>> with WorkerProcess(CandidateWork) as worker:
        ...     check(RemoteCandidate(worker, "hf-eager"), "tiny").outcome
        'pass'
    """

    def __init__(self, worker: WorkerProcess, name: str, *, unobserved: bool = False) -> None:
        self.worker, self.name, self.is_unobserved = worker, name, unobserved
        self.is_program = is_command(name)
        self._load()

    def _load(self) -> None:
        self.worker.become(arguments_of(self.name) if self.is_program else ())
        traits = self.worker.asking(CandidateWork.load)(self.name, PROTOCOL)
        if traits.protocol != PROTOCOL:
            raise CandidateError(f"it answers in version {traits.protocol} of the protocol, expected {PROTOCOL}; {PAGE}")
        self.is_instrumented, self.known_failures = traits.is_instrumented, traits.known_failures
        self.batch_invariant, self.features, self._tokenizes = traits.batch_invariant, traits.features, traits.tokenizes
        self._process = self.worker.process

    def _require_loaded(self) -> None:
        """Load the candidate again if its process has ended."""
        if self.worker.process is not self._process:
            self._load()

    def _asking(self, method: Callable[Concatenate[Any, P], T], most: float = 0) -> Callable[P, T]:
        """Return a function that calls a method in the worker, where the candidate is loaded."""
        self._require_loaded()
        return self.worker.asking(method, most)

    @property
    def unobserved(self) -> "RemoteCandidate":
        """The candidate's attribute `unobserved` as a remote candidate, if it has one; else the candidate."""
        return RemoteCandidate(self.worker, self.name, unobserved=self.is_instrumented)

    @property
    def tokenizer(self) -> Callable[..., Any] | None:
        """The candidate's tokenizer, with the interface in `checks.laws.tokenization`; None if it has none."""
        return self._tokenizer if self._tokenizes else None

    def _tokenizer(self, vocabulary: Sequence[str], *, lower_case: bool, strip_accents: bool | None) -> Callable[[str], Any]:
        return lambda text: self._asking(CandidateWork.tokenize)((tuple(vocabulary), lower_case, strip_accents), text)

    @property
    def pretraining_data(self) -> PretrainingData | None:
        """The pipeline that makes the candidate's pre-training examples; None if it has none."""
        conventions = None if self.is_program else self._asking(CandidateWork.conventions)()
        return None if conventions is None else PretrainingData(self._epoch, conventions)

    def _epoch(self, corpus: PretrainingCorpus, epoch: int) -> Sequence[Batch]:
        most = WIDEST_ELEMENT * len(fields(Batch)) * most_rows(corpus) * corpus.length
        return self._asking(CandidateWork.epoch, most)(corpus, epoch)

    def supports(self, architecture: Architecture, device: str, dtype: str) -> object:
        """Return the reason why a case is not supported, or None."""
        if self.is_program:
            return None
        return self._asking(CandidateWork.supports)(architecture, device, dtype, self.is_unobserved)

    def prepare(self, checkpoint: Checkpoint, device: str, dtype: str) -> "RemoteRunner":
        """Return a runner; the worker requests those parameters of the checkpoint that the candidate reads."""
        self._require_loaded()
        return RemoteRunner(self, checkpoint, device, dtype)


def program(name: str) -> RemoteCandidate:
    """Return the candidate that a command line stands for; its process ends with the object."""
    return RemoteCandidate(WorkerProcess(CandidateWork), name)


class RemoteRunner(Isolated):
    """A runner in a worker. A worker holds one runner; this one is prepared again if another has replaced it.

    The worker sends the descriptions of activations. Small arrays are sent with their descriptions, others when they are read.
    """

    def __init__(self, candidate: RemoteCandidate, checkpoint: Checkpoint, device: str, dtype: str) -> None:
        self._candidate, self._worker = candidate, candidate.worker
        self._checkpoint, self._place = checkpoint, (device, dtype, candidate.is_unobserved)
        self._training = False
        self._prepare()
        self._process = self._worker.process

    def initial(self) -> Iterator[tuple[Any, Any]]:
        """Yield the initial parameters of training; raise `NotApplicable` if the runner in the worker does not provide them."""
        import torch

        self.asking(CandidateWork.initialize)(torch.initial_seed())
        return self.pairs()

    def trainer(self, training: Training) -> Callable[[TorchBatch], Iterator[tuple[Any, Any]]]:
        """Start the training loop in the worker and return a function that does one step on a batch.

        Raises:
            NotApplicable: the runner in the worker has no training loop. Its own errors are raised here, too.
        """
        import torch

        self.asking(CandidateWork.train)(training, torch.initial_seed())

        def step(batch: TorchBatch) -> Iterator[tuple[Any, Any]]:
            self.asking(CandidateWork.step)(batch.numpy())
            return self.pairs()

        return step

    def train(self, mode: bool) -> None:
        """Set training mode or eval mode for the next calls; torch's random numbers are seeded as in this process."""
        self._training = mode

    def _seed(self) -> int | None:
        import torch

        return torch.initial_seed() if self._training else None

    def _prepare(self) -> None:
        self._worker.holds = None
        weights = self._checkpoint.weights
        prepare = self._worker.asking(CandidateWork.prepare, parameters=weights)
        prepare(self._checkpoint.architecture, tuple(weights), *self._place)
        self._worker.holds = self

    def asking(self, method: Callable[Concatenate[Any, P], T], most: float = 0) -> Callable[P, T]:
        """Return a function that calls a method in the worker, where this runner is prepared; it raises its failures."""
        if self._worker.process is not self._process:  # this runner was prepared in a process that has ended
            raise self._worker.failure
        if self._worker.holds is not self and method not in _OF_THE_PROCESS:
            if method in _OF_A_CALL:
                raise RuntimeError("it is gone: another one has been prepared")
            self._prepare()
        return self._worker.asking(method, most, self._checkpoint.weights)

    def __call__(self, batch: TorchBatch) -> Iterator[tuple[Any, Any]] | Mapping[Any, Any]:
        """Yield each pair when it arrives; after the last, copy the candidate's changes of its inputs to the batch's tensors.

        Those of a program are returned as a mapping, since they are in any order, and can be read until the next call.
        """
        mask = "int64" if batch.attention_mask is None else str(batch.attention_mask.dtype).removeprefix("torch.")
        source = batch.numpy()
        inputs = [getattr(batch, name) for name in source.arrays()]
        self.asking(CandidateWork.call)(source, mask, is_at_once(), None, None, self._seed())
        pairs = self.pairs(inputs)
        return _by_name(pairs, table(self._checkpoint.architecture)) if self._candidate.is_program else pairs

    def gradients(self, batch: TorchBatch, source: str, gradient: Any) -> Iterator[tuple[Any, Any]]:
        """Yield the pairs of a forward and a backward pass; raise `NotApplicable` if the runner has no backward pass."""
        start = np.asarray(gradient.double().cpu())
        self.asking(CandidateWork.call)(batch.numpy(), "int64", False, source, start, self._seed())
        return self.pairs()

    def pairs(self, inputs: Sequence[Any] = ()) -> Iterator[tuple[Any, Any]]:
        """Yield the pairs of the current call; after the last, set the tensors `inputs` to what the candidate left in them."""
        import torch

        most = TOGETHER + sum(tensor.nbytes for tensor in inputs)
        while (found := self.asking(CandidateWork.next, most)()).heads:
            for head in found.heads:
                if head.name is None:
                    raise CandidateError(head.unreadable)
                if head.unreadable:
                    yield head.name, Unreadable(head.unreadable)
                else:
                    yield head.name, Described(head.dtype, head.shape, head.device, cache(partial(self._values, head)))
        if len(found.inputs) != len(inputs) and not self._candidate.is_program:
            raise CandidateEnded("its process did not send the inputs of a call back")
        for tensor, now in zip(inputs, found.inputs, strict=False):
            tensor.data = torch.from_numpy(now).to(tensor)

    def _values(self, head: Head) -> Any:
        values = head.values
        if values is None:
            values = self.asking(CandidateWork.read, prod(head.shape) * WIDEST_ELEMENT)(head.number)
        if values.shape != head.shape:
            raise CandidateEnded("what its process sent for an activation is not of the shape that it said")
        if self._candidate.is_program and values.dtype.name != {"bfloat16": "float32"}.get(head.dtype, head.dtype):
            raise CandidateError(f"the values are in {values.dtype.name}, and said to be in {head.dtype}")
        return values

    @property
    def surroundings(self) -> Surroundings:
        """The surroundings of the runner in the worker; a program in another language has none, and changes none here."""
        return Surroundings(None, self._place[0]) if self._candidate.is_program else _RemoteSurroundings(self)


def _by_name(stream: Iterator[tuple[Any, Any]], names: Collection[Any]) -> Mapping[Any, Any]:
    """Return the values by name, until more others than there are `names`, which the judgement refuses, would fill the memory."""
    found: dict[Any, Any] = {}
    for name, value in stream:
        if name in found:  # also of a program that never ends its answers to `next`
            raise CandidateError(f"{name}: yielded twice")
        found[name] = value
        if len(found) > 2 * len(names):
            break
    return found


def answers_in_a_worker(subject: Subject, batch: Batch) -> bool:
    """Return whether a candidate answers a batch, with any result, in a new worker: it may end that or break its device.

    Raises:
        Unsupported: nothing loads the candidate by a name.
        CandidateError: the candidate exceeds the time limit.
    """
    given = subject.candidate
    name = given.name if isinstance(given, RemoteCandidate) else loadable(subject.name, given)
    if not name:
        raise Unsupported("it can be asked in a process of its own alone, and no module holds it by a name")
    with WorkerProcess(CandidateWork, ResourceLimits(_SECONDS)) as worker:
        candidate = RemoteCandidate(worker, name, unobserved=isinstance(given, RemoteCandidate) and given.is_unobserved)
        try:
            answered = replace(subject, runner=candidate.prepare(subject.checkpoint, subject.device, subject.dtype)).answers(batch)
            return answered and worker.process is not None  # None: the device is broken
        except CandidateTimeout:
            raise CandidateError(f"no answer within {_SECONDS:g} s to what must be refused") from None
        except CandidateEnded:
            return False


class _RemoteSurroundings(Surroundings):
    """The surroundings of a runner in a worker: each method is called there, and what it returns is compared in this process."""

    def __init__(self, runner: RemoteRunner) -> None:
        self._runner = runner

    def tensors(self, names: Sequence[str]) -> Iterator[tuple[str, Any]]:
        self._runner.asking(CandidateWork.tensors)(tuple(names))
        for name, (found, value) in zip(names, self._runner.pairs(), strict=False):
            if found != name:
                raise CandidateEnded(f"its process sends {found!r:.100}, where the tensor {name!r:.100} is asked for")
            yield name, value


def _called_there(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method that calls a method of `Surroundings` in the worker, or enters there the context that it returns."""

    def called(self: _RemoteSurroundings, *arguments: Any) -> Any:
        return self._runner.asking(method)(*arguments)

    @contextmanager
    def entered(self: _RemoteSurroundings, *arguments: Any) -> Iterator[None]:
        self._runner.asking(CandidateWork.enter)(name, arguments)
        try:
            yield
        finally:
            self._runner.asking(CandidateWork.leave)()

    return entered if types_of(method)[1] == Iterator[None] else called


for _name, _method in vars(Surroundings).items():
    if not _name.startswith("_") and _name not in vars(_RemoteSurroundings):
        setattr(_RemoteSurroundings, _name, _called_there(_name, _method))
