"""The fork server for workers: it has imported the suite, torch and, if asked for it, transformers, but no candidate.

This module imports nothing heavy itself.
"""

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import BaseContext
from typing import Any

from conformance.errors import UsageError

ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)  # with SIGINT, the signals that end a process, and that it may handle
_POLL = 0.01  # seconds between two looks at a process that is waited for
_PRELOADED = "conformance.isolation.preload"
_TRANSFORMERS = "transformers.models.bert.modeling_bert"  # the slowest import of the reference and of many candidates


def started_context(*more: str, transformers: bool = True) -> BaseContext:
    """Return the multiprocessing context that starts workers.

    Workers are forked from the fork server, which is started if needed. Where there is no fork server, they are spawned.

    Args:
        more: additional modules for the fork server to import, if it is started by this call.
        transformers: whether it is to import Hugging Face's BERT as well, if that is installed.

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
    found.set_forkserver_preload([_PRELOADED, *([_TRANSFORMERS] if transformers else []), *more])
    resource_tracker.ensure_running()  # started first, since starting it later would unblock the interrupt
    with interrupts_blocked():
        forkserver.ensure_running()
    return found


def server_id() -> int | None:
    """Return the process id of the fork server that the next worker is forked from; None if workers are spawned."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return None
    from multiprocessing import forkserver

    server: Any = forkserver._forkserver  # no public way to it
    found: int | None = server._forkserver_pid
    return found


def has_ended(server: int | None, within: float = 0.0) -> bool:
    """Return whether a fork server has ended; its end is left for multiprocessing to collect, which then starts another one.

    A server that is stopped is killed, since it starts no worker, and reports the end of none.

    Args:
        server: process id of the fork server; None if there is none.
        within: number of seconds to wait for its end.
    """
    deadline = time.monotonic() + within
    while server is not None:
        try:
            change = os.waitid(os.P_PID, server, os.WEXITED | os.WSTOPPED | os.WNOHANG | os.WNOWAIT)
            if change is not None and change.si_code == os.CLD_STOPPED:
                os.kill(server, signal.SIGKILL)
                os.waitid(os.P_PID, server, os.WEXITED | os.WNOWAIT)
            if change is not None:
                return True
        except ChildProcessError:  # collected already
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL)
    return False


@contextmanager
def interrupts_blocked() -> Iterator[None]:
    """Block the signals that end a process inside the context, where the system supports it; they are delivered afterwards.

    Processes started inside the context, and processes forked from these, inherit the block: Ctrl-C reaches the parent only.
    Workers unblock the others (`ENDING`).
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, *ENDING})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
