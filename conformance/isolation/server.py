"""The server from which workers are forked: it has imported the suite and torch, and no candidate. Imports nothing heavy itself."""

import multiprocessing
from multiprocessing.context import BaseContext

_PRELOADED = "conformance.isolation.preload"


def context() -> BaseContext:
    """How workers are started: forked from the server; anew where processes cannot be forked."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload([_PRELOADED])
    return found


def start_server() -> None:
    """Start it, so that it imports while this process does something else."""
    if context().get_start_method() == "forkserver":
        from multiprocessing import forkserver

        forkserver.ensure_running()
