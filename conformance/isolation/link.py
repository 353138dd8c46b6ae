"""A connection between two processes: each message is a line of JSON, and its arrays follow as the bytes of a safetensors file.

It is protocol `PROTOCOL`, which a candidate's process speaks in any language (`PROTOCOL.md`). The receiver validates everything: a
line and the arrays are limited in size, the line has a fixed schema, what it contains is converted to the type that is expected,
and no wait exceeds the deadline. Receiving runs no code.
"""

import math
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import numpy as np
from safetensors import SafetensorError, deserialize
from safetensors.numpy import save

from conformance import errors
from conformance.errors import CandidateFailure, ConformanceError, UsageError
from conformance.model.batch import Batch
from conformance.model.files import QUOTED_CHARACTERS
from conformance.names import message_of

PROTOCOL = 2
PAGE = "`bert-conformance explain cmd` has the protocol and clients to copy"
_LONGEST = 2**24  # bytes of a line, or of the arrays beyond those expected: several times the longest text and a batch
_CHUNK = 2**16  # bytes looked at to find the end of a line
_ARRAY = "array"  # key of an object that stands for an array: its number among the arrays of the message
_NULL = msgspec.Raw(b"null")
# NumPy's formats by those of safetensors; bfloat16, which NumPy lacks, is read by its bits.
_BFLOAT16 = "BF16"
_FORMATS = {
    "BOOL": "?", "U8": "u1", "I8": "i1", "U16": "<u2", "I16": "<i2", "U32": "<u4", "I32": "<i4", "U64": "<u8", "I64": "<i8",
    "F16": "<f2", "F32": "<f4", "F64": "<f8", _BFLOAT16: "<u2",
}  # fmt: skip


class NoMessageError(ValueError):
    """The received data is not a valid message."""


class Failure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An error of the project's own classes, sent in place of a result and raised again by the receiver.

    Attributes:
        kind: name of the class in `conformance.errors`.
        text: the message.
        batch: the arrays of the batch for which it was raised, by name; None if the batch is not known.
    """

    kind: str
    text: str
    batch: Any = None

    @classmethod
    def of(cls, error: ConformanceError) -> "Failure":
        """Describe an error; a candidate's own subclass is replaced by its nearest base class in this project."""
        bases = type.mro(type(error))
        kind = next(name for base in bases for name, own in vars(errors).items() if own is base)
        batch = error.batch if isinstance(error, CandidateFailure) else None
        return cls(kind, message_of(error), batch.arrays() if type(batch) is Batch else None)

    def error(self, arrays: Mapping[str, Any]) -> ConformanceError:
        """Return the error, to be raised; raise `NoMessageError` if there is no such class or the batch is not valid.

        `arrays` are those of the message.
        """
        kind = getattr(errors, self.kind, None)
        if not isinstance(kind, type) or not issubclass(kind, ConformanceError):
            raise NoMessageError(f"there is no error {self.kind!r:.100}")
        try:
            error = kind(self.text)
            if self.batch and isinstance(error, CandidateFailure):
                error.batch = Batch.of({name: arrays[str(value[_ARRAY])] for name, value in self.batch.items()})
        except (AttributeError, LookupError, TypeError, UsageError) as why:
            raise NoMessageError(f"an error that cannot be one: {why}") from why
        return error


