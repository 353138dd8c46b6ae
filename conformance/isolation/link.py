"""A connection between two processes for messages of bytes and NumPy arrays; the receiver copies the arrays.

The receiver validates everything: the size of a message is limited; an array must have a numeric dtype, the number of bytes that
its shape implies, and at most as many bytes as the receiver allows; and no wait exceeds the deadline. Receiving runs no code.

On the wire, a message is its length (4 bytes) followed by a `_Frame` in MessagePack. Each array follows, either as its bytes or, if
it is large, as one byte together with the descriptor of a file in memory.
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

_SMALL = 2**16  # bytes, the size of a pipe: arrays up to this size are sent as bytes
_LONGEST = 2**24  # bytes of a message without its arrays: several times the size of the longest text and a batch
_LENGTH = struct.Struct("!I")


class NoMessageError(ValueError):
    """The received data is not a valid message."""


class _Header(msgspec.Struct, frozen=True):
    """The header of an array that follows a frame.

    Attributes:
        shape: shape of the array.
        dtype: NumPy's string for the dtype.
        in_file: whether a file descriptor is sent instead of the bytes.
    """

    shape: tuple[int, ...]
    dtype: str
    in_file: bool


class _Frame(msgspec.Struct, frozen=True):
    message: bytes
    arrays: tuple[_Header, ...]


_FRAME = msgspec.msgpack.Decoder(_Frame)


def _bytes(header: _Header) -> int:
    """Return the number of bytes of an array; raise `ValueError` if it is not numeric or its shape is invalid."""
    dtype = np.dtype(header.dtype)
    if dtype.kind not in "biuf" or any(length < 0 for length in header.shape):
        raise ValueError(f"an array of {header.dtype}, {header.shape}")
    return prod(header.shape) * dtype.itemsize


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

    def send(self, message: bytes, arrays: Sequence[Any] = ()) -> None:
        """Send a message and NumPy arrays.

        Raises:
            TimeoutError: the deadline has passed because the other end does not read.
            OSError: the other end is closed.
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

    def receive(self, most: float = 0, longest: float = _LONGEST) -> tuple[bytes, list[Any]]:
        """Receive the next message, of at most `longest` bytes, and its arrays, which may have at most `most` bytes in total.

        Raises:
            TimeoutError: the deadline has passed.
            EOFError: the other end is closed.
            NoMessageError: the data received is not a valid message, or is larger than allowed.
        """
        try:
            (length,) = _LENGTH.unpack(self._read(bytearray(_LENGTH.size)))
            if length > longest:
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
        """Set the timeout of the next socket operation to the time until the deadline; raise `TimeoutError` if that has passed."""
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
                # At an explicit offset, since the sender shares the file and its position.
                count = os.preadv(file.fileno(), [memory[offset:]], offset)
                if not count:
                    raise NoMessageError("a file that has become shorter")
                offset += count
