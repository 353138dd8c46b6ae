"""Forwarding of candidates' output: of a worker's, up to a limit, and of what candidates in this process write."""

import codecs
import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from multiprocessing.connection import wait

_CHUNK = 65536  # bytes, the size of a pipe


class ForwardedOutput:
    """The reading end of the pipe to which a worker writes; the first `limit` bytes are passed to `show` as text."""

    def __init__(self, end: int, limit: int, show: Callable[[str], object]) -> None:
        """Store the pipe's descriptor, the limit in bytes, and the function that shows text; nothing is read yet."""
        self.end, self._left, self._show = end, limit, show
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self.is_open = True

    def forward(self) -> None:
        """Forward available data; block if there is none yet."""
        chunk = os.read(self.end, _CHUNK)
        self.is_open = bool(chunk)
        if self._left <= 0:
            return
        shown, self._left = chunk[: self._left], self._left - len(chunk)
        self._show(self._decode(shown) + ("\n… what it writes from here on is not shown\n" if self._left <= 0 else ""))

    def drain(self) -> None:
        """Forward the remaining data of a process that has ended, and close the pipe."""
        while self.is_open and wait([self.end], 0):
            self.forward()
        os.close(self.end)


def to_standard_error(text: str) -> None:
    """Write a text to standard error, if there is one, and flush it; each state of a progress bar is a line of its own."""
    if sys.stderr is not None:  # a notebook or a service has none
        sys.stderr.write(text.replace("\r\n", "\n").replace("\r", "\n"))
        sys.stderr.flush()


@contextmanager
def output_to_standard_error() -> Iterator[None]:
    """Write to standard error what Python code, and C code by file descriptor 1, writes to standard output in the context."""
    _flush()
    with redirect_stdout(sys.stderr):
        kept = os.dup(1)
        try:
            os.dup2(2, 1)
            yield
        finally:
            _flush()
            os.dup2(kept, 1)
            os.close(kept)


def _flush() -> None:
    """Write what the interpreter's standard output and, where it can be found, C's have buffered."""
    if sys.__stdout__ is not None:
        sys.__stdout__.flush()
    if os.name == "posix":
        ctypes.CDLL(None).fflush(None)
