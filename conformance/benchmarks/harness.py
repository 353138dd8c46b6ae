"""What all benchmarks share: the options of their commands, their processes, and the pages that they write."""

import argparse
import multiprocessing
import os
import platform
import shlex
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import torch

Task = TypeVar("Task")
Result = TypeVar("Result")


def parser(description: str | None, page: Path, *, parallel: bool = True) -> argparse.ArgumentParser:
    """Return the parser of a benchmark's command, with `--write` and, for a benchmark of several processes, `--jobs`.

    Args:
        description: the documentation of its module, of which the first paragraph is printed.
        page: the page that `--write` writes.
        parallel: whether the benchmark has tasks for several processes.
    """
    command = argparse.ArgumentParser(prog=f"python -m {module()}", description=str(description).split("\n\n", 1)[0])
    if parallel:
        command.add_argument("-j", "--jobs", type=int, default=os.cpu_count(), help="processes (default: one for each core)")
    command.add_argument("--write", action="store_true", help=f"write {page.name}")
    return command


def module() -> str:
    """Return the name by which the running module is called after `python -m`."""
    spec = sys.modules["__main__"].__spec__
    return spec.name.removesuffix(".__main__") if spec else Path(sys.argv[0]).stem


def in_processes(work: Callable[[Task], Result], tasks: Iterable[Task], jobs: int) -> Iterator[Result]:
    """Yield the results of tasks, in their order, computed in so many processes, each with one thread.

    These processes may have children, unlike those of a `multiprocessing.Pool`.
    """
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), _prepare) as pool:
        yield from pool.map(work, tasks, chunksize=4)


def _prepare() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """Yield the lines of a table in Markdown."""
    yield _row(headings)
    yield _row(["---"] * len(headings))
    yield from map(_row, rows)


def _row(cells: Sequence[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def bullets(notes: Iterable[str]) -> Iterator[str]:
    """Yield the lines of a list after an empty line; nothing for an empty list."""
    for number, note in enumerate(notes):
        if not number:
            yield ""
        yield f"- {note}"


def machine() -> str:
    """Return a sentence on the processor, the versions and the number of threads."""
    name = dict[str, Any](torch.cpu.get_capabilities()).get("cpu_name") or platform.machine()
    isa, threads = torch.backends.cpu.get_cpu_capability(), torch.get_num_threads()
    versions = f"Python {platform.python_version()}, torch {torch.__version__} ({isa}, {threads} threads)"
    return f"{os.cpu_count()} cores of {name}, {versions}."


def publish(page: Path, title: str, lines: Iterable[str], *, write: bool) -> None:
    """Print lines as they are computed; if asked for, write the page, which also has the command and the machine."""
    kept = [f"# {title}", "", f"Made by `{shlex.join(['python', '-m', module(), *sys.argv[1:]])}` on", machine(), ""]
    for line in lines:
        print(line, flush=True)
        kept.append(line)
    if write:
        page.write_text("\n".join(kept).rstrip() + "\n", "utf-8")
