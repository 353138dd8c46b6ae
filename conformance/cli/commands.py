"""The functions of short commands: each takes parsed arguments, prints, and returns the exit code; heavy imports are delayed."""

import json
import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conformance.candidates.source_imports import may_import
from conformance.errors import DependencyMissingError, UsageError
from conformance.isolation.fork_server import start_server

if TYPE_CHECKING:
    from conformance.candidates.recorded_trace import Recorded
    from conformance.cli.run_options import RunOptions
    from conformance.goldens.golden import Golden


def listing(arguments: Namespace) -> int:
    """Run `list`: print the names, distributions and origins of implementations and goldens."""
    from conformance.candidates.lookup import registered
    from conformance.cli.output import emit, rows_document
    from conformance.goldens.manifest import manifest

    rows = [
        {"kind": "implementation", "name": r.name, "from": f"{r.distribution} {r.version}", "origin": r.origin}
        for r in registered()
    ]
    rows += [
        {"kind": "golden", "name": name, "from": f"version {entry.version}", "origin": entry.source}
        for name, entry in manifest().items()
    ]
    emit(rows_document(rows), arguments)
    return 0


def explain(arguments: Namespace) -> int:
    """Run `explain`: print the entries of the given names, or every name by group. A name of several words needs no quotes.

    Raises:
        UnknownNameError: there is no entry for a name.
    """
    from conformance.cli.output import emit
    from conformance.glossary.index import entries_of_words, summaries
    from conformance.report.document import Document

    if arguments.name:
        asked = entries_of_words(arguments.name)
        emit(Document("entries", {"entries": asked}, data=[entry.as_dict() for entry in asked]), arguments)
        return 0
    found = {group: dict(meanings) for group, meanings in summaries().items()}
    tables = [
        (f"{group}s", [group, "meaning"], [(name, said.partition(". ")[0]) for name, said in meanings.items()])
        for group, meanings in found.items()
    ]
    emit(Document("names", {"tables": tables}, data=found), arguments)
    return 0


def cache(arguments: Namespace) -> int:
    """Run `cache`: print the folder, number and size of the entries, or remove them."""
    from conformance.cli.output import emit, rows_document
    from conformance.judge import cache as kept

    home, removed = kept.folder(), kept.clear() if arguments.clear else 0
    sizes = [path.stat().st_size for path in kept.entries()]
    row = {"folder": str(home or f"none: {kept.VARIABLE} is {kept.OFF}"), "entries": len(sizes), "bytes": sum(sizes)}
    emit(rows_document([row | {"limit": kept.LIMIT, "removed": removed}]), arguments)
    return 0


def run(arguments: Namespace) -> int:
    """Run `run`: judge candidates, or print the JSON Schema of results."""
    if arguments.schema:
        from conformance.results.records import json_schema

        print(json.dumps(json_schema(), indent=2))
        return 0
    if arguments.output.exists() and not arguments.output.is_dir():
        raise UsageError(f"-o {arguments.output} is a file; give a folder, which is created if it does not exist")
    if not arguments.in_process:
        # The fork server imports in parallel with this process.
        names = arguments.implementation or ()
        may_need_it = not names or any(may_import(name, "transformers") for name in names)
        start_server(*(["conformance.checks.catalogue"] if arguments.check else []), transformers=may_need_it)
    from conformance.cli.run import run_all

    if arguments.no_cache:
        from conformance.judge import cache

        os.environ[cache.VARIABLE] = cache.OFF  # child processes inherit it
    sent = {name: value for name, value in vars(arguments).items() if name not in ("command", "parser")}  # to processes
    plain = Namespace(**sent)
    options_of = partial(_run_options, plain)
    return run_all(options_of, arguments.output, arguments.format, jobs=arguments.jobs, resume=arguments.resume)


def _run_options(arguments: Namespace) -> "RunOptions":
    from conformance.checks.check import Plan
    from conformance.checks.known_failures import read
    from conformance.cli.run_options import RunOptions
    from conformance.isolation.worker_process import ResourceLimits

    traces = _traces(arguments)
    return RunOptions(
        arguments.implementation or (),
        _goldens(arguments, traces),
        arguments.device or _device_of(traces),
        arguments.dtype or list(dict.fromkeys(trace.source.dtype for trace in traces)) or ["float32"],
        chosen=bool(arguments.golden),
        checks=arguments.check or (),
        require=arguments.require_activations or (),
        known=read(arguments.known_failures) if arguments.known_failures else (),
        plan=Plan(arguments.examples, arguments.seed, depth=arguments.depth),
        limits=ResourceLimits(arguments.timeout, arguments.memory, network=arguments.network),
        in_process=arguments.in_process,
    )


def _traces(arguments: Namespace) -> "list[Recorded]":
    """Return the recorded traces among the candidates.

    An invalid trace is reported when it is run; its `UsageError` is raised here only if no candidate is valid.
    """
    from conformance.candidates.recorded_trace import trace_of

    names = arguments.implementation or ()
    found, errors = [], []
    for trace in filter(None, map(trace_of, names)):
        try:
            found.append(trace.recorded)
        except UsageError as error:
            errors.append(error)
    if errors and len(errors) == len(names):
        raise errors[0]
    return found


def _device_of(traces: "Sequence[Recorded]") -> str:
    """Return the device of the traces; the CPU if there are none. Raise `UsageError` if they were recorded on several devices."""
    devices = list(dict.fromkeys(trace.source.device for trace in traces)) or ["cpu"]
    if len(devices) > 1:
        raise UsageError(f"the traces were recorded on {' and '.join(devices)}: judge the traces of one device at a time")
    return devices[0]


