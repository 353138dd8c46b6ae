"""The messages between the judging process and a worker.

Questions to a worker are pickled, since a worker trusts the process that started it. The worker's messages are subclasses of
`Message`: plain values with a fixed schema, in MessagePack, so that data written by a candidate can neither run code in the judging
process nor be mistaken for another message.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from conformance import errors
from conformance.errors import CandidateFailure, ConformanceError
from conformance.model.batch import Batch
from conformance.model.pretraining import PretrainingConventions
from conformance.names import message_of

SMALL = 2**16  # bytes: an activation up to this size is sent together with its description
TOGETHER = 2**20  # bytes of activations sent in one message, if all of them are requested at once
WIDEST_ELEMENT = 8  # bytes of the widest element that is sent


@dataclass(frozen=True)
class Question:
    """A request to a worker: a method of its work, and the arguments."""

    method: Callable[..., Any]
    arguments: tuple[Any, ...]


class Message(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """The base class of all messages from a worker."""


class Done(Message, frozen=True):
    """An answer without content."""


class Traits(Message, frozen=True):
    """The attributes of a candidate that are needed before it is run.

    Attributes:
        is_instrumented: whether it has an attribute `unobserved`, because observing its activations may change how it is run.
        known_failures: its attribute `known_failures`, the path of a file; None if it has none.
        batch_invariant: its attribute `batch_invariant`.
        tokenizes: whether it has its own tokenizer.
        features: the features that it names.
    """

    is_instrumented: bool
    known_failures: str | None
    batch_invariant: bool
    tokenizes: bool
    features: tuple[str, ...]


class Reason(Message, frozen=True):
    """The reason why a candidate does not support a case; None if it supports the case."""

    text: str | None


class Head(msgspec.Struct, frozen=True):
    """The description of an activation, as in `candidates.arrays.Described`.

    Attributes:
        number: position of the activation in the call, from 1.
        name: name of the activation; None if the candidate's name for it is not a string; `unreadable` then has the reason.
        dtype: name of the dtype.
        shape: length of each axis.
        device: torch device string, or None.
        unreadable: reason why the value is not an array; empty if it is one.
        is_sent: whether the values are sent with the answer.
    """

    number: int
    name: str | None
    dtype: str = ""
    shape: tuple[int, ...] = ()
    device: str | None = None
    unreadable: str = ""
    is_sent: bool = False


class Heads(Message, frozen=True):
    """The next activations in the order of the call; the arrays of those with `is_sent` follow.

    After the last activation, `heads` is empty and the arrays are the inputs of the call in their current state; the array of an
    input whose shape has changed has no elements.
    """

    heads: tuple[Head, ...]


class TokenizerReading(Message, frozen=True):
    """The token ids from a tokenizer, and the start and end of each in the text; None if the tokenizer returns no offsets."""

    ids: tuple[int, ...]
    offsets: tuple[tuple[int, int], ...] | None


class Conventions(Message, frozen=True):
    """The conventions of a candidate's own pre-training data; None if it has none."""

    conventions: PretrainingConventions | None


class Epoch(Message, frozen=True):
    """Batches of pre-training examples: the names of the arrays of each batch; the arrays follow."""

    batches: tuple[tuple[str, ...], ...]


class Found(Message, frozen=True):
    """Plain data; the receiver validates its schema."""

    value: Any


class ProjectError(Message, frozen=True):
    """An error of the project's own classes, sent instead of an answer and raised again in the parent process.

    Attributes:
        kind: name of the class in `conformance.errors`.
        text: the message.
        batch: names of the arrays of the batch for which it was raised; the arrays follow. Empty if the batch is not known.
    """

    kind: str
    text: str
    batch: tuple[str, ...] = ()

    @classmethod
    def of(cls, error: ConformanceError) -> "tuple[ProjectError, list[Any]]":
        """Return an error as a message, and the arrays of its batch.

        A subclass defined by a candidate exists only in the worker and is replaced by its nearest base class in this project.
        """
        bases = type.mro(type(error))
        kind = next(name for base in bases for name, own in vars(errors).items() if own is base)
        batch = error.batch if isinstance(error, CandidateFailure) else None
        arrays: dict[str, Any] = batch.arrays() if type(batch) is Batch else {}
        return cls(kind, message_of(error), tuple(arrays)), list(arrays.values())

    def error(self, arrays: list[Any]) -> ConformanceError:
        """Return the error, to be raised.

        Raises:
            ValueError: there is no error class of that name, or the arrays do not match the names of the batch.
        """
        kind = getattr(errors, self.kind, None)
        if not isinstance(kind, type) or not issubclass(kind, ConformanceError):
            raise ValueError(f"there is no error {self.kind!r:.100}")
        error = kind(self.text)
        if self.batch and isinstance(error, CandidateFailure):
            error.batch = Batch.of(dict(zip(self.batch, arrays, strict=True)))
        return error


class ParameterRequest(Message, frozen=True):
    """A worker's request for the parameter of that name; the reply is an array."""

    name: str


class Progress(Message, frozen=True):
    """A worker's progress, with the arguments of `conformance.progress.report_progress`."""

    what: str
    done: float


Answered = Done | Traits | Reason | Heads | TokenizerReading | Conventions | Epoch | Found | ProjectError


class Answer(Message, frozen=True):
    """An answer, and the error that made the device unusable; None while it is usable."""

    value: Answered
    device_loss: str | None


_DECODER = msgspec.msgpack.Decoder(Answer | ParameterRequest | Progress)


def encoded(message: Message) -> bytes:
    """Encode a message; surrogates in a candidate's text are escaped."""
    try:
        return msgspec.msgpack.encode(message)
    except UnicodeEncodeError:
        plain = msgspec.to_builtins(message)
        return msgspec.msgpack.encode(_escaped(plain))


def decoded(message: bytes) -> Answer | ParameterRequest | Progress:
    """Decode a message; raise `msgspec.MsgspecError` if it is not valid."""
    found: Answer | ParameterRequest | Progress = _DECODER.decode(message)
    return found


def _escaped(plain: Any) -> Any:
    match plain:
        case str():
            return plain.encode("utf-8", "backslashreplace").decode()
        case dict():
            return {key: _escaped(value) for key, value in plain.items()}
        case list() | tuple():
            return [_escaped(value) for value in plain]
    return plain
