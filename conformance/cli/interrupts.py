"""Signals that end a command: each raises an interrupt, so that what the command has written for a while is removed."""

import atexit
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from conformance.errors import INTERRUPTED
from conformance.model.files import remove_scratch_folders

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)  # the signals that end a process, and that it may handle
_arrived: list[int] = []  # the signals that have arrived in the context


class Interrupt(KeyboardInterrupt):
    """The interrupt that a signal raises.

    Attributes:
        exit_code: that of shells after the signal.
    """

    def __init__(self, number: int) -> None:
        """Take the number of the signal."""
        super().__init__(signal.strsignal(number))
        self.exit_code = INTERRUPTED - signal.SIGINT + number


@contextmanager
def raised_interrupts() -> Iterator[None]:
    """Raise an `Interrupt` for each signal inside the context that would end the process, and then remove temporary folders.

    A signal that is ignored, or that has a handler already, is left alone, and so are all in another thread than the main one.
    """
    _arrived.clear()
    by_default = (signal.SIG_DFL, signal.default_int_handler)
    ending = [number for number in _ENDING if signal.getsignal(number) in by_default]
    if threading.current_thread() is not threading.main_thread():
        ending = []
    before = {number: signal.signal(number, _raise) for number in ending}
    try:
        yield
    finally:
        if _arrived:  # else the folders are removed when the process ends
            _ignore(ending)
            remove_scratch_folders()
            atexit.register(_ignore, ending)  # further folders are removed then
        for number, handler in before.items():
            signal.signal(number, handler)


def raise_lost_interrupt() -> None:
    """Raise an interrupt again if a signal has arrived.

    Python prints and discards an exception that is raised in a finalizer or in a callback of the garbage collector.
    """
    if _arrived:
        raise Interrupt(_arrived[0])


def _raise(number: int, frame: FrameType | None) -> None:
    _arrived.append(number)
    raise Interrupt(number)


def _ignore(numbers: list[signal.Signals]) -> None:
    for number in numbers:
        signal.signal(number, signal.SIG_IGN)
