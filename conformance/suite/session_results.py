"""The results files of a pytest session: `results.jsonl`, or `results-1.jsonl` and so on, one for each worker of pytest-xdist.

The first check of a session removes the results and failures that earlier sessions left in the folder. A session that runs no check
changes nothing there.
"""

import re
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from conformance.checks.recording import Recording
from conformance.checks.repro import FAILURES, remove_earlier_scripts
from conformance.errors import UsageError
from conformance.results.file import Writer, locked_folder, runs
from conformance.results.records import Header

_RESULTS = re.compile(r"results(-\d+)?\.jsonl")


def open_recording(path: Path, header: Header) -> Recording:
    """Open a results file of a session, in an existing folder; the first one removes the results and failures of earlier sessions.

    The header's `run` identifies the session if several workers write into the folder, and is empty otherwise.

    Raises:
        UsageError: another run writes into the folder, or a results file there is not a regular file.
    """
    with locked_folder(path.parent):
        there = sorted(file for file in path.parent.iterdir() if _RESULTS.fullmatch(file.name))
        if not any(_is_of(header.run, file) for file in there):
            _remove(there)
            remove_earlier_scripts(path.parent / FAILURES)
        return Recording(path, header)


def _is_of(run: str, file: Path) -> bool:
    """Return whether another worker of a session wrote a results file."""
    try:
        return bool(run) and any(found.header is not None and found.header.run == run for found in runs(file))
    except UsageError:  # no results file that can be read
        return False


def _remove(files: Sequence[Path]) -> None:
    """Remove results files; remove none, and raise `UsageError`, if another run writes to one of them."""
    with ExitStack() as locks:
        for file in files:
            locks.enter_context(Writer(file, resume=True))
        for file in files:
            file.unlink()
