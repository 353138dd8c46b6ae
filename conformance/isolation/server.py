"""The server from which workers are forked: it has imported the suite and torch, and no candidate. Imports nothing heavy itself."""

import multiprocessing
import signal
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
    from multiprocessing import forkserver, resource_tracker

    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload([_PRELOADED, *more])
    resource_tracker.ensure_running()  # which, if it has to start its process, takes the block of an interrupt away
    with interrupts_blocked():
        forkserver.ensure_running()
    return found


@contextmanager
def interrupts_blocked() -> Iterator[None]:
    """An interrupt that arrives meanwhile is delivered afterwards, where the system can block it.

    A process that is started meanwhile, and those that are forked from it, leave Ctrl-C to the one that asks.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
