"""The worker's side of the connection: it is confined, then it answers requests, or becomes the program that does."""

import math
import os
import threading
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Protocol

from conformance.errors import CandidateCrash, ConformanceError
from conformance.isolation.confinement import leave_network, limit_memory
from conformance.isolation.fork_server import ancestors
from conformance.isolation.link import Failure, Link, Received, encoded, types_of
from conformance.isolation.refused_signals import refuse_signals
from conformance.numerics.formats import Array
from conformance.progress import watched
from conformance.results.termination import rendered


class Work(Protocol):
    """The protocol of the work that a worker does: each method with annotated types can be asked."""

    def of(self, kind: str) -> object:
        """Return the object whose class has the name `kind` and whose method is asked; `kind` may be empty."""

    @property
    def device_loss(self) -> str | None:
        """The error that made the device unusable; None while it is usable, so that the worker can continue."""


def serve(link: Link, work: str | list[str], network: bool, memory: int | None) -> None:
    """Confine this process, then answer requests until the connection is closed.

    Args:
        link: the connection.
        work: `module:name` of what makes the `Work`, given a function that requests a parameter by its name; or the arguments of a
            program, which replaces this process and has the connection as its standard input and output.
        network: whether the network may be used.
        memory: limit of the address space in bytes beyond its present size; None: unlimited.
    """
    if not network:
        leave_network()
    refuse_signals(list(ancestors()))
    limit_memory(memory)
    if not isinstance(work, str):
        for standard in (0, 1):
            os.dup2(link.end.fileno(), standard)
        os.execvp(work[0], work)
    _answer(link, work)


def _answer(link: Link, work: str) -> None:
    turn = threading.Lock()

    def parameter(name: str) -> Array:
        with turn:  # a candidate may have several threads
            link.send(encoded(parameter=name))
            received = link.receive(math.inf, math.inf)
            array: Array = received.content(received.message.result, Array)
            return array

    module, _, path = work.partition(":")
    made: Any = import_module(module)
    for name in path.split("."):
        made = getattr(made, name)
    does: Work = made(parameter)
    link.send(encoded(reply=0))
    while True:
        try:
            received = link.receive(math.inf, math.inf)  # of the process that started this one, so that its size is not limited
        except EOFError:
            return
        with watched(lambda what, done: link.send(encoded(progress=(what, done)))):
            reply = _reply(does, received)
        link.send(reply)


def _reply(work: Work, received: Received) -> Sequence[bytes]:
    """Call the requested method and return the message with its result, or with the exception that it raised."""
    message = received.message
    try:
        kind, _, name = message.method.rpartition(".")
        method = getattr(work.of(kind), name)
        arguments = received.content(message.arguments, types_of(method.__func__)[0])
        given = {name: getattr(arguments, name) for name in arguments.__struct_fields__}
        return encoded(reply=message.request, result=method(**given), device_loss=work.device_loss)
    except ConformanceError as error:
        failure = error
    except BaseException as error:  # of an object of the candidate's, wherever its code is run
        failure = CandidateCrash(rendered(error))
    return encoded(reply=message.request, failure=Failure.of(failure), device_loss=work.device_loss)
