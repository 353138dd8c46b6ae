"""What confines a worker: it ends with the process that asks, and takes along what it has started; its memory; its network."""

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
_ATTEMPTS = 100  # to kill processes that meanwhile start others
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000  # linux/sched.h
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 0x1  # linux/sockios.h, linux/if.h


def bind_to_parent() -> None:
    """Lead a group of processes that ends with the one that asks: by a thread; on Linux by the kernel, if the server dies."""
    if hasattr(os, "setpgid"):
        os.setpgid(0, 0)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    threading.Thread(target=_end_with_the_parent, daemon=True).start()


def leave_helpers() -> None:
    """Let go of what multiprocessing shares with the process that asks: this one starts its own where it needs it."""
    tracker: Any = resource_tracker._resource_tracker  # no public way to it
    server: Any = forkserver._forkserver
    for holder, attribute in ((tracker, "_fd"), (server, "_forkserver_alive_fd")):
        if getattr(holder, attribute) is not None:
            os.close(getattr(holder, attribute))
            setattr(holder, attribute, None)


def adopt_orphans() -> None:
    """Make this process the parent of all below it whose own parent ends: so they are known, whatever group they have joined."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def kill_orphans(but: Collection[int]) -> None:
    """Kill what the server has adopted, and all below it; `but` are the workers, which are its own children."""
    server: Any = forkserver._forkserver  # no public way to it
    spared = {pid for worker in but for pid in (worker, *_below(worker))}
    for _ in range(_ATTEMPTS):
        found = _below(server._forkserver_pid) - spared
        for pid in found:
            with suppress(OSError):  # it has ended meanwhile
                os.kill(pid, signal.SIGKILL)
        if not found:
            return


def _below(pid: int | None) -> set[int]:
    """Children of a process, and theirs, without those that have ended; none where there is no process, or no /proc."""
    if not pid:
        return set()
    parents: dict[int, int] = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, parent, *_ = file.read_text("utf-8", "replace").rpartition(")")[2].split()
            if state not in "ZX":
                parents[int(file.parent.name)] = int(parent)
    found: set[int] = set()
    level = {pid}
    while level:
        level = {child for child, parent in parents.items() if parent in level} - found
        found |= level
    return found


def limit_memory(size: int | None) -> None:
    """At most so many bytes of address space beyond what the process has now; and no dump of them where it is aborted."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if size is not None:
        limit = _address_space() + size
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _address_space() -> int:
    """That of this process, in bytes; 0 where there is no /proc. Libraries reserve gigabytes of it that they never use."""
    with suppress(OSError):
        return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    return 0


def leave_network() -> bool:
    """Leave the network for one that has this process and its children alone; returns False where the system does not allow it.

    Call it before a thread is started: the kernel refuses a user namespace to a process that has several.
    """
    if sys.platform != "linux":
        return False
    unshare, user, group = ctypes.CDLL(None).unshare, os.getuid(), os.getgid()
    if unshare(_CLONE_NEWNET):
        if unshare(_CLONE_NEWUSER | _CLONE_NEWNET):
            return False
        for file, line in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with suppress(OSError):  # only names are lost: what the process may do stays
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
