"""A run in several processes: each runs one shard of the checks, and their results are merged into those of one run.

Processes are used because most of the time of judging a small network is spent in Python's interpreter, which threads of one
process cannot share. The shards are kept in the folder `parts` until all of them are complete, so that --resume continues each.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import chain, zip_longest
from pathlib import Path
from typing import IO

import msgspec

from conformance.checks.recording import FAILURES
from conformance.checks.repro import remove_earlier_artifacts
from conformance.cli.output import show_results
from conformance.cli.run import PARTS, reported
from conformance.errors import INTERRUPTED, ConformanceError, UsageError
from conformance.judge.threads import cores
from conformance.results.file import Writer, runs
from conformance.results.merge import merged
from conformance.results.records import CaseRecords, Results
from conformance.results.shards import RunRecords
from conformance.results.to_records import footer

# Seconds after which an interrupt is noticed that the system has delivered to another thread than the waiting one. It bounds a
# delay only, and no result depends on it.
_POLL = 0.2


def is_for_jobs(jobs: int, shard: str, out: Path, *, resume: bool) -> bool:
    """Return whether a run uses several processes; a run that was begun in one process is resumed in one.

    Raises:
        UsageError: a single shard is requested, or a run that was begun in several processes is to be resumed in one.
    """
    was_begun = (out / PARTS).is_dir()
    if jobs == 1:
        if resume and was_begun:
            raise UsageError(f"the run in {out} was begun with --jobs: resume it with the same --jobs")
        return False
    if shard != "1/1":
        raise UsageError(f"--jobs runs all shards of a run, and --shard {shard} one of them: give one of both")
    return not resume or was_begun


def run_jobs(command: Sequence[str], jobs: int, out: Path, how: str, *, resume: bool) -> int:
    """Run every case in several processes, write `results.jsonl` and `report.html` to a folder, and print the report.

    Args:
        command: the arguments of `run`.
        jobs: number of processes.
        out: folder of the results file and the report.
        how: format of the printed report.
        resume: whether to continue the shards of an interrupted run.

    Returns:
        The exit code; if a process could not run its shard, that of the process, or 3 if a signal ended it.
    """
    path = out.resolve() / "results.jsonl"
    folders = [path.parent / PARTS / str(number) for number in range(1, jobs + 1)]
    results = None
    with Writer(path, resume=True) as writer:  # refused while another run writes there, whose shards are left alone
        if not resume:
            shutil.rmtree(path.parent / PARTS, ignore_errors=True)
        (path.parent / PARTS).mkdir(exist_ok=True)  # it marks the results beside it as those of an earlier run
        codes, is_interrupted = _ended(command, folders)
        shards = [shard for folder in folders for shard in _shard(folder)]
        if [shard.footer and shard.footer.exit_code for shard in shards] == codes:  # a refused shard ends by another code
            results = in_one(shards)
            _write(writer, results)
        elif shards or is_interrupted:
            path.unlink(missing_ok=True)
        else:  # The processes refused the command, so that earlier results are still the last ones.
            shutil.rmtree(path.parent / PARTS, ignore_errors=True)
            if path.is_file() and not path.stat().st_size:
                path.unlink()
    if results is not None:
        return _completed(results, folders, out, how, writer.require_unchanged)
    if shards:
        show_results(merged(shards), how)
        print("not all checks were run; the same command with --resume runs the rest", file=sys.stderr)
    if is_interrupted:
        return INTERRUPTED
    return max(1, *(ConformanceError.exit_code if code < 0 else code for code in codes))


def _completed(results: Results, folders: Sequence[Path], out: Path, how: str, require_unchanged: Callable[[], None]) -> int:
    """Keep the failures of the shards, remove their folders, write and print the report, and return the exit code."""
    folder = out.resolve()
    remove_earlier_artifacts(folder / FAILURES)
    _keep_failures(folders, folder / FAILURES)
    shutil.rmtree(folder / PARTS, ignore_errors=True)
    return reported(results, out, how, require_unchanged)


def in_one(shards: Sequence[RunRecords]) -> Results:
    """Return the results of all shards, in the order of their numbers, as those of a run in one process.

    The K-th of N shards has the checks K, K + N, K + 2 N, ….
    """
    header = shards[0].header
    assert header
    in_turn = chain.from_iterable(zip_longest(*(shard.cases for shard in shards)))
    cases: tuple[CaseRecords, ...] = tuple(case for case in in_turn if case is not None)
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
    """Move the files that reproduce failures to the folder `kept`."""
    for file in (file for folder in folders for file in (folder / FAILURES).glob("*")):
        kept.mkdir(exist_ok=True)
        file.replace(kept / file.name)


def _ended(command: Sequence[str], folders: Sequence[Path]) -> tuple[list[int], bool]:
    """Run a process for each folder, print what they write to standard error, and return their exit codes when all have ended.

    Also returned is whether the run was interrupted; the processes are then interrupted as well. The report of a process is printed
    if its results are not whole in its folder, as after a candidate has deleted them.
    """
    printed, turn, is_interrupted = Counter[str](), threading.Lock(), False
    with ExitStack() as stack:
        reports = [stack.enter_context(tempfile.TemporaryFile("w+", encoding="utf-8")) for _ in folders]
        started = (_started(command, number, folders, report) for number, report in enumerate(reports, 1))
        processes = [stack.enter_context(process) for process in started]
        readers = [threading.Thread(target=_print_lines, args=(process, printed, turn), daemon=True) for process in processes]
        for reader in readers:
            reader.start()
        codes = None
        while codes is None:
            try:
                while any(reader.is_alive() for reader in readers):
                    for reader in readers:
                        reader.join(_POLL)
                codes = [process.wait() for process in processes]
            except KeyboardInterrupt:
                is_interrupted = True
                for process in processes:
                    process.send_signal(signal.SIGINT)
        for folder, report in zip(folders, reports, strict=True):
            if not (is_interrupted or any(shard.footer for shard in _shard(folder))):
                report.seek(0)
                sys.stdout.write(report.read())
        return codes, is_interrupted


def _started(command: Sequence[str], number: int, folders: Sequence[Path], report: IO[str]) -> "subprocess.Popen[str]":
    """Start the process of a shard, counted from 1, with its share of the cores; it writes its report to the given file."""
    environment = {"OMP_NUM_THREADS": str(max(cores() // len(folders), 1)), **os.environ}
    shard = ["--jobs", "1", "--shard", f"{number}/{len(folders)}", "--out", str(folders[number - 1])]
    return subprocess.Popen(
        [sys.executable, "-m", "conformance", *command, *shard],
        stdout=report,
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