def _goldens(arguments: Namespace, traces: "Sequence[Recorded]") -> "dict[str, Golden | None]":
    """Return the goldens to run on, by name: the user's checkpoint and goldens in folders; None for a stored golden.

    If recorded traces are judged and no golden is named, these are the goldens on which the traces were recorded.

    Raises:
        UsageError: two goldens have the same name, so that their results could not be distinguished; or the checkpoint is not that
            of a trace.
    """
    from conformance.goldens.golden import load_golden
    from conformance.goldens.manifest import is_folder, manifest

    own = _own(arguments)
    if traces and not arguments.golden:
        return _recorded_on(traces, own, keeps_inputs=bool(arguments.text or arguments.batch))
    asked = dict.fromkeys(arguments.golden or ([] if own else manifest()))
    found: dict[str, Golden | None] = {own.name: own} if own else {}
    for golden in asked:
        loaded = load_golden(golden) if is_folder(golden) else None
        name = loaded.name if loaded else golden
        if name in found:
            raise UsageError(f"{golden}: another requested golden is also named {name!r}; run on one at a time")
        found[name] = loaded
    return found


def _recorded_on(traces: "Sequence[Recorded]", own: "Golden | None", *, keeps_inputs: bool) -> "dict[str, Golden | None]":
    """Return the goldens on which traces were recorded, by name; `own` is the golden of a local copy of their checkpoint."""
    from conformance.candidates.recorded_trace import digests_of, recorded_on

    if keeps_inputs:
        raise UsageError("a recorded trace has its own inputs; omit --text and --batch")
    found: dict[str, Golden] = {}
    for trace in traces:
        golden = recorded_on(trace, own)
        if digests_of(found.setdefault(golden.name, golden).batches) != digests_of(golden.batches):
            raise UsageError(f"two traces were recorded on different inputs of {golden.name}: judge one at a time")
    return {name: golden if golden.origin else None for name, golden in found.items()}


def _own(arguments: Namespace) -> "Golden | None":
    """Return the golden of the user's checkpoint and inputs; None without `--checkpoint`."""
    if not arguments.checkpoint:
        if arguments.text or arguments.batch:
            raise UsageError("--text and --batch are inputs for a checkpoint; give one with --checkpoint DIR")
        return None
    from conformance.goldens.custom_golden import from_directory

    return from_directory(arguments.checkpoint, arguments.text or (), arguments.batch)


def report(arguments: Namespace) -> int:
    """Run `report`; return the exit code of all runs together, and at least 1 if results are missing or contradictory."""
    from conformance.cli.output import emit
    from conformance.report.run import document
    from conformance.results.file import read_results
    from conformance.results.to_records import footer

    results = read_results(*arguments.results)
    emit(document(results), arguments)
    code = footer(results.checks).exit_code
    return code if results.sound else max(code, 1)


def replay(arguments: Namespace) -> int:
    """Run `replay`; return the exit code of the repeated checks."""
    start_server("conformance.checks.catalogue")
    from conformance.checks.replay import replayed
    from conformance.cli.output import emit
    from conformance.cli.work import in_a_worker
    from conformance.report.run import document
    from conformance.results.to_records import results_of

    results = results_of(replayed(arguments.file, in_a_worker))
    emit(document(results), arguments)
    assert results.footer is not None
    return results.footer.exit_code


def verify(arguments: Namespace) -> int:
    """Run `golden verify`; return 3 if a part fails, else 0."""
    from conformance.cli.output import emit, rows_document
    from conformance.goldens.manifest import manifest
    from conformance.judge.verify_goldens import verify as parts_of

    results = [part for golden in arguments.golden or manifest() for part in parts_of(golden)]
    emit(rows_document([vars(r) for r in results]), arguments)
    return 3 if any(r.outcome == "fail" for r in results) else 0


def make(arguments: Namespace) -> int:
    """Run `golden make`: write a golden of a checkpoint to a folder, and print its content."""
    from conformance.cli.output import print_report, rows_document
    from conformance.goldens.make import keep

    own = _own(arguments)
    assert own is not None
    assert own.folder is not None
    made = keep(own, arguments.output or Path(f"{own.folder.name}-golden"))
    rows = [
        {"golden": made.name, "batch": name, "tokens": f"{batch.size} × {batch.length}", "activations": len(made.recorded[name])}
        for name, batch in made.batches.items()
    ]
    print_report(rows_document([{**row, "folder": made.origin} for row in rows]), arguments.format)
    return 0


def power(arguments: Namespace) -> int:
    """Run `golden power`: print one line for each golden, dtype and fault."""
    from conformance.cli.output import emit, rows_document
    from conformance.goldens.golden import load_golden
    from conformance.goldens.manifest import manifest
    from conformance.judge.detection_power import power as matrix

    rows: list[dict[str, Any]] = []
    for name in arguments.golden or list(manifest()):
        try:
            golden = load_golden(name)
            dtypes = arguments.dtype or ["float32", "bfloat16", "float16"]
            found = [p for dtype in dtypes for p in matrix(golden, dtype, sigma=arguments.sigma)]
        except DependencyMissingError as why:
            print(f"golden {name} skipped: {why}", file=sys.stderr)
            continue
        rows += [
            {
                "golden": name,
                "dtype": p.dtype,
                "fault": p.fault,
                "best z": f"{p.best:.3g}",
                "weakest z": f"{p.weakest:.3g}",
                "separable": f"{p.separable} of {p.places}",
                "weakest at": p.weakest_at,
            }
            for p in found
        ]
    emit(rows_document(rows), arguments)
    return 0 if rows else 1
