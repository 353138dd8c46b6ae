"""What is sent between the process that judges and a worker.

A worker is asked by pickled questions: it trusts who started it. What it says is a `Said`: plain values of a fixed form, in
MessagePack, so that nothing that a candidate writes there runs in the process that judges, or is taken for what it is not.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from conformance import errors
from conformance.errors import CandidateFailure, ConformanceError
from conformance.model.batch import Batch
from conformance.model.pretraining import PretrainingConventions
from conformance.names import LONGEST

SMALL = 2**16  # bytes: an activation that is no larger is sent with what is said of it
TOGETHER = 2**20  # bytes of activations that are sent together, where all of them are wanted at once
WIDEST = 8  # bytes of an element that is sent


@dataclass(frozen=True)
class Question:
    """A method of the work that a worker does, and its arguments."""

    method: Callable[..., Any]
    arguments: tuple[Any, ...]


class Said(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """What a worker says."""


class Done(Said, frozen=True):
    """There is nothing to be said, or nothing more."""


class Traits(Said, frozen=True):
    """What of a candidate must be known before it is run.

    Attributes:
        is_instrumented: whether it has a form `unobserved`, since to look into it may change how it is run.
        known_failures: its attribute of that name, the path of a file; None: it has none.
        batch_invariant: whether it promises that.
        tokenizes: whether it brings a tokenizer.
        features: those that it names.
    """

    is_instrumented: bool
    known_failures: str | None
    batch_invariant: bool
    tokenizes: bool
    features: tuple[str, ...]


class Reason(Said, frozen=True):
    """Why it does not support a case; None: it does."""

    text: str | None


class Head(msgspec.Struct, frozen=True):
    """An activation, as in `candidates.arrays.Described`.

    Attributes:
        number: how many came before it in the call, and itself.
        name: None where the candidate gave something else for a name; then `unreadable` says what.
        unreadable: why it is no array, if so.
        is_sent: whether its values come with the answer.
    """

    number: int
    name: str | None
    dtype: str = ""
    shape: tuple[int, ...] = ()
    device: str | None = None
    unreadable: str = ""
    is_sent: bool = False


class Heads(Said, frozen=True):
    """The next activations, in the order in which they came; the arrays of those that are sent follow.

    After the last, none, with the inputs of the call as they are then: without elements where the shape is another.
    """

    heads: tuple[Head, ...]


class Reading(Said, frozen=True):
    """A tokenizer's ids, and the begin and the end of each; None: it says nothing of them."""

    ids: tuple[int, ...]
    offsets: tuple[tuple[int, int], ...] | None


class Brought(Said, frozen=True):
    """The conventions of the pre-training data that a candidate brings; None: it brings none."""

    conventions: PretrainingConventions | None


class Epoch(Said, frozen=True):
    """Batches of pre-training examples: the names of each one's arrays, which follow."""

    batches: tuple[tuple[str, ...], ...]


class Found(Said, frozen=True):
    """Plain data, whose form is checked where it was asked for."""

    value: Any


class Failure(Said, frozen=True):
    """In place of an answer: an error of the project's own, by its class's name, raised anew where it was asked.

    Attributes:
        batch: names of the arrays of the batch that it was raised for, which follow; none where that is not known.
    """

    kind: str
    text: str
    batch: tuple[str, ...] = ()

    @classmethod
    def of(cls, error: ConformanceError) -> "tuple[Failure, list[Any]]":
        """As the nearest of the project's own classes: a candidate's own exists in the worker alone."""
        kind = next(c.__name__ for c in type(error).__mro__ if getattr(errors, c.__name__, None) is c)
        batch = error.batch if isinstance(error, CandidateFailure) else None
        arrays: dict[str, Any] = batch.arrays() if batch else {}
        return cls(kind, str(error)[: 2 * LONGEST], tuple(arrays)), list(arrays.values())

    def error(self, arrays: list[Any]) -> ConformanceError:
        """It; `ValueError` where there is no error of that name, or the arrays are not those of its batch."""
        kind = getattr(errors, self.kind, None)
        if not isinstance(kind, type) or not issubclass(kind, ConformanceError):
            raise ValueError(f"there is no error {self.kind!r:.100}")
        error = kind(self.text)
        if self.batch and isinstance(error, CandidateFailure):
            error.batch = Batch.of(dict(zip(self.batch, arrays, strict=True)))
        return error


class Parameter(Said, frozen=True):
    """Asked by a worker: the parameter of that name; it is sent an array."""

    name: str


class Progress(Said, frozen=True):
    """Said by a worker, as `conformance.progress.report_progress` is called."""

    what: str
    done: float


Answered = Done | Traits | Reason | Heads | Reading | Brought | Epoch | Found | Failure


class Answer(Said, frozen=True):
    """An answer, and whether the device still works."""

    value: Answered
    is_whole: bool


_DECODER = msgspec.msgpack.Decoder(Answer | Parameter | Progress)


def encoded(message: Said) -> bytes:
    """As it is sent; a surrogate in a candidate's text is escaped."""
    try:
        return msgspec.msgpack.encode(message)
    except UnicodeEncodeError:
        plain = msgspec.to_builtins(message)
        return msgspec.msgpack.encode(_escaped(plain))


def decoded(message: bytes) -> Answer | Parameter | Progress:
    """The inverse; `msgspec.MsgspecError` for what is no such message."""
    found: Answer | Parameter | Progress = _DECODER.decode(message)
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