class Message(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A line: a request, a reply to it, or what a worker asks or reports before it replies.

    Attributes:
        request: number of a request; each is one larger than the last.
        method: name of the method that a worker is to call.
        arguments: its arguments by name.
        reply: number of the request that is answered, so that no other reply is taken for it.
        result: the result of the method, or the parameter that a worker asked for.
        failure: the error that the method raised, in place of a result.
        device_loss: of a reply: the error that made the device unusable; None while it is usable.
        parameter: name of the parameter that a worker needs.
        progress: what a worker is doing, and the part that is done.
        bytes: number of bytes of the arrays that follow.
    """

    request: int | None = None
    method: str = ""
    arguments: msgspec.Raw = _NULL
    reply: int | None = None
    result: msgspec.Raw = _NULL
    failure: Failure | None = None
    device_loss: str | None = None
    parameter: str | None = None
    progress: tuple[str, float] | None = None
    bytes: int = 0


class Link:
    """One end of a connection.

    Attributes:
        end: the socket.
        deadline: time at which waiting ends, on the clock of `time.monotonic`.
    """

    def __init__(self, end: socket.socket) -> None:
        """Store one socket of a pair of Unix sockets; there is no deadline at first."""
        self.end, self.deadline = end, math.inf
        self._turn = threading.Lock()

    def send(self, message: Sequence[bytes]) -> None:
        """Send a message that was made by `encoded`.

        Raises:
            TimeoutError: the deadline has passed because the other end does not read.
            OSError: the other end is closed.
        """
        with self._turn:
            for part in filter(None, message):
                self._wait()
                self.end.sendall(part)

    def receive(self, most: float = 0, longest: float = _LONGEST) -> "Received":
        """Receive the next message, of a line of at most `longest` bytes and arrays of at most `most`.

        Raises:
            TimeoutError: the deadline has passed.
            EOFError: the other end is closed.
            NoMessageError: the data received is not a valid message, or is larger than allowed.
        """
        line = self._line(longest)
        try:
            message = msgspec.json.decode(line, type=Message)
            if not 0 <= message.bytes <= most + longest:
                raise NoMessageError(f"arrays of {message.bytes} bytes, where {most} are expected")
            read: Any = deserialize
            content = read(bytes(self._read(bytearray(message.bytes)))) if message.bytes else ()
            return Received(message, {name: _array(**about) for name, about in content})
        except (ValueError, KeyError, TypeError, SafetensorError, RecursionError) as error:
            raise NoMessageError(f"{line[:QUOTED_CHARACTERS].decode('utf-8', 'backslashreplace')!r}, {error}") from error

    def _line(self, longest: float) -> bytearray:
        """Receive a line, and nothing of what follows it, so that waiting for the socket is waiting for the next message."""
        line = bytearray()
        while not line.endswith(b"\n"):
            self._wait()
            ahead = self.end.recv(_CHUNK, socket.MSG_PEEK)
            if not ahead:
                raise EOFError("the other end is closed")
            line += self._read(bytearray(ahead.find(b"\n") + 1 or len(ahead)))
            if len(line) > longest:
                raise NoMessageError(f"a line of more than {longest} bytes")
        return line

    def _wait(self) -> None:
        """Set the timeout of the next socket operation to the time until the deadline; raise `TimeoutError` if that has passed."""
        if self.deadline == math.inf:
            self.end.settimeout(None)
            return
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self.end.settimeout(left)

    def _read(self, memory: bytearray) -> bytearray:
        view = memoryview(memory)
        while len(view):
            self._wait()
            count = self.end.recv_into(view)
            if not count:
                raise EOFError("the other end is closed")
            view = view[count:]
        return memory


def _array(dtype: str, shape: Sequence[int], data: bytearray) -> Any:
    """Return an array of a safetensors file, one in bfloat16 as float32; raise `KeyError` for a format that is none of numbers."""
    values = np.frombuffer(data, _FORMATS[dtype]).reshape(shape)
    return (values.astype(np.uint32) << 16).view(np.float32) if dtype == _BFLOAT16 else values


@dataclass(frozen=True)
class Received:
    """A received message, and its arrays by number."""

    message: Message
    arrays: Mapping[str, Any]

    def content(self, raw: msgspec.Raw, kind: Any) -> Any:
        """Return a value of the message as an object of the type `kind`; raise `NoMessageError` if it is none."""
        try:
            return msgspec.json.decode(raw, type=kind, dec_hook=self._converted)
        except (ValueError, KeyError, TypeError, RecursionError, UsageError) as error:  # a `UsageError`: of a batch
            raise NoMessageError(str(error)) from error

    def _converted(self, kind: Any, value: Any) -> Any:
        return Path(value) if kind is Path else self.arrays[str(value[_ARRAY])]


def encoded(**fields: Any) -> Sequence[bytes]:
    """Return a message with these fields of `Message`, a line of JSON and the bytes of its arrays.

    `arguments` and `result` are plain values, data classes and arrays.
    """
    arrays: dict[str, Any] = {}

    def converted(value: Any) -> Any:
        if isinstance(value, Path):
            return str(value)
        if not isinstance(value, np.ndarray):
            raise TypeError(f"a message holds no {type(value).__name__}")
        name = str(len(arrays))
        arrays[name] = np.ascontiguousarray(value, value.dtype.newbyteorder("=")).reshape(value.shape)
        return {_ARRAY: int(name)}

    def line_of(value: Mapping[str, Any]) -> bytes:
        return msgspec.json.encode(value, enc_hook=converted)

    try:
        line = line_of(fields)
    except UnicodeEncodeError:  # surrogates in a candidate's text
        arrays.clear()
        line = line_of(_escaped(msgspec.to_builtins(fields, builtin_types=(np.ndarray, Path))))
    content = save(arrays) if arrays else b""
    return line[:-1] + b',"bytes":%d}\n' % len(content), content


def _escaped(plain: Any) -> Any:
    match plain:
        case str():
            return plain.encode("utf-8", "backslashreplace").decode()
        case dict():
            return {key: _escaped(value) for key, value in plain.items()}
        case list() | tuple():
            return [_escaped(value) for value in plain]
    return plain


@cache
def types_of(method: Callable[..., Any]) -> tuple[type[msgspec.Struct], Any]:
    """Return the type of the object of a method's arguments, and that of its result, by its annotations."""
    hints = get_type_hints(method)
    result = hints.pop("return")
    return msgspec.defstruct(method.__name__, list(hints.items()), frozen=True), result
