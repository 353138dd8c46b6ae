"""Time and memory of a measurement, and its ratio to another one in the same process."""

import ctypes
import gc
import multiprocessing
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Seconds = tuple[float, float]  # Wall time and CPU time.


@dataclass(frozen=True)
class Ratio:
    """The ratio of a measured time to that of the plain pass.

    Attributes:
        wall, least, largest: median, smallest and largest ratio of wall times.
        cpu: median ratio of CPU times.
    """

    wall: float
    least: float
    largest: float
    cpu: float


def times(work: Callable[[], object], repeats: int) -> list[Seconds]:
    """Return the wall and CPU seconds of each repeat."""
    found: list[Seconds] = []
    for _ in range(repeats):
        gc.collect()
        wall, cpu = time.perf_counter(), time.process_time()
        work()
        found.append((time.perf_counter() - wall, time.process_time() - cpu))
    return found


def ratio(found: Sequence[Seconds], plain: Sequence[Seconds]) -> Ratio:
    """Return the ratio of repeated measurements to those of the plain pass."""
    base = tuple(statistics.median(column) for column in zip(*plain, strict=True))
    walls, cpus = ([t / b for t in column] for column, b in zip(zip(*found, strict=True), base, strict=True))
    return Ratio(*(round(x, 2) for x in (statistics.median(walls), min(walls), max(walls), statistics.median(cpus))))


def peak_mib(work: Callable[[], object]) -> float:
    """Return the peak resident size of this process while `work` runs, in MiB."""
    gc.collect()
    forget_peak()
    work()
    return high_water_mib()


def forget_peak() -> None:
    """Reset VmHWM to the present size, so that what came before is not included (proc(5), clear_refs).

    Freed memory that the C library holds is returned first (malloc_trim(3), glibc): an allocation there would not raise the peak.
    """
    with suppress(AttributeError):  # Other C libraries do not have it.
        ctypes.CDLL(None).malloc_trim(0)
    clear = Path("/proc/self/clear_refs")
    if clear.exists():
        clear.write_text("5", "ascii")


def high_water_mib() -> float:
    """Return VmHWM of this process; `ru_maxrss` would include the parent's memory before this process was started.

    Raises:
        SystemExit: the system does not report VmHWM.
    """
    for line in Path("/proc/self/status").read_text("utf-8").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise SystemExit("no VmHWM in /proc/self/status: the memory benchmark needs Linux")


def apart(function: Callable[..., Any], *arguments: object) -> Any:
    """Return the result of a function in a separate process.

    Raises:
        ChildProcessError: the process ended without a result; the message contains the error.
    """
    context = multiprocessing.get_context("spawn")
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=_sent, args=(sending, function, *arguments))
    process.start()
    sending.close()
    try:
        error, value = receiving.recv()
    except EOFError:
        error, value = "it was ended from outside", None
    process.join()
    if error:
        raise ChildProcessError(error)
    return value


def _sent(sending: Any, function: Callable[..., Any], *arguments: object) -> None:
    try:
        sending.send(("", function(*arguments)))
    except BaseException as error:
        sending.send((f"{type(error).__name__}: {error}", None))
        raise
