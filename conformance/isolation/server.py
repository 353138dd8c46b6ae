"""The server from which workers are forked: it has imported the suite and torch, and no candidate. Imports nothing heavy itself."""

import multiprocessing
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
    forkserver.ensure_running()
    return found
