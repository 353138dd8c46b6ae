"""Progress of a run, reported to a watcher: a description of the current step, and the fraction of the case that is done.

Judges and searches call `report_progress`; without a watcher, a call costs one look-up of a context variable.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Watcher = Callable[[str, float], None]

_watcher: ContextVar[Watcher | None] = ContextVar("watcher", default=None)


def report_progress(what: str, done: float) -> None:
    """Report the current step, and the fraction, 0 to 1, of the enclosing part that is done."""
    watcher = _watcher.get()
    if watcher is not None:
        watcher(what, done)


@contextmanager
def watched(watcher: Watcher) -> Iterator[None]:
    """Send progress reports made inside the context to `watcher`."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


@contextmanager
def part(which: int, of: int) -> Iterator[None]:
    """Scale progress reports made inside the context to part number `which`, counted from 0, of `of` equal parts."""
    outer = _watcher.get()
    if outer is None:
        yield
        return
    with watched(lambda what, done: outer(what, (which + done) / of)):
        yield
