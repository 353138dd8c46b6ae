"""The server from which workers are forked: it has imported the suite and torch, and no candidate. Imports nothing heavy itself."""

import multiprocessing
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import BaseContext

_PRELOADED = "conformance.isolation.preload"


def started_context(*more: str) -> BaseContext:
    """How workers are started: forked from the server, which is started if need be; anew where processes cannot be forked.

    `more` are modules that the server imports too, if it is started now.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    from multiprocessing import forkserver

    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload([_PRELOADED, *more])
    with _interrupts_ignored():
        forkserver.ensure_running()
    return found


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """A process that is started meanwhile, and those that are forked from it, leave Ctrl-C to the one that asks."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
