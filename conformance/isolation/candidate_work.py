"""The worker's side of the isolation: the candidate that a worker holds, and the answers to questions about it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import msgspec
import numpy as np

from conformance.candidates import capture
from conformance.candidates.arrays import Described, described, pairs
from conformance.candidates.registry import load_implementation
from conformance.checks.backward_passes import backward_pass
from conformance.checks.contract import ability, guarded, named_features, prepared, refusal, yielded
from conformance.checks.data.data_check import epoch_of, require_data
from conformance.checks.search.subject import Subject, answers_in_a_child
from conformance.checks.search.surroundings import surroundings_here
from conformance.checks.training_passes import in_training, random_numbers_from
from conformance.errors import CandidateCrash, CandidateError, ConformanceError
from conformance.isolation.messages import (
    SMALL,
    TOGETHER,
    WIDEST_ELEMENT,
    Conventions,
    Done,
    Epoch,
    Found,
    Head,
    Heads,
    ProjectError,
    Question,
    Reason,
    TokenizerReading,
    Traits,
)
from conformance.isolation.worker_process import Reply
from conformance.model.activations import table
from conformance.model.architecture import Architecture
from conformance.model.batch import Batch, TorchBatch
from conformance.model.checkpoint import Checkpoint, LazyWeights
from conformance.model.pretraining import PretrainingCorpus
from conformance.model.training import Training
from conformance.names import class_name
from conformance.numerics.devices import loss_of, require_device
from conformance.numerics.formats import Array
from conformance.results.termination import call_candidate, rendered


class CandidateWork:
    """The work of a worker that holds a candidate: each public method answers one kind of question.

    Args:
        parameter: requests a parameter of the checkpoint from the parent process by name; returns it in float64.
    """

    def __init__(self, parameter: Callable[[str], Array]) -> None:
        """Initialize the work; no candidate is imported yet."""
        self._parameter = parameter
        self._candidate: Any = None
        self._subject: Subject | None = None
        self._device = "cpu"
        self._stream: Iterator[tuple[str, Any]] = iter(())
        self._checkpoints = 0
        self._step: Callable[[TorchBatch], Any] | None = None
        self._at_once = False
        self._number, self._last = 0, described(np.empty(0))
        self._inputs: Sequence[tuple[Any, tuple[int, ...]]] = ()  # inputs of the current call, each with its original shape
        self._entered: list[AbstractContextManager[object]] = []
        self._failure: ConformanceError | None = None
        self._tokenizers: dict[tuple[tuple[str, ...], bool, bool | None], Callable[[str], Any]] = {}

    @property
    def device_loss(self) -> str | None:
        """The error that made the device unusable; None while it is usable."""
        return loss_of(self._device)

    def answer(self, question: Question) -> Reply:
        """Return the answer to a question, or a `ProjectError` if it raises an exception."""
        try:
            reply: Reply = question.method(self, *question.arguments)
            return reply
        except ConformanceError as error:
            return ProjectError.of(error)
        except BaseException as error:  # of an object of the candidate's, wherever its code is run
            return ProjectError.of(CandidateCrash(rendered(error)))

    def load(self, name: str) -> Reply:
        """Import the candidate of that name; return its `Traits`."""
        self._candidate = load_implementation(name)
        path = self._trait("known_failures")
        traits = Traits(
            self._form(unobserved=True) is not self._candidate,
            None if path is None else call_candidate(lambda: str.__str__(str(path))),
            call_candidate(lambda: bool(self._trait("batch_invariant"))),
            self._trait("tokenizer") is not None,
            named_features(self._candidate),
        )
        return traits, ()

    def supports(self, architecture: Architecture, device: str, dtype: str, unobserved: bool) -> Reply:
        """Return the `Reason` why the candidate does not support a case."""
        return Reason(refusal(self._form(unobserved=unobserved), architecture, device, dtype)), ()

    def prepare(self, architecture: Architecture, parameters: Sequence[str], device: str, dtype: str, unobserved: bool) -> Reply:
        """Prepare a runner from parameters of these names; it replaces the runner prepared before."""
        require_device(device)
        self._checkpoints += 1
        weights = LazyWeights(parameters, partial(self._parameter_of, self._checkpoints))
        self._subject, self._stream, self._inputs = None, iter(()), ()  # free the memory of the previous runner first
        checkpoint, candidate = Checkpoint(architecture, weights), self._form(unobserved=unobserved)
        self._subject = Subject(candidate, checkpoint, device, dtype, "", prepared(candidate, checkpoint, device, dtype))
        self._device = device
        return Done(), ()

    def call(self, batch: Batch, mask: str, at_once: bool, source: tuple[str, Array] | None, seed: int | None) -> Reply:
        """Call the prepared runner; `next` then returns its activations.

        Args:
            batch: the inputs.
            mask: dtype of the attention mask passed to the runner.
            at_once: whether the call runs to its end before its first activation is returned, as in `candidates.capture.at_once`.
            source: name of the activation at which a backward pass starts, and the gradient with respect to it; None: no backward
                pass.
            seed: seed of torch's random numbers in training mode; None: eval mode.
        """
        subject, given = self._prepared, _given(batch, mask, self._prepared.device)
        # The tensors themselves, since a candidate may replace the attributes of the batch.
        inputs = [getattr(given, name) for name in batch.arrays()] if source is None else []

        def stream() -> Iterator[tuple[str, Any]]:
            if source is None:
                return call_candidate(lambda: pairs(subject.runner(given), table(subject.checkpoint.architecture), notes=True))
            return backward_pass(subject.runner, given, subject.checkpoint.architecture, subject.dtype, *source)

        with _called(at_once=at_once):
            answer = stream() if seed is None else in_training(subject.runner, seed, stream)
        return self._begin(answer, inputs, at_once=at_once)

    def train(self, training: Training, seed: int) -> Reply:
        """Start a training loop of the prepared runner, with torch's random numbers seeded by `seed`."""
        import torch

        start = ability(self._prepared.runner, "trainer")
        torch.manual_seed(seed)
        self._step = call_candidate(lambda: start(training), may_refuse=True)
        return Done(), ()

    def step(self, batch: Batch) -> Reply:
        """Do one step of the training loop; `next` then returns what the step yields."""
        if self._step is None:
            raise RuntimeError("no training loop was started")
        return self._begin(yielded(partial(self._step, batch.on(self._device))))

    def initialize(self, seed: int) -> Reply:
        """Draw the parameters before training, with torch's random numbers seeded by `seed`; `next` then returns them."""
        return self._begin(self._initial(seed))

    def tensors(self, names: Sequence[str]) -> Reply:
        """Select parameters and buffers of the runner's module by name; `next` then returns them."""
        return self._begin(guarded(self._prepared.surroundings.tensors(names)), at_once=True)

    def next(self) -> Reply:
        """Return the next activations of the call as `Heads`: one, or several if the call is at once; none after the last.

        If the call fails after some activations, these are returned first, and the failure is the next answer.
        """
        heads: list[Head] = []
        arrays: list[Any] = []
        try:
            while not heads or (self._at_once and heads[-1].is_sent and sum(a.nbytes for a in arrays) < TOGETHER - SMALL):
                if self._failure is not None:
                    raise self._failure
                with _called(at_once=self._at_once):
                    found = call_candidate(lambda: next(self._stream, None))
                if found is None:
                    break
                head, values = self._described(*found)
                heads.append(head)
                arrays += values
        except ConformanceError as failure:
            if not heads:
                raise
            self._failure = failure
        return Heads(tuple(heads)), arrays if heads else self._inputs_now()

    def read(self, number: int) -> Reply:
        """Return the values of the latest activation; `number` is its position in the call."""
        if number != self._number:
            raise RuntimeError("it is gone: a candidate may use the memory of an activation again")
        return Done(), (self._last.read(),)

    def tokenize(self, vocabulary: tuple[str, ...], lower_case: bool, strip_accents: bool | None, text: str) -> Reply:
        """Tokenize a text with the candidate's tokenizer; return a `TokenizerReading`."""
        return call_candidate(lambda: self._reading((vocabulary, lower_case, strip_accents), text)), ()

    def conventions(self) -> Reply:
        """Return the conventions of the candidate's own pre-training data as `Conventions`."""
        brings = self._trait("pretraining_data") is not None
        return Conventions(require_data(self._candidate).conventions if brings else None), ()

    def epoch(self, corpus: PretrainingCorpus, epoch: int) -> Reply:
        """Return the pre-training examples of an epoch of a corpus as an `Epoch`."""
        batches = [batch.arrays() for batch in epoch_of(require_data(self._candidate), corpus, epoch)]
        return Epoch(tuple(map(tuple, batches))), [array for batch in batches for array in batch.values()]

    def call_surroundings(self, method: str, *arguments: object) -> Reply:
        """Call a method of the runner's `checks.search.surroundings.Surroundings`; return its result as `Found`."""
        return Found(msgspec.to_builtins(getattr(self._prepared.surroundings, method)(*arguments))), ()

    def enter(self, method: str, *arguments: object) -> Reply:
        """Enter the context manager that a method of the surroundings returns, until `leave` is called."""
        self._entered.append(getattr(surroundings_here(None, self._device), method)(*arguments))
        self._entered[-1].__enter__()
        return Done(), ()

    def leave(self) -> Reply:
        """Exit the context that was entered last."""
        self._entered.pop().__exit__(None, None, None)
        return Done(), ()

    def answers_apart(self, golden: str, name: str, batch: Batch) -> Reply:
        """Return as `Found` whether the candidate answers a batch in a separate process."""
        return Found(answers_in_a_child(replace(self._prepared, golden=golden, name=name), batch)), ()

    def _trait(self, name: str) -> Any:
        return call_candidate(lambda: getattr(self._candidate, name, None))

    def _form(self, *, unobserved: bool) -> Any:
        """Return the candidate; its attribute `unobserved` if that is requested and it has one."""
        return call_candidate(lambda: getattr(self._candidate, "unobserved", self._candidate)) if unobserved else self._candidate

    def _parameter_of(self, checkpoint: int, name: str) -> Array:
        if checkpoint != self._checkpoints:
            raise RuntimeError(
                "a checkpoint's weights are read in prepare() or in calls of its runner; another one has been prepared"
            )
        return self._parameter(name)

    @property
    def _prepared(self) -> Subject:
        if self._subject is None:
            raise RuntimeError("nothing is prepared")
        return self._subject

    def _begin(self, stream: Iterator[tuple[str, Any]], inputs: Sequence[Any] = (), *, at_once: bool = False) -> Reply:
        """Set the stream from which `next` returns activations."""
        self._stream, self._at_once = stream, at_once
        self._inputs = [(tensor, tensor.shape) for tensor in inputs]
        self._number, self._failure = 0, None
        return Done(), ()

    def _initial(self, seed: int) -> Iterator[tuple[str, Any]]:
        with random_numbers_from(seed):
            yield from yielded(ability(self._prepared.runner, "initial"))

    def _inputs_now(self) -> Sequence[Any]:
        return [described(tensor).read() if tensor.shape == shape else np.empty(0) for tensor, shape in self._inputs]

    def _described(self, name: Any, value: Any) -> tuple[Head, Sequence[Any]]:
        self._number += 1
        if type(name) is not str:
            return Head(self._number, None, unreadable=f"an activation's name is a text, not {class_name(name)}"), ()
        try:
            self._last = last = described(value)
        except CandidateError as error:
            return Head(self._number, name, unreadable=str(error)), ()
        values = _small(last)
        return Head(self._number, name, last.dtype, tuple(map(int, last.shape)), last.device, is_sent=bool(values)), values

    def _reading(self, key: tuple[tuple[str, ...], bool, bool | None], text: str) -> TokenizerReading:
        from conformance.checks.laws.tokenization import plain_reading

        if key not in self._tokenizers:
            made = self._candidate.tokenizer(list(key[0]), lower_case=key[1], strip_accents=key[2])
            self._tokenizers[key] = made
        ids, offsets = plain_reading(self._tokenizers[key](text))
        return TokenizerReading(tuple(ids), None if offsets is None else tuple(offsets))


def _called(*, at_once: bool) -> AbstractContextManager[None]:
    return capture.at_once() if at_once else nullcontext()


def _small(described: Described) -> Sequence[Any]:
    """Return the values of a small array, in a sequence; an empty one if the array is large, unreadable or not numeric.

    The description of the array is sent first in any case, so that an error in it is reported first.
    """
    if prod(described.shape) * WIDEST_ELEMENT > SMALL:
        return ()
    try:
        values = described.read()
    except CandidateError:
        return ()
    return (values,) if values.dtype.kind in "biuf" else ()


def _given(batch: Batch, mask: str, device: str) -> TorchBatch:
    import torch

    given = batch.on(device)
    if given.attention_mask is not None and mask != "int64":
        given.attention_mask = given.attention_mask.to(getattr(torch, mask))
    return given
