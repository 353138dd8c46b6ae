"""A run in several processes: each runs one shard of the checks, and their results are joined into those of one run.

Processes are used because most of the time of judging a small network is spent in Python's interpreter, which threads of one
process cannot share.
"""

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import chain, zip_longest
from pathlib import Path

import msgspec

from conformance.checks.recording import FAILURES
from conformance.checks.repro import remove_earlier_artifacts
from conformance.cli.run import reported
from conformance.errors import INTERRUPTED, ConformanceError, UsageError
from conformance.judge.threads import cores
from conformance.model.files import scratch_folder
from conformance.results.file import Writer, runs
from conformance.results.records import Results
from conformance.results.shards import RunRecords
from conformance.results.to_records import footer

# Seconds after which an interrupt is noticed that the system has delivered to another thread than the waiting one. It bounds a
# delay only, and no result depends on it.
_POLL = 0.2


def run_jobs(command: Sequence[str], jobs: int, out: Path, how: str) -> int:
    """Run every case in several processes, write `results.jsonl` and `report.html` to a folder, and print the report.

    Nothing is kept of a run that is interrupted, or whose processes do not all end with their results; earlier results stay.

    Args:
        command: the arguments of `run`.
        jobs: number of processes.
        out: folder of the results file and the report.
        how: format of the printed report.

    Returns:
        The exit code; if a process could not run its shard, that of the process, or 3 if a signal ended it.
    """
    path = out.resolve() / "results.jsonl"
    scratch = scratch_folder()
    folders = [scratch / str(number) for number in range(1, jobs + 1)]
    with Writer(path, resume=True) as writer:  # refused while another run writes there
        codes, reports, is_interrupted = _ended(command, folders)
        shards = [shard for folder in folders for shard in _shard(folder)]
        is_whole = [shard.footer and shard.footer.exit_code for shard in shards] == codes  # a refused shard ends by another code
        if is_whole:
            remove_earlier_artifacts(path.parent / FAILURES)
            results = in_one(shards)
            _write(writer, results)
            _keep_failures(folders, path.parent / FAILURES)
        elif path.is_file() and not path.stat().st_size:
            path.unlink()
    if is_whole:
        return reported(results, out, how, writer.require_unchanged)
    if is_interrupted:
        print("interrupted; nothing is kept of a run in several processes", file=sys.stderr)
        return INTERRUPTED
    print(*reports, sep="", end="")
    return max(1, *(ConformanceError.exit_code if code < 0 else code for code in codes))


def in_one(shards: Sequence[RunRecords]) -> Results:
    """Return the results of all shards, in the order of their numbers, as those of a run in one process.

    The K-th of N shards has the checks K, K + N, K + 2 N, ….
    """
    header = shards[0].header
    assert header
    in_turn = chain.from_iterable(zip_longest(*(shard.cases for shard in shards)))
    cases = tuple(case for case in in_turn if case is not None)
    whole = msgspec.structs.replace(header, shard="1/1", cases=len(cases))
    return Results((whole,), cases, footer(case.check for case in cases))


def _shard(folder: Path) -> list[RunRecords]:
    """Return the run that a process has written to its folder, in a list that is empty if there is none, or none is left."""
    path = folder / "results.jsonl"
    try:
        return [run for run in runs(path) if run.header] if path.is_file() and path.stat().st_size else []
    except UsageError:  # it has been overwritten
        return []


def _write(writer: Writer, results: Results) -> None:
    writer.keep(0)
    writer.write(results.headers[0])
    for case in results.cases:
        for record in case.activations:
            writer.write(record)
        writer.write(case.check)
    if results.footer:
        writer.write(results.footer)


def _keep_failures(folders: Sequence[Path], kept: Path) -> None:
    """Copy the files that reproduce failures to the folder `kept`."""
    for file in (file for folder in folders for file in (folder / FAILURES).glob("*")):
        kept.mkdir(exist_ok=True)
        (kept / file.name).write_bytes(file.read_bytes())


def _ended(command: Sequence[str], folders: Sequence[Path]) -> tuple[list[int], list[str], bool]:
    """Run a process for each folder, print what they write to standard error, and return their exit codes and reports.

    Also returned is whether the run was interrupted; the processes are then interrupted as well.
    """
    printed, turn, is_interrupted = Counter[str](), threading.Lock(), False
    with ExitStack() as stack:
        processes = [stack.enter_context(_started(command, number, folders)) for number in range(1, len(folders) + 1)]
        reports = [""] * len(folders)

        def read(number: int) -> None:
            reports[number] = (processes[number].stdout or sys.stdin).read()

        readers = [threading.Thread(target=_print_lines, args=(process, printed, turn), daemon=True) for process in processes]
        readers += [threading.Thread(target=read, args=(number,), daemon=True) for number in range(len(folders))]
        for reader in readers:
            reader.start()
        while any(reader.is_alive() for reader in readers):
            try:
                for reader in readers:
                    reader.join(_POLL)
            except KeyboardInterrupt:
                is_interrupted = True
                for process in processes:
                    process.send_signal(signal.SIGINT)
        return [process.wait() for process in processes], reports, is_interrupted


def _started(command: Sequence[str], number: int, folders: Sequence[Path]) -> "subprocess.Popen[str]":
    """Start the process of a shard, counted from 1, with its share of the cores."""
    environment = {"OMP_NUM_THREADS": str(max(cores() // len(folders), 1)), **os.environ}
    shard = ["--jobs", "1", "--shard", f"{number}/{len(folders)}", "--out", str(folders[number - 1])]
    return subprocess.Popen(
        [sys.executable, "-m", "conformance", *command, *shard],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        text=True,
        errors="backslashreplace",
    )


def _print_lines(process: "subprocess.Popen[str]", printed: Counter[str], turn: threading.Lock) -> None:
    """Print what a process writes to standard error until it ends.

    A line is printed as often as the process that writes it most often has written it, so that what all of them write is printed
    once; `printed` counts the lines that were printed for all of them.
    """
    written: Counter[str] = Counter()
    for line in process.stderr or ():
        written[line] += 1
        with turn:
            if written[line] > printed[line]:
                printed[line] += 1
                print(line.rstrip("\n"), file=sys.stderr, flush=True)
