"""Progress reports of a run: a short description of the current step, and the fraction of the case that is done.

Judges and searches call `report_progress`. Without a watcher, a call costs only the lookup of one context variable.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Watcher = Callable[[str, float], None]

_watcher: ContextVar[Watcher | None] = ContextVar("watcher", default=None)


def report_progress(what: str, done: float) -> None:
    """Report the current step to the watcher, if there is one.

    Args:
        what: short description of the step.
        done: fraction done of the enclosing part (see `part`), from 0 to 1.
    """
    watcher = _watcher.get()
    if watcher is not None:
        watcher(what, done)


@contextmanager
def watched(watcher: Watcher) -> Iterator[None]:
    """Send the reports made inside this context to `watcher`."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


@contextmanager
def part(which: int, of: int) -> Iterator[None]:
    """Treat the reports made inside this context as those of part `which` (counted from 0) of `of` equal parts."""
    outer = _watcher.get()
    if outer is None:
        yield
        return
    with watched(lambda what, done: outer(what, (which + done) / of)):
        yield
