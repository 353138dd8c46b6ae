"""The fork server: a process that has imported the suite and torch, but no candidate, and from which others are forked.

    the judge — the server — the watcher of a worker — the worker — what the worker starts

Without it, each worker would import `_PRELOADED` for 1.8 s of CPU time, and with `_TRANSFORMERS` for 4.1 s (`time.process_time`
after `import`); forked, it has loaded a candidate after 0.2 s. The server and each worker have a session of their own, which
no signal from a terminal reaches. A watcher adopts the orphans of its worker. It kills them and the worker when the worker has
ended, and when the judge closes its connection or ends.

This module imports nothing heavy itself.
"""

import atexit
import ctypes
import io
import json
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from conformance.errors import FixtureError

_PRELOADED = "conformance.isolation.candidate_work"
_TRANSFORMERS = "transformers.models.bert.modeling_bert"  # the slowest import of the reference and of many candidates
_MAIN = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from conformance.isolation import fork_server; fork_server.main()"
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
_ATTEMPTS = 100  # to kill processes that start others in the meantime
_NONE = b"\0"  # the message with which descriptors are sent, which cannot be empty


@dataclass(frozen=True)
class _Server:
    process: "subprocess.Popen[bytes]"
    control: socket.socket
    owner: int  # the process that started it; a fork of that process starts one of its own


_servers: list[_Server] = []  # the server of this process, if there is one


@dataclass(frozen=True)
class Child:
    """A process that was forked from the server, as seen by this process.

    Attributes:
        link: the connection to it.
        output: the pipe from which its standard output and standard error are read.
        status: the connection to its watcher, which sends the exit code when the process has ended.
    """

    link: socket.socket
    output: int
    status: socket.socket

    def exit_code(self, within: float | None = None) -> int | None:
        """Return the exit code, negative for a signal; None if it has not ended after so many seconds, or is not watched."""
        self.status.settimeout(within)
        with suppress(TimeoutError, ValueError):  # nothing to read, if it is not watched
            return int(self.status.recv(16, socket.MSG_PEEK))
        return None

    def end(self) -> None:
        """Kill the process and all that it has started, and wait for their end."""
        with suppress(OSError):
            self.status.shutdown(socket.SHUT_WR)
        self.exit_code()
        self.status.close()


def start_server(*more: str, transformers: bool = True) -> socket.socket:
    """Start the server if there is none; return the connection on which it takes descriptors.

    Args:
        more: additional modules for the server to import, if it is started by this call.
        transformers: whether it is to import Hugging Face's BERT as well, if that is installed.
    """
    if _servers and _servers[0].owner == os.getpid() and _servers[0].process.poll() is None:
        _servers[0].process.send_signal(signal.SIGCONT)  # where signals are not refused, a candidate can stop it
        return _servers[0].control
    ours, theirs = socket.socketpair()
    modules = [_PRELOADED, *([_TRANSFORMERS] if transformers else []), *more]
    with theirs:
        command = [sys.executable, "-c", _MAIN, json.dumps(sys.path), str(theirs.fileno()), *modules]
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=[theirs.fileno()], start_new_session=True
        )
    _servers[:] = [_Server(process, ours, os.getpid())]
    return ours


@atexit.register
def _end_server() -> None:
    for server in _servers:
        if server.owner == os.getpid():
            server.process.kill()
            server.process.wait()
            server.control.close()


def forked(target: str, variables: Mapping[str, str], **arguments: Any) -> Child:
    """Start a process that calls a function with its `Link` and these arguments, in the present folder.

    Raises:
        FixtureError: no server can be started.

    Args:
        target: the function as `module:name`; what it returns is the exit code, 0 for None.
        variables: the environment variables of the process.
        arguments: plain values for JSON.
    """
    from conformance.isolation.link import encoded

    (link, theirs), (status, watched) = socket.socketpair(), socket.socketpair()
    output, writing = os.pipe()
    descriptors = [theirs.fileno(), writing, watched.fileno()]
    if not (_taken(descriptors) or _taken(descriptors)):  # by the server that runs, or a new one if that is ending
        raise FixtureError("the process that starts workers could not be made ready; its error is above")
    theirs.close()
    watched.close()
    os.close(writing)
    with suppress(OSError):  # the process has ended, which is noticed when it is asked
        link.sendall(b"".join(encoded(request=0, method=target, arguments=[arguments, dict(variables), os.getcwd(), sys.path])))
    return Child(link, output, status)


