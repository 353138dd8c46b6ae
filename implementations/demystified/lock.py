"""Lock that restricts a run's folder to one process at a time."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from conformance import UsageError

LOCK = "lock"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder, which is created if missing; the operating system releases the lock when the process ends for any reason.

    Raises:
        UsageError: another process holds the lock; the message states its process id.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # The file is not removed at the end: a process waiting to open it would lock a deleted file.
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
