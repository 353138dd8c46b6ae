"""A connection between two processes: messages of bytes, and arrays, which the receiver copies.

Nothing that arrives is believed: a message has a limit, an array is of a type of number, of as many bytes as its shape says and as
the receiver allows, and no wait is longer than the deadline. No code is run by receiving.

On the wire a message is its length (4 bytes) and a `_Frame` in MessagePack. Each array follows: its bytes, or, where it is large,
one byte with the descriptor of a file in memory.
"""

import array
import math
import os
import socket
import stat
import struct
import threading
import time
from collections.abc import Sequence
from math import prod
from typing import Any

import msgspec
import numpy as np

_SMALL = 2**16  # bytes, the size of a pipe: what is no larger is sent as it is
_LONGEST = 2**24  # bytes of a message without its arrays: several times what the longest text and a batch take
_LENGTH = struct.Struct("!I")


class NoMessageError(ValueError):
    """What was received is no message."""


class _Header(msgspec.Struct, frozen=True):
    """Of an array that follows.

    Attributes:
        in_file: whether a descriptor is sent and not the bytes.
    """

    shape: tuple[int, ...]
    dtype: str
    in_file: bool


class _Frame(msgspec.Struct, frozen=True):
    message: bytes
    arrays: tuple[_Header, ...]


_FRAME = msgspec.msgpack.Decoder(_Frame)


def _bytes(header: _Header) -> int:
    """Of the array; `ValueError` where it is none of numbers."""
    dtype = np.dtype(header.dtype)
    if dtype.kind not in "biuf" or any(length < 0 for length in header.shape):
        raise ValueError(f"an array of {header.dtype}, {header.shape}")
    return prod(header.shape) * dtype.itemsize


class Link:
    """One end.

    Attributes:
        end: the socket.
        deadline: when waiting ends, on `time.monotonic`'s clock.
    """

    def __init__(self, end: socket.socket) -> None:
        """Of a pair of Unix sockets; without a deadline."""
        self.end, self.deadline = end, math.inf
        self._turn = threading.Lock()

    def send(self, message: bytes, arrays: Sequence[Any] = ()) -> None:
        """A message and NumPy arrays.

        Raises:
            TimeoutError: the other end does not read.
            OSError: it is closed.
        """
        contiguous = [np.ascontiguousarray(one).reshape(one.shape) for one in arrays]
        in_files = [one.nbytes > _SMALL and hasattr(os, "memfd_create") for one in contiguous]
        headers = (_Header(one.shape, one.dtype.str, in_file) for one, in_file in zip(contiguous, in_files, strict=True))
        frame = msgspec.msgpack.encode(_Frame(message, tuple(headers)))
        with self._turn:
            self._wait()
            self.end.sendall(_LENGTH.pack(len(frame)) + frame)
            for one, in_file in zip(contiguous, in_files, strict=True):
                (self._send_file if in_file else self.end.sendall)(one.reshape(-1).view(np.uint8).data)

    def receive(self, most: float = 0) -> tuple[bytes, list[Any]]:
        """The next message, and its arrays, of `most` bytes together.

        Raises:
            TimeoutError: the deadline has passed.
            EOFError: the other end is closed.
            NoMessageError: what it sent is no message, or more than is expected.
        """
        try:
            (length,) = _LENGTH.unpack(self._read(bytearray(_LENGTH.size)))
            if length > _LONGEST:
                raise NoMessageError(f"a message of {length} bytes")
            frame = _FRAME.decode(self._read(bytearray(length)))
            size = sum(_bytes(header) for header in frame.arrays)
            if size > most:
                raise NoMessageError(f"arrays of {size} bytes, where {most} are expected")
            return frame.message, [self._array(header) for header in frame.arrays]
        except (ValueError, TypeError, msgspec.MsgspecError, RecursionError) as error:
            raise NoMessageError(str(error)) from error

    def close(self) -> None:
        """Close this end."""
        self.end.close()

    def _array(self, header: _Header) -> Any:
        found = np.empty(header.shape, header.dtype)
        memory = found.reshape(-1).view(np.uint8).data
        if header.in_file:
            self._receive_file(memory)
        else:
            self._read(memory)
        return found

    def _wait(self) -> None:
        """Let the next operation of the socket end at the deadline."""
        if self.deadline == math.inf:
            self.end.settimeout(None)
            return
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self.end.settimeout(left)

    def _read(self, memory: Any) -> Any:
        view = memoryview(memory)
        while len(view):
            self._wait()
            count = self.end.recv_into(view)
            if not count:
                raise EOFError("the other end is closed")
            view = view[count:]
        return memory

    def _send_file(self, memory: Any) -> None:
        with open(os.memfd_create("array"), "wb", buffering=0) as file:
            while len(memory):
                memory = memory[file.write(memory) :]
            descriptor = array.array("i", [file.fileno()])
            self._wait()
            self.end.sendmsg([b"\0"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptor)])

    def _receive_file(self, memory: Any) -> None:
        self._wait()
        _, descriptors, _, _ = socket.recv_fds(self.end, 1, 1)
        if len(descriptors) != 1:
            raise NoMessageError("no file, where an array is expected")
        with open(descriptors[0], "rb", buffering=0) as file:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode) or about.st_size != len(memory):
                raise NoMessageError("a file that is not the array")
            offset = 0
            while offset < len(memory):
                # From a place of its own: the sender has the same file, and its position.
                count = os.preadv(file.fileno(), [memory[offset:]], offset)
                if not count:
                    raise NoMessageError("a file that has become shorter")
                offset += count
