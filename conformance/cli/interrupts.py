"""Interrupts of a run: one that Python loses is noticed at the end of the case that was running."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def noted_interrupts() -> Iterator[Callable[[], None]]:
    """Yield a function that raises `KeyboardInterrupt` if SIGINT has arrived since.

    SIGINT still raises `KeyboardInterrupt` where it arrives, but Python prints and discards an exception that is raised in a
    finalizer or in a callback of the garbage collector. Where SIGINT does not raise it, nothing is changed, and the function does
    nothing.
    """
    before, has_arrived = signal.getsignal(signal.SIGINT), False
    if before is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal has_arrived
        has_arrived = True
        signal.default_int_handler(number, frame)

    def raise_if_arrived() -> None:
        if has_arrived:
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, note)
    try:
        yield raise_if_arrived
    finally:
        signal.signal(signal.SIGINT, before)
