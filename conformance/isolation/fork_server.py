"""The fork server for workers: it has imported the suite and torch, but no candidate. This module imports nothing heavy itself."""

import multiprocessing
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import BaseContext

from conformance.errors import UsageError

_PRELOADED = "conformance.isolation.preload"


def started_context(*more: str) -> BaseContext:
    """Return the multiprocessing context that starts workers.

    Workers are forked from the fork server, which is started if needed. Where there is no fork server, they are spawned.

    Args:
        more: additional modules for the fork server to import, if it is started by this call.

    Raises:
        UsageError: a worker is importing the script that started it, and the script starts workers when it is imported.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise UsageError(
            "a worker process imports the script that runs the suite, and the script runs it again when it is imported; "
            'put the call under `if __name__ == "__main__":`'
        )
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    from multiprocessing import forkserver, resource_tracker

    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload([_PRELOADED, *more])
    resource_tracker.ensure_running()  # started first, since starting it later would unblock the interrupt
    with interrupts_blocked():
        forkserver.ensure_running()
    return found


@contextmanager
def interrupts_blocked() -> Iterator[None]:
    """Block SIGINT inside the context, where the system supports it; a signal that arrives is delivered afterwards.

    Processes started inside the context, and processes forked from these, inherit the block: Ctrl-C reaches the parent only.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
