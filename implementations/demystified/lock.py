"""One process at a time in a run's folder."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from conformance import UsageError

LOCK = "lock"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder, which is made where it is missing; the system releases it when the process ends, however it ends.

    Raises:
        UsageError: another process holds it; the text has its number.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # Not removed at the end: a process that waits to open it would lock a file that has no name any more.
    with open(folder / LOCK, "a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip()
            who = f"process {holder}" if holder else "another process"
            raise UsageError(f"{who} trains in {folder}; wait for its end, or choose another folder with --out") from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield
