"""Confinement of a worker: its lifetime and that of its child processes, its memory, and its network access."""

import ctypes
import fcntl
import multiprocessing
import os
import resource
import signal
import socket
import struct
import sys
import threading
from collections.abc import Collection
from contextlib import suppress
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
_ATTEMPTS = 100  # to kill processes that start others in the meantime
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000  # linux/sched.h
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 0x1  # linux/sockios.h, linux/if.h


def bind_to_parent() -> None:
    """Make this process the leader of a session without a terminal, and of a process group that is killed when the parent ends.

    A thread waits for the end of the parent process; on Linux, the kernel also kills this process if the fork server dies.
    """
    if hasattr(os, "setsid"):
        os.setsid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    threading.Thread(target=_end_with_the_parent, daemon=True).start()


def leave_helpers() -> None:
    """Close multiprocessing's connections to the parent's resource tracker and fork server; new ones are started if needed."""
    tracker: Any = resource_tracker._resource_tracker  # no public way to it
    server: Any = forkserver._forkserver
    for holder, attribute in ((tracker, "_fd"), (server, "_forkserver_alive_fd")):
        if getattr(holder, attribute) is not None:
            os.close(getattr(holder, attribute))
            setattr(holder, attribute, None)


def adopt_orphans() -> None:
    """Make this process the parent of its orphaned descendants, so that they can be found in whatever process group they are."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def kill_orphans(but: Collection[int]) -> None:
    """Kill the processes adopted by the fork server and their descendants, except the workers `but` and their descendants."""
    server: Any = forkserver._forkserver  # no public way to it
    spared = {pid for worker in but for pid in (worker, *_below(worker))}
    for _ in range(_ATTEMPTS):
        found = _below(server._forkserver_pid) - spared
        for pid in found:
            with suppress(OSError):  # it has ended in the meantime
                os.kill(pid, signal.SIGKILL)
        if not found:
            return


def ancestors() -> list[int]:
    """Return the process ids of the parent of this process, of its parent, and so on; the first alone if there is no /proc."""
    parents, found = _parents(), [os.getppid()]
    while parents.get(found[-1]):
        found.append(parents[found[-1]])
    return found


def _below(pid: int | None) -> set[int]:
    """Return the running descendants of a process; none if `pid` is None or there is no /proc."""
    if not pid:
        return set()
    parents = _parents()
    found: set[int] = set()
    level = {pid}
    while level:
        level = {child for child, parent in parents.items() if parent in level} - found
        found |= level
    return found


def _parents() -> dict[int, int]:
    """Return the parent of each running process, by process id; empty if there is no /proc."""
    parents: dict[int, int] = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, parent, *_ = file.read_text("utf-8", "replace").rpartition(")")[2].split()
            if state not in "ZX":
                parents[int(file.parent.name)] = int(parent)
    return parents


def limit_memory(size: int | None) -> None:
    """Limit the address space to its current size plus `size` bytes (None: no limit), and disable core dumps."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if size is not None:
        limit = _address_space() + size
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _address_space() -> int:
    """Return the size of this process's address space in bytes; 0 if there is no /proc.

    It is not small: libraries reserve gigabytes of address space that they never use.
    """
    with suppress(OSError):
        return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    return 0


def leave_network() -> bool:
    """Move this process to a new network namespace without external network; return False if the system does not allow it.

    Call it before a thread is started: the kernel refuses a new user namespace to a process with several threads.
    """
    if sys.platform != "linux":
        return False
    unshare, user, group = ctypes.CDLL(None).unshare, os.getuid(), os.getgid()
    if unshare(_CLONE_NEWNET):
        if unshare(_CLONE_NEWUSER | _CLONE_NEWNET):
            return False
        for file, line in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with suppress(OSError):  # without a mapping only user and group names are lost, not permissions
                Path(f"/proc/self/{file}").write_text(line)
    with suppress(OSError), socket.socket() as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP))
    return True


def _end_with_the_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        if hasattr(os, "killpg"):
            os.killpg(0, signal.SIGKILL)
        os._exit(1)
