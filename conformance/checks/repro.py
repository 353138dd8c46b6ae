"""The script that shows a failure, and the counterexample on which it does; a later pass removes the script."""

import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from conformance.candidates.torch_state import restored
from conformance.checks.check import Request
from conformance.checks.integrity import unaltered
from conformance.checks.search.subject import Subject
from conformance.checks.snippet import BEGIN, from_any_folder, origin, snippet
from conformance.errors import ConformanceError
from conformance.judge.local_error import screened
from conformance.model.files import read_bytes
from conformance.model.tokenizer import words
from conformance.results.case import Case
from conformance.results.example import Example, LawBroken, Location, Run
from conformance.results.result import Counterexample, Result

FAILURES = "failures"  # folder of the scripts that show failures, in the folder of the results file


def script_path(case: Case, folder: Path) -> Path:
    """Return the path of the script of a case's failure."""
    return folder / f"{case.file_name}.py"


def remove_earlier_scripts(folder: Path) -> None:
    """Remove the scripts of the failures of an earlier run; other files in the folder are left."""
    for file in folder.glob("*.py"):
        with suppress(OSError, ValueError):  # a folder or a pipe of that name, or one that cannot be read
            if read_bytes(file).startswith(BEGIN.encode()):
                file.unlink()


def leave(result: Result, folder: Path) -> None:
    """Write the script of a failure to a folder, or remove it after a pass; report errors without raising them."""
    path, found = script_path(result.case, folder), result.counterexample
    fails = result.outcome in ("fail", "crash") and found is not None
    try:
        path.unlink(missing_ok=True)  # an existing symbolic link is not followed
        if fails and found:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(found.script, "utf-8")
    except OSError as error:
        done = "written" if fails else "removed"
        print(f"the script that shows the failure of {result.case} could not be {done}: {error}", file=sys.stderr)


def with_repro(result: Result, request: Request) -> Result:
    """Return a failure's result with a complete counterexample: runs, the place of the failure and a script; else the result."""
    if result.outcome not in ("fail", "crash"):
        return result
    found = result.counterexample or (None if result.searched else _run_again(result, request))
    if found is None:
        return result
    name, golden = result.case.implementation, request.golden
    where = "" if _is_file(name) else from_any_folder(origin(name, request.implementation))
    rendered = words(golden.folder, found.example.batch)
    found = replace(found, network=golden.origin or golden.name, origin=where, words=rendered)
    script = snippet(result.case, request.implementation, found, result.reason)
    return replace(result, counterexample=replace(found, script=script))


def _is_file(name: str) -> bool:
    try:
        return Path(name).is_file()
    except OSError:  # too long for a path, as a command may be
        return False


def _run_again(result: Result, request: Request) -> Counterexample:
    """Return the counterexample of a failed judgement: its first failing batch, run again, and the worst element there.

    The worst element is that of the first failing activation. The run has no values if the candidate fails on the batch.
    """
    golden, candidate, case = request.golden, request.candidate, request.case
    failed = next((v for v in result.verdicts if v.outcome == "fail"), None)
    batch = golden.batches.get(failed.batch if failed else "") or next(iter(golden.batches.values()))
    example = Example(batch)
    try:
        with restored(), unaltered(golden, candidate):
            subject = Subject.prepared(candidate, golden.checkpoint, case.device, case.dtype)
            run = Run(batch, subject.run(batch))
    except ConformanceError:  # It fails, has altered the weights by which it is judged, or refuses the config that was not changed.
        return Counterexample(example, {"run-1": Run(batch, {})}, crashes=result.outcome == "crash")
    # Only the activations that the check judged, which may be a part of the exposed ones.
    looked_at = {v.activation for v in result.verdicts if not v.is_unexposed}
    values = {n: v for n, v in run.values.items() if n in looked_at}
    tested = screened(subject.network(batch), values, subject.dtype, subject.device, functions=subject.functions)
    worst = next((s for s in tested if failed and s.activation == failed.activation and s.excess > 1.0), None)
    if worst is None:
        return Counterexample(example, {"run-1": run})
    place = Location(worst.activation, worst.index, worst.index, (worst.actual, worst.expected))
    return Counterexample(example, {"run-1": run}, LawBroken(result.reason, place=place, excess=worst.excess))
