"""The progress of a run, for a watcher: a few words on the current step, and the fraction of the case that is done.

Judges and searches call `report_progress`; without a watcher that costs the look at one variable.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Watcher = Callable[[str, float], None]

_watcher: ContextVar[Watcher | None] = ContextVar("watcher", default=None)


def report_progress(what: str, done: float) -> None:
    """The current step, and the fraction that is done, 0 to 1, of the part that this is of."""
    watcher = _watcher.get()
    if watcher is not None:
        watcher(what, done)


@contextmanager
def watched(watcher: Watcher) -> Iterator[None]:
    """Reports made inside go to `watcher`."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


@contextmanager
def part(which: int, of: int) -> Iterator[None]:
    """Reports made inside are of one of so many equal parts, the first of which is 0."""
    outer = _watcher.get()
    if outer is None:
        yield
        return
    with watched(lambda what, done: outer(what, (which + done) / of)):
        yield
