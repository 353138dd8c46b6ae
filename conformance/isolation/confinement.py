"""Confinement of a worker: its memory, and its network access."""

import ctypes
import fcntl
import os
import resource
import socket
import struct
from contextlib import suppress
from pathlib import Path

_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000  # linux/sched.h
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 0x1  # linux/sockios.h, linux/if.h


def limit_memory(size: int | None) -> None:
    """Limit the address space to its current size plus `size` bytes (None: no limit), and disable core dumps.

    The current size is not small: libraries reserve gigabytes of address space that they never use.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if size is not None:
        with suppress(OSError):  # there is no /proc
            size += int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size, size))


def leave_network() -> bool:
    """Move this process to a new network namespace without external network; return False if the system does not allow it.

    Call it before a thread is started: the kernel refuses a new user namespace to a process with several threads.
    """
    # `os.unshare` is in Python from 3.12 on.
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
