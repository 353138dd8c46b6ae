"""The worker's side of the isolation: the candidate that a worker holds, and what can be asked of it.

Each ability of a candidate is declared once, as a method here or of `Surroundings`: the judging process asks for the method, and
the types of its arguments and its result are the schema of the messages.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
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
from conformance.checks.search.subject import Subject
from conformance.checks.search.surroundings import Surroundings
from conformance.checks.training_passes import in_training, random_numbers_from
from conformance.errors import CandidateError, ConformanceError
from conformance.isolation.link import PROTOCOL
from conformance.model.activations import table
from conformance.model.architecture import Architecture
from conformance.model.batch import Batch, TorchBatch
from conformance.model.checkpoint import Checkpoint, LazyWeights
from conformance.model.pretraining import PretrainingConventions, PretrainingCorpus
from conformance.model.training import Training
from conformance.names import class_name
from conformance.numerics.devices import loss_of, require_device
from conformance.numerics.formats import Array
from conformance.results.termination import call_candidate

TOGETHER = 2**20  # bytes of activations sent in one message, if all of them are requested at once
WIDEST_ELEMENT = 8  # bytes of the widest element that is sent
_SMALL = 2**16  # bytes: an activation up to this size is sent together with its description

Values = np.ndarray[Any, Any]
Tokenizer = tuple[Sequence[str], bool, bool | None]  # the vocabulary, `lower_case` and `strip_accents`
Tokens = tuple[list[int], list[tuple[int, int]] | None]  # ids, and the start and end of each in the text, if these are returned


class Traits(msgspec.Struct, frozen=True):
    """The attributes of a candidate that are needed before it is run.

    Attributes:
        is_instrumented: whether it has an attribute `unobserved`, because observing its activations may change how it is run.
        known_failures: its attribute `known_failures`, the path of a file; None if it has none.
        batch_invariant: its attribute `batch_invariant`.
        tokenizes: whether it has its own tokenizer.
        features: the features that it names.
        protocol: version of the protocol that the process speaks.
    """

    is_instrumented: bool = False
    known_failures: str | None = None
    batch_invariant: bool = False
    tokenizes: bool = False
    features: tuple[str, ...] = ()
    protocol: int = 0


class Head(msgspec.Struct, frozen=True):
    """The description of an activation, as in `candidates.arrays.Described`.

    Attributes:
        name: name of the activation; None if the candidate's name for it is not a string; `unreadable` then has the reason.
        dtype: name of the dtype.
        shape: length of each axis.
        device: torch device string, or None.
        unreadable: reason why the value is not an array; empty if it is one.
        values: the values of a small array; None if they are to be requested by `CandidateWork.read`.
        number: position of the activation in the call, by which its values are requested.
    """

    name: str | None
    dtype: str = ""
    shape: tuple[int, ...] = ()
    device: str | None = None
    unreadable: str = ""
    values: Values | None = None
    number: int = 0


class Activations(msgspec.Struct, frozen=True):
    """The next activations in the order of the call; after the last there is none.

    Attributes:
        heads: their descriptions.
        inputs: after the last, the inputs of the call in their current state, where the candidate can change them; one whose shape
            has changed has no elements.
    """

    heads: tuple[Head, ...]
    inputs: tuple[Values, ...] = ()


class CandidateWork:
    """The work of a worker that holds a candidate.

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
        self._tokenizers: dict[Any, Callable[[str], Any]] = {}

    @property
    def device_loss(self) -> str | None:
        """The error that made the device unusable; None while it is usable."""
        return loss_of(self._device)

    def of(self, kind: str) -> object:
        """Return the object of which a method is asked: the runner's surroundings, or this work for an empty text."""
        return self._surroundings if kind == Surroundings.__name__ else self

    def load(self, name: str, protocol: int) -> Traits:
        """Import the candidate of that name; the judge speaks that version of the protocol."""
        self._candidate = load_implementation(name)
        path = self._trait("known_failures")
        return Traits(
            self._form(unobserved=True) is not self._candidate,
            None if path is None else call_candidate(lambda: str.__str__(str(path))),
            call_candidate(lambda: bool(self._trait("batch_invariant"))),
            self._trait("tokenizer") is not None,
            named_features(self._candidate),
            protocol=PROTOCOL,
        )

    def supports(self, architecture: Architecture, device: str, dtype: str, unobserved: bool) -> str | None:
        """Return the reason why the candidate does not support a case; None if it supports the case."""
        return refusal(self._form(unobserved=unobserved), architecture, device, dtype)

    def prepare(self, architecture: Architecture, parameters: Sequence[str], device: str, dtype: str, unobserved: bool) -> None:
        """Prepare a runner from parameters of these names; it replaces the runner prepared before."""
        require_device(device)
        self._checkpoints += 1
        weights = LazyWeights(parameters, partial(self._parameter_of, self._checkpoints))
        self._subject, self._stream, self._inputs = None, iter(()), ()  # free the memory of the previous runner first
        checkpoint, candidate = Checkpoint(architecture, weights), self._form(unobserved=unobserved)
        self._subject = Subject(candidate, checkpoint, device, dtype, prepared(candidate, checkpoint, device, dtype))
        self._device = device

    def call(self, batch: Batch, mask: str, at_once: bool, source: str | None, gradient: Array | None, seed: int | None) -> None:
        """Call the prepared runner; `next` then returns its activations.

        Args:
            batch: the inputs.
            mask: dtype of the attention mask passed to the runner.
            at_once: whether the call runs to its end before its first activation is returned, as in `candidates.capture.at_once`.
            source: name of the activation at which a backward pass starts; None: no backward pass.
            gradient: the gradient with respect to that activation.
            seed: seed of torch's random numbers in training mode; None: eval mode.
        """
        subject, given = self._prepared, _given(batch, mask, self._prepared.device)
        # The tensors themselves, since a candidate may replace the attributes of the batch.
        inputs = [getattr(given, name) for name in batch.arrays()] if source is None else []

        def stream() -> Iterator[tuple[str, Any]]:
            if source is None or gradient is None:
                return call_candidate(lambda: pairs(subject.runner(given), table(subject.checkpoint.architecture), notes=True))
            return backward_pass(subject.runner, given, subject.checkpoint.architecture, subject.dtype, source, gradient)

        with _called(at_once=at_once):
            answer = stream() if seed is None else in_training(subject.runner, seed, stream)
        self._begin(answer, inputs, at_once=at_once)

    def train(self, training: Training, seed: int) -> None:
        """Start a training loop of the prepared runner, with torch's random numbers seeded by `seed`."""
        import torch

        start = ability(self._prepared.runner, "trainer")
        torch.manual_seed(seed)
        self._step = call_candidate(lambda: start(training), may_refuse=True)

    def step(self, batch: Batch) -> None:
        """Do one step of the training loop; `next` then returns what the step yields."""
        if self._step is None:
            raise RuntimeError("no training loop was started")
        self._begin(yielded(partial(self._step, batch.on(self._device))))

    def initialize(self, seed: int) -> None:
        """Draw the parameters before training, with torch's random numbers seeded by `seed`; `next` then returns them."""
        self._begin(self._initial(seed))

    def tensors(self, names: Sequence[str]) -> None:
        """Select parameters and buffers of the runner's module by name; `next` then returns them."""
        self._begin(guarded(self._surroundings.tensors(names)), at_once=True)

    def next(self) -> Activations:
        """Return the next activations of the call: one, or several if the call is at once.

        If the call fails after some activations, these are returned first, and the failure is the next answer.
        """
        heads: list[Head] = []
        size = 0
        try:
            while not heads or (self._at_once and heads[-1].values is not None and size < TOGETHER - _SMALL):
                if self._failure is not None:
                    raise self._failure
                with _called(at_once=self._at_once):
                    found = call_candidate(lambda: next(self._stream, None))
                if found is None:
                    break
                heads.append(self._described(*found))
                size += 0 if heads[-1].values is None else heads[-1].values.nbytes
        except ConformanceError as failure:
            if not heads:
                raise
            self._failure = failure
        return Activations(tuple(heads), () if heads else self._inputs_now())

    def read(self, number: int) -> Values:
        """Return the values of the latest activation; `number` is its position in the call."""
        if number != self._number:
            raise RuntimeError("it is gone: a candidate may use the memory of an activation again")
        values: Values = self._last.read()
        return values

    def tokenize(self, tokenizer: Tokenizer, text: str) -> Tokens:
        """Tokenize a text with the candidate's tokenizer for these settings."""
        return call_candidate(lambda: self._tokens(tokenizer, text))

    def conventions(self) -> PretrainingConventions | None:
        """Return the conventions of the candidate's own pre-training data; None if it has none."""
        return None if self._trait("pretraining_data") is None else require_data(self._candidate).conventions

    def epoch(self, corpus: PretrainingCorpus, epoch: int) -> Sequence[Batch]:
        """Return the batches of pre-training examples of an epoch of a corpus."""
        return epoch_of(require_data(self._candidate), corpus, epoch)

    def enter(self, method: str, arguments: Sequence[int]) -> None:
        """Enter the context manager that a method of the surroundings returns, until `leave` is called."""
        self._entered.append(getattr(self._surroundings, method)(*arguments))
        self._entered[-1].__enter__()

    def leave(self) -> None:
        """Exit the context that was entered last."""
        self._entered.pop().__exit__(None, None, None)

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

    @property
    def _surroundings(self) -> Surroundings:
        return Surroundings(self._subject and self._subject.runner, self._device)

    def _begin(self, stream: Iterator[tuple[str, Any]], inputs: Sequence[Any] = (), *, at_once: bool = False) -> None:
        """Set the stream from which `next` returns activations."""
        self._stream, self._at_once = stream, at_once
        self._inputs = [(tensor, tensor.shape) for tensor in inputs]
        self._number, self._failure = 0, None

    def _initial(self, seed: int) -> Iterator[tuple[str, Any]]:
        with random_numbers_from(seed):
            yield from yielded(ability(self._prepared.runner, "initial"))

    def _inputs_now(self) -> tuple[Values, ...]:
        return tuple(described(t).read() if t.shape == shape else np.empty(0) for t, shape in self._inputs)

    def _described(self, name: Any, value: Any) -> Head:
        self._number += 1
        if type(name) is not str:
            return Head(None, unreadable=f"an activation's name is a text, not {class_name(name)}")
        try:
            self._last = last = described(value)
        except CandidateError as error:
            return Head(name, unreadable=str(error))
        return Head(name, last.dtype, tuple(map(int, last.shape)), last.device, values=_small(last), number=self._number)

    def _tokens(self, tokenizer: Tokenizer, text: str) -> Tokens:
        from conformance.checks.laws.tokenization import plain_reading

        vocabulary, lower_case, strip_accents = tokenizer
        key = (tuple(vocabulary), lower_case, strip_accents)
        if key not in self._tokenizers:
            made = self._candidate.tokenizer(list(vocabulary), lower_case=lower_case, strip_accents=strip_accents)
            self._tokenizers[key] = made
        return plain_reading(self._tokenizers[key](text))


def _called(*, at_once: bool) -> AbstractContextManager[None]:
    return capture.at_once() if at_once else nullcontext()


def _small(described: Described) -> Values | None:
    """Return the values of a small array; None if the array is large, unreadable or not numeric.

    The description of the array is sent first in any case, so that an error in it is reported first.
    """
    if prod(described.shape) * WIDEST_ELEMENT > _SMALL:
        return None
    try:
        values: Values = described.read()
    except CandidateError:
        return None
    return values if values.dtype.kind in "biuf" and values.itemsize <= WIDEST_ELEMENT else None


def _given(batch: Batch, mask: str, device: str) -> TorchBatch:
    import torch

    given = batch.on(device)
    if given.attention_mask is not None and mask != "int64":
        given.attention_mask = given.attention_mask.to(getattr(torch, mask))
    return given
