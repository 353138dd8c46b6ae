"""A candidate in a worker, as an implementation here: the judge does not distinguish it from one in this process."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cache, partial
from itertools import islice
from math import prod
from typing import Any, TypeVar

import msgspec
import numpy as np

from conformance.candidates.arrays import Described, Unreadable
from conformance.candidates.capture import is_at_once
from conformance.candidates.registry import Isolated
from conformance.checks.data.asking import most_rows
from conformance.checks.search.subject import IsolatedRunner, Subject
from conformance.errors import CandidateEnded, CandidateError, UsageError
from conformance.isolation.messages import (
    TOGETHER,
    WIDEST,
    AnswerApart,
    Brought,
    Call,
    Conventions,
    Done,
    Enter,
    Epoch,
    Failure,
    Found,
    Head,
    Heads,
    Initialize,
    Leave,
    Load,
    MakeEpoch,
    Next,
    Prepare,
    Read,
    Reading,
    Reason,
    Said,
    Step,
    Supports,
    Tokenize,
    Train,
    Traits,
)
from conformance.isolation.process import WorkerProcess
from conformance.isolation.remote_surroundings import RemoteSurroundings
from conformance.model.architecture import Architecture
from conformance.model.batch import Batch, TorchBatch
from conformance.model.checkpoint import Checkpoint
from conformance.model.pretraining import PretrainingCorpus, PretrainingData
from conformance.model.training import Training

S = TypeVar("S", bound=Said)


class RemoteCandidate(Isolated):
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
        self._traits, _ = asked(self._worker, Load(self.name), Traits)
        self._process = self._worker.process

    def _require_loaded(self) -> None:
        """Load it again where its process has ended."""
        if self._worker.process is not self._process:
            self._load()

    @property
    def is_instrumented(self) -> bool:
        """Whether it has a form `unobserved`."""
        return self._traits.is_instrumented

    @property
    def known_failures(self) -> str | None:
        """Its attribute of that name, the path of a file."""
        return self._traits.known_failures

    @property
    def batch_invariant(self) -> bool:
        """Whether it promises that."""
        return self._traits.batch_invariant

    @property
    def features(self) -> tuple[str, ...]:
        """Those that it names."""
        return self._traits.features

    @property
    def unobserved(self) -> "RemoteCandidate":
        """It without what looks into it, where it has such a form."""
        return RemoteCandidate(self._worker, self.name, unobserved=self.is_instrumented)

    @property
    def tokenizer(self) -> Callable[..., Any] | None:
        """Its tokenizer, as `checks.laws.tokenization` describes it; None where it brings none."""
        return self._tokenizer if self._traits.tokenizes else None

    def _tokenizer(self, vocabulary: Sequence[str], *, lower_case: bool, strip_accents: bool | None) -> Callable[[str], Any]:
        def read(text: str) -> tuple[Sequence[int], Sequence[tuple[int, int]] | None]:
            self._require_loaded()
            reading, _ = asked(self._worker, Tokenize(tuple(vocabulary), lower_case, strip_accents, text), Reading)
            return reading.ids, reading.offsets

        return read

    @property
    def pretraining_data(self) -> PretrainingData | None:
        """The pipeline that makes its pre-training examples; None where it brings none."""
        self._require_loaded()
        conventions = asked(self._worker, Conventions(), Brought)[0].conventions
        return None if conventions is None else PretrainingData(self._epoch, conventions)

    def _epoch(self, corpus: PretrainingCorpus, epoch: int) -> Iterator[Mapping[str, Any]]:
        self._require_loaded()
        most = WIDEST * len(fields(Batch)) * most_rows(corpus) * corpus.length
        found, arrays = asked(self._worker, MakeEpoch(corpus, epoch), Epoch, most=most)
        left = iter(arrays)
        for names in found.batches:
            yield dict(zip(names, islice(left, len(names)), strict=True))

    def supports(self, architecture: Architecture, device: str, dtype: str) -> object:
        """None or a reason."""
        self._require_loaded()
        return asked(self._worker, Supports(architecture, device, dtype, self._unobserved), Reason)[0].text

    def prepare(self, checkpoint: Checkpoint, device: str, dtype: str) -> "RemoteRunner":
        """A runner; the worker asks for the parameters that the candidate reads."""
        self._require_loaded()
        question = Prepare(checkpoint.architecture, tuple(checkpoint.weights), device, dtype, self._unobserved)
        return RemoteRunner(self._worker, question, checkpoint)


class RemoteRunner(IsolatedRunner):
    """A runner in a worker, which holds one: it is prepared anew where another has taken its place.

    What it yields is described first; its values are sent with that where they are few, else when they are read.
    """

    def __init__(self, worker: WorkerProcess, question: Prepare, checkpoint: Checkpoint) -> None:
        self._worker, self._question, self._checkpoint = worker, question, checkpoint
        self._training = False
        self._prepare()
        self._process = worker.process

    def initial(self) -> Iterator[tuple[Any, Any]]:
        """What training starts from there; raises `NotApplicable` where the runner there does not say it."""
        import torch

        self._ask(Initialize(torch.initial_seed()), Done)
        return self._pairs()

    def trainer(self, training: Training) -> Callable[[TorchBatch], Iterator[tuple[Any, Any]]]:
        """Its training loop; raises what the runner there raises, and `NotApplicable` where it has none."""
        import torch

        self._ask(Train(training, torch.initial_seed()), Done)

        def step(batch: TorchBatch) -> Iterator[tuple[Any, Any]]:
            self._ask(Step(batch.numpy()), Done)
            return self._pairs()

        return step

    def train(self, mode: bool) -> None:
        """In training mode or eval mode from the next call on; torch's random numbers are those that this process would draw."""
        self._training = mode

    def _seed(self) -> int | None:
        import torch

        return torch.initial_seed() if self._training else None

    def _prepare(self) -> None:
        self._worker.holds = None
        asked(self._worker, self._question, Done, checkpoint=self._checkpoint)
        self._worker.holds = self

    def _ask(self, question: object, *kinds: type[S], most: float = 0) -> tuple[S, Sequence[Any]]:
        if self._worker.process is not self._process:  # another one has not prepared it
            raise self._worker.failure
        # What is of the process is asked whatever it holds.
        if self._worker.holds is not self and not isinstance(question, Enter | Leave):
            assert not isinstance(question, Next | Read), "it is gone: another one has been prepared"
            self._prepare()
        return asked(self._worker, question, *kinds, checkpoint=self._checkpoint, most=most)

    def __call__(self, batch: TorchBatch) -> Iterator[tuple[Any, Any]]:
        """The pairs, each as it comes; what the candidate writes into its inputs is in the batch's tensors after the last."""
        mask = "int64" if batch.attention_mask is None else str(batch.attention_mask.dtype).removeprefix("torch.")
        source = batch.numpy()
        inputs = [getattr(batch, name) for name in source.arrays()]
        self._ask(Call(source, mask, is_at_once(), seed=self._seed()), Done)
        return self._pairs(inputs)

    def gradients(self, batch: TorchBatch, source: str, gradient: Any) -> Iterator[tuple[Any, Any]]:
        """The pairs of a forward and a backward pass; raises `NotApplicable` where the runner there has none."""
        self._ask(Call(batch.numpy(), source=(source, np.asarray(gradient.double().cpu())), seed=self._seed()), Done)
        return self._pairs()

    def _pairs(self, inputs: Sequence[Any] = ()) -> Iterator[tuple[Any, Any]]:
        import torch

        most = TOGETHER + sum(tensor.nbytes for tensor in inputs)
        while True:
            found, arrays = self._ask(Next(), Heads, most=most)
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
            _, arrays = self._ask(Read(head.number), Done, most=prod(head.shape) * WIDEST)
            values = arrays[0] if arrays else None
        if values is None or values.shape != head.shape:
            raise CandidateEnded("what its process sent for an activation is not of the shape that it said")
        return values

    @property
    def surroundings(self) -> "RemoteSurroundings":
        """Those there."""
        return RemoteSurroundings(self._found, lambda question: self._ask(question, Done), self._pairs)

    def answers_apart(self, subject: Subject, batch: Batch) -> bool:
        """See `IsolatedRunner`."""
        accepted: bool = self._found(AnswerApart(subject.golden, subject.name, batch), bool)
        return accepted

    def _found(self, question: object, form: Any) -> Any:
        """The plain data with which it is answered."""
        try:
            return msgspec.convert(self._ask(question, Found)[0].value, form)
        except msgspec.ValidationError as error:
            raise CandidateEnded(f"its process answers {type(question).__name__} by what it cannot be: {error}") from error


def asked(
    worker: WorkerProcess, question: object, *kinds: type[S], checkpoint: Checkpoint | None = None, most: float = 0
) -> tuple[S, Sequence[Any]]:
    """The answer of a worker, and its arrays; a failure there is raised here.

    Raises:
        ConformanceError: as the worker says; `CandidateEnded` where that is none of the answers to the question.
    """
    found, arrays = worker.ask(question, checkpoint.weights if checkpoint else None, most)
    if isinstance(found, Failure):
        raise _error(found, arrays)
    for kind in kinds:
        if isinstance(found, kind):
            return found, arrays
    raise CandidateEnded(f"its process answers {type(question).__name__} by {type(found).__name__}")


def _error(found: Failure, arrays: Sequence[Any]) -> Exception:
    """What is raised for it here."""
    try:
        return found.error(list(arrays))
    except (ValueError, UsageError) as error:
        return CandidateEnded(f"its process reports an error that cannot be one: {error}")
