"""Time and memory of a measurement, and its ratio to another one in the same process."""

import ctypes
import gc
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple


class Seconds(NamedTuple):
    """The wall time and the CPU time of a measurement."""

    wall: float
    cpu: float


class Ratio(NamedTuple):
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
    measured = []
    for _ in range(repeats):
        gc.collect()
        wall, cpu = time.perf_counter(), time.process_time()
        work()
        measured.append(Seconds(time.perf_counter() - wall, time.process_time() - cpu))
    return measured


def median(measured: Sequence[Seconds]) -> Seconds:
    """Return the median times of repeats."""
    return Seconds(*map(statistics.median, zip(*measured, strict=True)))


def ratio(measured: Sequence[Seconds], plain: Sequence[Seconds]) -> Ratio:
    """Return the ratio of repeated measurements to those of the plain pass."""
    base = median(plain)
    walls, cpu = [each.wall / base.wall for each in measured], median(measured).cpu / base.cpu
    return Ratio(*(round(x, 2) for x in (statistics.median(walls), min(walls), max(walls), cpu)))


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
    """Return VmHWM of this process; `ru_maxrss` would include the parent's memory before this process was started."""
    return status_mib("VmHWM")


def status_mib(name: str) -> float:
    """Return a size that Linux reports of this process, in MiB."""
    lines = Path("/proc/self/status").read_text("utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) / 1024
