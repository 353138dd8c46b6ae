"""A run in several processes at a time: each runs one shard of the checks, and their results become those of one run.

A process of its own judges each shard, since most of a judgement of a small network is Python's own work, which threads of one
process cannot share. The shards are kept in the folder `parts` until all of them are complete, so that --resume continues each.
"""

import os
import shutil
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
from conformance.checks.repro.artifacts import remove_earlier_artifacts
from conformance.cli.output import show_results
from conformance.cli.run import saved_failures
from conformance.errors import INTERRUPTED, UsageError
from conformance.judge.threads import cores
from conformance.names import printable
from conformance.report.output_formats import REPORT_FORMATS
from conformance.results.file import Writer, runs
from conformance.results.merge import merged
from conformance.results.records import CaseRecords, Results
from conformance.results.shards import RunRecords
from conformance.results.to_records import footer

PARTS = "parts"  # folder of the shards, in the folder of the results file


def is_for_jobs(shard: str, out: Path, *, resume: bool) -> bool:
    """Return whether a run is for several processes; a run that one process has begun is resumed by one.

    Raises:
        UsageError: a single shard is requested.
    """
    if shard != "1/1":
        raise UsageError(f"--jobs runs all shards of a run, and --shard {shard} one of them: give one of both")
    return not resume or (out / PARTS).is_dir()


def run_jobs(command: Sequence[str], jobs: int, out: Path, how: str, *, resume: bool) -> int:
    """Run every case in several processes, write `results.jsonl` and `report.html` to a folder, and print the report.

    Args:
        command: the arguments of `run`.
        jobs: number of processes.
        out: folder of the results file and the report.
        how: format of the printed report.
        resume: whether to continue the shards of an interrupted run.

    Returns:
        The exit code; if a process could not run its shard, that of the process.
    """
    path, page = out.resolve() / "results.jsonl", out.resolve() / "report.html"
    folders = [path.parent / PARTS / str(number) for number in range(1, jobs + 1)]
    if not resume:
        shutil.rmtree(path.parent / PARTS, ignore_errors=True)
    with Writer(path, resume=True) as writer:
        codes, is_interrupted = _ended(command, folders)
        shards = [shard for folder in folders for shard in _shard(folder)]
        is_whole = len(shards) == jobs and all(shard.footer for shard in shards)
        if is_whole:
            _write(writer, in_one(shards))
        elif not path.stat().st_size:
            path.unlink()
    if not is_whole:
        if shards:
            show_results(merged(shards), how)
            print("not all checks were run; the same command with --resume runs the rest", file=sys.stderr)
        return INTERRUPTED if is_interrupted else max(codes)
    results = in_one(shards)
    remove_earlier_artifacts(path.parent / FAILURES)
    _keep_failures(folders, path.parent / FAILURES)
    shutil.rmtree(path.parent / PARTS)
    page.write_text(REPORT_FORMATS["html"].of_results(results), "utf-8")
    show_results(results, how)
    if how == "pretty":
        print(f"\nresults: {out / path.name}\nreport: {out / page.name}{saved_failures(results, out)}")
    assert results.footer
    return results.footer.exit_code


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
    """Return the run that a process has written to its folder, in a list that is empty if there is none."""
    path = folder / "results.jsonl"
    return [run for run in runs(path) if run.header] if path.is_file() and path.stat().st_size else []


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

    Also returned is whether the run was interrupted; the processes are then interrupted as well.
    """
    share = str(max(cores() // len(folders), 1))
    environment = {"OMP_NUM_THREADS": share, **os.environ}
    printed = _Printed()
    with ExitStack() as stack:
        processes = []
        for number, folder in enumerate(folders, 1):
            shard = ["--jobs", "1", "--shard", f"{number}/{len(folders)}", "--out", str(folder), "--format", "json"]
            child = [sys.executable, "-m", "conformance", *command, *shard]
            process = subprocess.Popen(
                child, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment, text=True, errors="backslashreplace"
            )
            processes.append(stack.enter_context(process))
        readers = [threading.Thread(target=printed.lines_of, args=(process,), daemon=True) for process in processes]
        for reader in readers:
            reader.start()
        is_interrupted = False
        while any(reader.is_alive() for reader in readers):
            try:
                for reader in readers:
                    reader.join()
            except KeyboardInterrupt:
                is_interrupted = True
                for process in processes:
                    process.send_signal(signal.SIGINT)
        return [process.wait() for process in processes], is_interrupted


class _Printed:
    """Standard error of several processes; a line that each of them writes is printed once."""

    def __init__(self) -> None:
        self._printed: Counter[str] = Counter()
        self._turn = threading.Lock()

    def lines_of(self, process: "subprocess.Popen[str]") -> None:
        """Print the lines of a process until it ends."""
        written: Counter[str] = Counter()
        for line in process.stderr or ():
            written[line] += 1
            with self._turn:
                if written[line] > self._printed[line]:
                    self._printed[line] += 1
                    print(printable(line.rstrip("\n")), file=sys.stderr, flush=True)