def _taken(descriptors: list[int]) -> bool:
    """Return whether the server has taken the descriptors; one that has not is ended."""
    with suppress(OSError):
        control = start_server()
        socket.send_fds(control, [_NONE], descriptors)
        if control.recv(len(_NONE)):
            return True
    _end_server()
    return False


def main() -> None:
    """Run the server until the process that started it closes the connection."""
    control = socket.socket(fileno=int(sys.argv[2]))
    for module in sys.argv[3:]:
        with suppress(ImportError):  # transformers may not be installed; another error is that of the worker's import
            import_module(module)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for watchers
    while descriptors := socket.recv_fds(control, len(_NONE), 3)[1]:
        if not os.fork():
            control.close()
            _watch(*descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        control.sendall(_NONE)


def _watch(link: int, output: int, status: int) -> NoReturn:
    """Fork the worker, wait for its end or that of its judge, kill what is left of it, and send its exit code."""
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        worker = os.fork()
        if not worker:
            os.close(status)
            _run(link, output)
        os.close(link)
        os.close(output)
        judge = socket.socket(fileno=status)
        threading.Thread(target=_kill_after, args=(judge, worker), daemon=True).start()
        os.waitid(os.P_PID, worker, os.WEXITED | os.WNOWAIT)  # it is kept until its group has ended, which has its number
        _kill(worker)
        code = os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])
        _kill_orphans()
        judge.sendall(b"%d" % code)
    finally:
        os._exit(0)


def _kill_after(judge: socket.socket, worker: int) -> None:
    judge.recv(1)  # until it is closed
    _kill(worker)


def _kill(worker: int) -> None:
    """Kill a worker and its process group."""
    for kill in (os.killpg, os.kill):  # it may not lead its group yet
        with suppress(OSError):
            kill(worker, signal.SIGKILL)


def _kill_orphans() -> None:
    """Kill the descendants of this process, which adopts what those that are killed have started."""
    for _ in range(_ATTEMPTS):
        orphans = [pid for pid, parent in _parents().items() if parent == os.getpid()]
        for pid in orphans:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        if not orphans:
            return


def _run(link: int, output: int) -> NoReturn:
    """Call the requested function in a session of this process's own."""
    code: object = 1
    try:
        os.setsid()
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # with its watcher
        for standard in (1, 2):
            os.dup2(output, standard)
        os.close(output)
        # Unbuffered, so that output printed before the process is killed is not lost.
        sys.stdout, sys.stderr = (
            io.TextIOWrapper(io.FileIO(number, "w", closefd=False), "utf-8", "backslashreplace", write_through=True)
            for number in (1, 2)
        )
        from conformance.isolation.link import Link

        connection = Link(socket.socket(fileno=link))
        first = connection.receive(math.inf, math.inf).message
        given, variables, folder, sys.path[:] = json.loads(bytes(first.arguments))
        os.environ.clear()
        os.environ.update(variables)
        os.chdir(folder)
        module, _, name = first.method.partition(":")
        code = getattr(import_module(module), name)(connection, **given)
    except SystemExit as ended:
        code = ended.code
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code if isinstance(code, int) else 0 if code is None else 1)


def ancestors() -> Iterator[int]:
    """Yield the process ids of the parent of this process, of its parent, and so on; the first alone if there is no /proc."""
    parents, pid = _parents(), os.getppid()
    while pid:
        yield pid
        pid = parents.get(pid, 0)


def _parents() -> dict[int, int]:
    """Return the parent of each running process, by process id; empty if there is no /proc."""
    parents: dict[int, int] = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, parent, *_ = file.read_text("utf-8", "replace").rpartition(")")[2].split()
            if state not in "ZX":
                parents[int(file.parent.name)] = int(parent)
    return parents


def _prctl(what: int, value: int) -> None:
    ctypes.CDLL(None).prctl(what, value)
