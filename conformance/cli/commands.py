"""The functions of short commands: each takes parsed arguments, prints, and returns the exit code; heavy imports are delayed."""

import json
import os
import sys
from argparse import Namespace
from functools import partial
from pathlib import Path
from typing import Any

from conformance.candidates.source_imports import may_import
from conformance.errors import DependencyMissingError, UsageError
from conformance.isolation.fork_server import start_server


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
        entries = entries_of_words(arguments.name)
        emit(Document("entries", {"entries": entries}, data=[entry.as_dict() for entry in entries]), arguments)
        return 0
    names = {group: dict(meanings) for group, meanings in summaries().items()}
    tables = [
        (f"{group}s", [group, "meaning"], [(name, said.partition(". ")[0]) for name, said in meanings.items()])
        for group, meanings in names.items()
    ]
    emit(Document("names", {"tables": tables}, data=names), arguments)
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
        names = arguments.implementation
        may_need_it = not names or any(may_import(name, "transformers") for name in names)
        start_server(*(["conformance.checks.catalogue"] if arguments.check else []), transformers=may_need_it)
    from conformance.cli.run import run_all
    from conformance.cli.run_options import options_of

    if arguments.no_cache:
        from conformance.judge import cache

        os.environ[cache.VARIABLE] = cache.OFF  # child processes inherit it
    sent = {name: value for name, value in vars(arguments).items() if name not in ("command", "parser")}  # to processes
    plain = Namespace(**sent)
    return run_all(partial(options_of, plain), arguments.output, arguments.format, jobs=arguments.jobs, resume=arguments.resume)


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
    from conformance.goldens.custom_golden import from_directory
    from conformance.goldens.make import keep

    source = from_directory(arguments.checkpoint, arguments.text, arguments.batch)
    assert source.folder is not None
    golden = keep(source, arguments.output or Path(f"{source.folder.name}-golden"))
    rows = [
        {
            "golden": golden.name,
            "batch": name,
            "tokens": f"{batch.size} × {batch.length}",
            "activations": len(golden.recorded[name]),
            "folder": golden.origin,
        }
        for name, batch in golden.batches.items()
    ]
    print_report(rows_document(rows), arguments.format)
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
            powers = [p for dtype in dtypes for p in matrix(golden, dtype, sigma=arguments.sigma)]
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
            for p in powers
        ]
    emit(rows_document(rows), arguments)
    return 0 if rows else 1
