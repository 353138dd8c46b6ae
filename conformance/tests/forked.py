"""Python in a process forked from the fork server of the workers, which has imported torch, transformers and the suite.

The process is separate, as one that a command starts, but its seconds of imports are spent once for all. A test of the imports
themselves needs a new interpreter."""

import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from conformance.isolation.fork_server import forked
from conformance.isolation.link import Link


def run_python(
    *arguments: str, folder: Path | None = None, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `python ARGUMENTS`, where the first is `-m`, `-c` or a script, and return its exit code and what it wrote."""
    with tempfile.TemporaryDirectory() as kept:
        files = [Path(kept) / "out", Path(kept) / "error"]
        given = {"arguments": arguments, "folder": str(folder or Path.cwd()), "files": list(map(str, files))}
        child = forked(f"{__name__}:_run", os.environ if environment is None else environment, **given)
        code = child.exit_code()
        child.end()
        child.link.close()
        os.close(child.output)
        return subprocess.CompletedProcess(arguments, code or 0, *(file.read_text("utf-8") for file in files))


def _run(_: Link, arguments: Sequence[str], folder: str, files: Sequence[str]) -> None:
    for number, file in enumerate(files, 1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="backslashreplace")  # type: ignore[union-attr]  # files of the interpreter
    os.chdir(folder)
    first, *others = arguments
    is_script = first not in ("-m", "-c")
    paths = [str(Path(first).resolve().parent) if is_script else str(folder)]
    sys.path[:0] = [*paths, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    sys.argv = list(arguments) if is_script else [first, *others[1:]]
    try:
        if is_script:
            runpy.run_path(first, run_name="__main__")
        elif first == "-m":
            runpy.run_module(others[0], run_name="__main__", alter_sys=True)
        else:
            exec(compile(others[0], "<string>", "exec"), {"__name__": "__main__"})
    except SystemExit as end:  # The interpreter writes the reason of an exit, which is code 1 then.
        if not isinstance(end.code, str):
            raise
        print(end.code, file=sys.stderr, flush=True)
        sys.exit(1)
