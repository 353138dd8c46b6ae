"""What a worker writes to standard output and standard error, handed on up to a limit."""

import codecs
import os
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection

_CHUNK = 65536  # bytes, the size of a pipe


class Output:
    """The end of a pipe at which what a worker writes is read; text goes to `show`, and none of it after `limit` bytes."""

    def __init__(self, end: Connection, limit: int, show: Callable[[str], object]) -> None:
        """Nothing is read yet."""
        self.end, self._left, self._show = end, limit, show
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self.is_open = True

    def forward(self) -> None:
        """Hand on what there is; it waits where there is nothing yet."""
        chunk = os.read(self.end.fileno(), _CHUNK)
        self.is_open = bool(chunk)
        if self._left <= 0:
            return
        shown, self._left = chunk[: self._left], self._left - len(chunk)
        self._show(self._decode(shown) + ("\n… what it writes from here on is not shown\n" if self._left <= 0 else ""))

    def drain(self) -> None:
        """Hand on what is left of a process that has ended."""
        while self.is_open and self.end.poll():
            self.forward()
        self.end.close()


def to_standard_error(text: str) -> None:
    """Write it at once; where there is no standard error, nowhere."""
    if sys.stderr is not None:
        sys.stderr.write(text)
        sys.stderr.flush()
