"""A connection between two processes: messages, and arrays, which are handed over in memory that is shared for that alone."""

import mmap
import os
from dataclasses import dataclass
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

_SMALL = 2**16  # bytes, the size of a pipe: what is no larger goes through it at once


@dataclass(frozen=True)
class _Header:
    """Of an array that follows."""

    shape: tuple[int, ...]
    dtype: str


class Link:
    """One end. What is received of an array is a copy that nobody else can alter.

    Messages are pickled: who writes there on purpose can run code at the other end.
    """

    def __init__(self, connection: Connection) -> None:
        """Of a duplex pipe."""
        self.connection = connection

    def send(self, message: object, array: Any = None) -> None:
        """A message, with an array or without."""
        if array is None or array.nbytes <= _SMALL or not hasattr(os, "memfd_create"):
            self.connection.send((message, array))
            return
        self.connection.send((message, _Header(array.shape, array.dtype.str)))
        with open(os.memfd_create("array"), "wb") as memory:
            memory.write(np.ascontiguousarray(array).data.cast("B"))
            memory.flush()
            reduction.send_handle(self.connection, memory.fileno(), None)

    def receive(self) -> tuple[Any, Any]:
        """A message, and the array that came with it or None.

        Raises:
            EOFError: the other end is closed, or something else was written there.
        """
        try:
            message, array = self.connection.recv()
            return message, self._mapped(array) if isinstance(array, _Header) else array
        except (EOFError, OSError):
            raise
        except Exception as error:
            raise EOFError from error

    def _mapped(self, header: _Header) -> Any:
        handle = reduction.recv_handle(self.connection)
        try:
            memory = mmap.mmap(handle, 0, mmap.MAP_PRIVATE)
        finally:
            os.close(handle)
        return np.frombuffer(memory, header.dtype).reshape(header.shape)
