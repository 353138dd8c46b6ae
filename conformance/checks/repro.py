"""The files that reproduce a failure: its inputs and activations, and a script; a later pass removes them."""

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file

from conformance.candidates.torch_state import restored
from conformance.checks.check import Request
from conformance.checks.integrity import unaltered
from conformance.checks.search.subject import Subject
from conformance.checks.snippet import from_any_folder, origin, snippet
from conformance.errors import ConformanceError
from conformance.goldens.custom_golden import open_golden
from conformance.goldens.golden import Golden, stored_arrays
from conformance.judge.local_error import screened
from conformance.model.batch import Batch
from conformance.model.files import open_safetensors
from conformance.model.tokenizer import words
from conformance.results.case import Case
from conformance.results.example import Example, LawBroken, Location, Run
from conformance.results.result import Counterexample, Result
from conformance.results.to_records import check_record

FAILURES = "failures"  # folder of the files that reproduce failures, in the folder of the results file
REPLAY = "replay"  # key of the metadata of a failure's file: the record of the check
_SUFFIXES = (".safetensors", ".py")


def artifact_path(case: Case, folder: Path) -> Path:
    """Return the path of the file of a case's failure; its script has the same path with another suffix."""
    return folder / f"{case.file_name}.safetensors"


def remove_artifacts(case: Case, folder: Path) -> None:
    """Remove the files of an earlier failure of a case."""
    for suffix in _SUFFIXES:
        artifact_path(case, folder).with_suffix(suffix).unlink(missing_ok=True)


def remove_earlier_artifacts(folder: Path) -> None:
    """Remove the files of the failures of an earlier run; other files in the folder are left."""
    for file in folder.glob("*.safetensors"):
        if _is_artifact(file):
            for suffix in _SUFFIXES:
                file.with_suffix(suffix).unlink(missing_ok=True)


def _is_artifact(file: Path) -> bool:
    try:
        with open_safetensors(file) as reader:
            return REPLAY in (reader.metadata() or {})
    except (OSError, ValueError, SafetensorError):  # no such file, or cut short
        return False


def write_repro(result: Result, golden: Golden, folder: Path) -> Path:
    """Write the files of a failure and return the path of the one that `replay` reads."""
    case, found, path = result.case, result.counterexample, artifact_path(result.case, folder)
    candidate = from_any_folder((found.origin if found else "") or case.implementation)
    record = msgspec.structs.replace(check_record(result), implementation=candidate, golden=golden.origin or golden.name)
    arrays = stored_arrays(_batches(result, golden), {name: run.values for name, run in found.runs.items()} if found else {})
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_artifacts(case, folder)  # an existing symbolic link is not followed
    save_file({k: np.array(v, order="C") for k, v in arrays.items()}, path, {REPLAY: msgspec.json.encode(record).decode()})
    if found:
        path.with_suffix(".py").write_text(found.script, "utf-8")
    return path


def leave(result: Result, golden: Golden | None, folder: Path) -> None:
    """Write the files of a failure to a folder, or remove them after a pass; report errors without raising them.

    The golden is opened by its name unless it is given, as a custom one.
    """
    fails = result.outcome in ("fail", "crash")
    try:
        if fails:
            write_repro(result, golden or open_golden(result.case.golden), folder)
        else:
            remove_artifacts(result.case, folder)
    except Exception as error:  # of any library that writes them
        done = "written" if fails else "removed"
        print(f"the files that reproduce {result.case} could not be {done}: {error}", file=sys.stderr)


def _batches(result: Result, golden: Golden) -> Mapping[str, Batch]:
    """Return the counterexample's batch and those derived from it, or the golden's."""
    if result.counterexample:
        return {"example": result.counterexample.example.batch, **{n: r.batch for n, r in result.counterexample.runs.items()}}
    return golden.batches


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
