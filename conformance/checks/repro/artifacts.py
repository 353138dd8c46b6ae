"""The files that reproduce a failure: its inputs and activations, a script, a patch. A pass removes them."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from conformance.candidates.torch_state import restored
from conformance.checks.integrity import unaltered
from conformance.checks.repro.importing import origin
from conformance.checks.repro.patch import new_test, patch_of
from conformance.checks.repro.snippet import snippet
from conformance.checks.search.subject import Subject
from conformance.errors import CandidateFailure, FixtureError
from conformance.goldens.golden import Golden, stored_arrays
from conformance.judge.screen import screened
from conformance.model.batch import Batch
from conformance.model.tokenizer import words
from conformance.names import plain_name
from conformance.results.case import Case
from conformance.results.example import Example
from conformance.results.law_broken import Location, Run
from conformance.results.result import Counterexample, Result


def artifact_path(case: Case, folder: Path) -> Path:
    """The file that a failure of that case leaves; beside it, with other suffixes, its script and its patch."""
    parts = [case.implementation, case.golden, case.device, case.dtype]
    name = "-".join(parts if case.check == "values" else [*parts, case.check])
    return folder / f"{plain_name(name, '-_.')}.safetensors"


def remove_artifacts(case: Case, folder: Path) -> None:
    """Take away what an earlier failure of that case left."""
    for suffix in (".safetensors", ".py", ".patch"):
        artifact_path(case, folder).with_suffix(suffix).unlink(missing_ok=True)


def write_repro(
    result: Result, golden: Golden, folder: Path, require: Sequence[str] = (), test: Callable[..., Any] | None = None
) -> Path:
    """Write what a failure leaves; returns the file that `replay` takes. `test` is the function that found it, if one did."""
    case, found, path = result.case, result.counterexample, artifact_path(result.case, folder)
    network = golden.origin or golden.name
    batches = _batches(result, golden)
    activations = {name: run.values for name, run in found.runs.items()} if found else {}
    about = {
        "implementation": (found.origin if found else "") or case.implementation,
        "golden": network,
        "device": case.device,
        "dtype": case.dtype,
        "check": case.check,
        "variation": dict(found.example.variation) if found else {},
        "require": list(require),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_artifacts(case, folder)  # a link that lies there is not followed
    arrays = stored_arrays(batches, activations)
    save_file({k: np.array(v, order="C") for k, v in arrays.items()}, path, {"replay": json.dumps(about)})
    if found:
        path.with_suffix(".py").write_text(found.script, "utf-8")
        patch = patch_of(test, case, found.example, Path.cwd()) if test else new_test(case, network, found.example)
        if patch:
            path.with_suffix(".patch").write_text(patch, "utf-8")
    return path


def _batches(result: Result, golden: Golden) -> Mapping[str, Batch]:
    """The smallest that fails and what was made of it, or the golden's own on which an activation fails."""
    if result.counterexample:
        return {"example": result.counterexample.example.batch, **{n: r.batch for n, r in result.counterexample.runs.items()}}
    failed = {v.batch for v in result.verdicts if v.outcome == "fail"} & set(golden.batches) or set(golden.batches)
    return {name: batch for name, batch in golden.batches.items() if name in failed}


def with_repro(result: Result, golden: Golden, candidate: Any, implementation: str | Any) -> Result:
    """A failure's result with its counterexample in full: what was run, where it shows, and the script that shows it.

    `candidate` is what was loaded, `implementation` what was asked for: the same object, or the name.
    """
    if result.outcome not in ("fail", "crash", "xfail"):
        return result
    found = result.counterexample or (None if result.searched else _run_again(result, golden, candidate))
    if found is None:
        return result
    name = result.case.implementation
    where = "" if Path(name).is_file() else origin(name, implementation)
    rendered = words(golden.folder, found.example.batch)
    found = replace(found, network=golden.origin or golden.name, origin=where, words=rendered)
    script = snippet(result.case, found.network, implementation, found, result.reason)
    return replace(result, counterexample=replace(found, script=script))


def _run_again(result: Result, golden: Golden, candidate: Any) -> Counterexample:
    """Of a failed judgement: its first failing batch, run once more, and where it is off most at the first origin.

    Without runs where the candidate does not come to an end on it.
    """
    failed = next((v for v in result.verdicts if v.outcome == "fail"), None)
    batch = golden.batches.get(failed.batch if failed else "") or next(iter(golden.batches.values()))
    example = Example(batch)
    try:
        with restored(), unaltered(golden, candidate):
            subject = Subject.prepared(candidate, golden.checkpoint, result.case.device, result.case.dtype)
            run = Run(batch, subject.run(batch))
    except (CandidateFailure, FixtureError):  # the latter, where it altered the weights that it is judged by
        return Counterexample(example, {"run-1": Run(batch, {})}, crashes=result.outcome == "crash")
    # From what the check looked at alone, which may be a part of what there is.
    looked_at = {v.activation for v in result.verdicts if not v.hidden}
    values = {n: v for n, v in run.values.items() if n in looked_at}
    found = screened(subject.network(batch), values, subject.dtype, subject.device, functions=subject.functions)
    worst = next((s for s in found if failed and s.activation == failed.activation and s.excess > 1.0), None)
    if worst is None:
        return Counterexample(example, {"run-1": run})
    place = Location(worst.activation, worst.index, worst.index, (worst.actual, worst.expected))
    return Counterexample(example, {"run-1": run}, place, abs(worst.actual - worst.expected) / worst.excess)
