"""Signals that a worker may not send: none to the processes that started it, and none that stops a process.

The kernel refuses them by a filter of system calls (seccomp), which needs no privilege and is inherited by every later thread and
process of the worker. Without it, a candidate can stop or end the process that judges it, and no time limit ends the run.
"""

import ctypes
import errno
import os
import platform
import signal
import struct
from collections.abc import Collection, Iterable, Iterator, Sequence

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2  # linux/prctl.h, linux/seccomp.h
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | errno.EPERM  # linux/seccomp.h: what a filter returns
_LOAD, _EQUALS, _RETURN = 0x20, 0x15, 0x06  # linux/bpf_common.h: codes of a filter's instructions
_NUMBER, _MACHINE, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data, which a filter reads; an argument has 8 bytes
_STOPPING = (signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
_NEAREST = 40  # ancestors in the filter: a comparison can skip 255 instructions, and each ancestor adds two

# The system calls by which one process reaches another, with the positions of the arguments that are a process and a signal: kill,
# tkill, tgkill, rt_sigqueueinfo, rt_tgsigqueueinfo, pidfd_send_signal, pidfd_open, ptrace, prlimit64, process_vm_writev.
_POSITIONS: tuple[tuple[int | None, int | None], ...] = (
    *((0, 1), (0, 1), (0, 2), (0, 1), (0, 2), (None, 1), (0, None), (1, None), (0, None), (0, None)),
)
# By machine: its number in linux/audit.h, and the numbers of these system calls.
_CALLS: dict[str, tuple[int, tuple[int, ...]]] = {
    "x86_64": (0xC000003E, (62, 200, 234, 129, 297, 424, 434, 101, 302, 311)),
    "aarch64": (0xC00000B7, (129, 130, 131, 138, 240, 424, 434, 117, 261, 271)),
}


class _Program(ctypes.Structure):
    """A filter of system calls: `struct sock_fprog` of linux/filter.h."""

    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_void_p))


def refuse_signals(ancestors: Sequence[int]) -> bool:
    """Refuse this process signals to its ancestors, nearest first, and signals that stop a process; return False if unsupported.

    A refused system call fails with `PermissionError`. Call it before a thread is started: a filter is that of a thread. Signals
    that stop are refused whomever they are for, since a thread of an ancestor and a later worker are in no list.
    """
    if platform.machine() not in _CALLS:
        return False
    machine, numbers = _CALLS[platform.machine()]
    nearest = ancestors[:_NEAREST]
    groups = {-os.getpgid(pid) for pid in nearest} - {0}  # 0: a group outside this process's namespace
    protected = {-1, *nearest, *groups}  # as the system calls have them: -1 is every process, and another negative number a group
    code = b"".join(_instructions(machine, zip(numbers, _POSITIONS, strict=True), protected))
    buffer = ctypes.create_string_buffer(code, len(code))
    program = _Program(_count(code), ctypes.addressof(buffer))
    prctl = ctypes.CDLL(None).prctl
    return not (prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program)))


def _instructions(
    machine: int, calls: Iterable[tuple[int, tuple[int | None, int | None]]], protected: Collection[int]
) -> Iterator[bytes]:
    """Yield the code of the filter, which allows whatever it does not refuse."""
    allow = _instruction(_RETURN, _ALLOW)
    yield _instruction(_LOAD, _MACHINE)
    yield _instruction(_EQUALS, machine, if_equal=_count(allow)) + allow
    for number, (process, by_signal) in calls:
        refused = [(process, protected), (by_signal, _STOPPING)]
        tests = b"".join(_refusal(argument, values) for argument, values in refused if argument is not None) + allow
        yield _instruction(_LOAD, _NUMBER) + _instruction(_EQUALS, number, otherwise=_count(tests)) + tests
    yield allow


def _refusal(argument: int, values: Iterable[int]) -> bytes:
    """Return the code that refuses a system call of which an argument, from 0, has one of the values."""
    refuse = _instruction(_RETURN, _REFUSE)
    tests = (_instruction(_EQUALS, value, otherwise=_count(refuse)) + refuse for value in values)
    return _instruction(_LOAD, _ARGUMENTS + 8 * argument) + b"".join(tests)


def _instruction(code: int, value: int, *, if_equal: int = 0, otherwise: int = 0) -> bytes:
    """Return an instruction; a comparison skips so many instructions if the loaded number is `value`, or otherwise."""
    return struct.pack("=HBBI", code, if_equal, otherwise, value % 2**32)


def _count(code: bytes) -> int:
    return len(code) // struct.calcsize("=HBBI")
