"""The standard streams of a command: whatever it prints is escaped here, and a stream that cannot be written is handled here.

A name, a path or a message may come from a candidate. Control characters and marks that change the direction of writing, which a
terminal would obey, are written as JSON writes them, so that JSON stays JSON. A report escapes them before it is laid out.
"""

import io
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from typing import Any, TextIO

from conformance.errors import OutputError

_OTHER = re.compile(r"[^\n\t -~]")  # the characters of which some are not printable


class Stream:
    """A standard stream that escapes what it writes, with all other attributes of the file that it writes to.

    Nothing more is written once the reader of a pipe has closed it, which is no failure of the command. Nor is it if standard error
    cannot be written, since there is no place to say so.
    """

    def __init__(self, file: TextIO, name: str, *, escapes: bool = True) -> None:
        """Store the file, the name of the stream, and whether its texts are escaped."""
        self._file, self._name, self._escapes = file, name, escapes
        self._is_discarded = False

    @property
    def unescaped(self) -> "Stream":
        """The stream for texts that have been escaped, with the sequences that colour them."""
        return Stream(self._file, self._name, escapes=False)

    def write(self, text: str) -> int:
        """Write a text; raise `OutputError` if standard output cannot be written, as on a full device."""
        self._attempt(lambda: self._file.write(_OTHER.sub(_escaped, text) if self._escapes else text))
        return len(text)

    def flush(self) -> None:
        """Write what is buffered; raise `OutputError` in the case of `write`."""
        self._attempt(self._file.flush)

    def _attempt(self, write: Callable[[], object]) -> None:
        if self._is_discarded:
            return
        try:
            write()
        except OSError as error:
            self._discard()
            if self._name == "standard output" and not isinstance(error, BrokenPipeError):
                raise OutputError(f"{self._name} cannot be written: {error.strerror}") from error

    def _discard(self) -> None:
        """Discard what is written from now on, and what is buffered, which Python would try to write again when it ends."""
        self._is_discarded = True
        with suppress(OSError), open(os.devnull, "wb") as nothing:
            os.dup2(nothing.fileno(), self._file.fileno())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def _escaped(character: re.Match[str]) -> str:
    """Return the character if it is printable, else its UTF-16 code units as JSON writes them."""
    if character[0].isprintable():
        return character[0]
    units = character[0].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[i : i + 4]}" for i in range(0, len(units), 4))


def unescaped(stream: TextIO) -> TextIO:
    """Return the stream to which a library writes that escapes texts itself: that below `Stream`, if there is one."""
    return getattr(stream, "unescaped", stream)


@contextmanager
def printable_streams() -> Iterator[None]:
    """Replace the standard streams by those of the class `Stream` inside the context."""
    with ExitStack() as stack:
        for stream, name, redirect in ((sys.stdout, "output", redirect_stdout), (sys.stderr, "error", redirect_stderr)):
            if not isinstance(stream, Stream):
                stack.enter_context(redirect(Stream(stream, f"standard {name}")))
        yield


def open_missing_streams() -> None:
    """Open those of descriptors 0 to 2 that were closed when the process was started, so that no other file gets their numbers."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            stream = open(number, mode, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115  # it stays open
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)


def replace_unencodable_characters() -> None:
    """Write characters that the encoding of standard output lacks, such as σ in ASCII, as escapes, as standard error does."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors in ("strict", "surrogateescape"):
        sys.stdout.reconfigure(errors="backslashreplace")
