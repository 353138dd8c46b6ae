"""One run from the command line: cases, progress, the results file, the report, the exit code."""

import os
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import metadata
from pathlib import Path

from rich.console import Console

from conformance import __version__
from conformance.candidates.registry import load, registered
from conformance.case import Case
from conformance.checks.catalogue import CHECKS, run
from conformance.checks.expected import in_the_light_of_what_is_known
from conformance.checks.known_failures import KnownFailure, matched
from conformance.checks.published import CHECK, Published, check_published, published_of
from conformance.errors import ConformanceError
from conformance.goldens.digest import content_digest
from conformance.goldens.golden import Golden, load_golden, stored_arrays
from conformance.goldens.manifest import manifest
from conformance.judge.statistics import FALSE_ALARM
from conformance.records import (
    SCHEMA_VERSION,
    CaseRecords,
    GoldenRecord,
    Header,
    Results,
    Writer,
)
from conformance.replay import leave, left_by
from conformance.report.telling import footer, records_of
from conformance.report.views import show
from conformance.result import Result
from conformance.run import check


def run_all(
    implementations: Sequence[str] | None,
    goldens: Mapping[str, Golden | None],
    device: str,
    dtypes: Sequence[str],
    require: Sequence[str],
    known: Sequence[KnownFailure],
    out: Path,
    how: str,
) -> int:
    """Run every case, write `results.jsonl` into `out`, print the report; returns the exit code.

    `goldens` maps a name to a golden of one's own, or to None for the one that is stored under the name.
    """
    names = implementations or [r.name for r in registered()]
    cases = [Case(i, g, device, t) for g in goldens for t in dtypes for i in names]
    # To look into an exported program may change how it is run: its outputs are judged as it is, too.
    cases += [replace(c, check="outputs") for c in cases if _has_an_unobserved_self(c.implementation)]
    published = {g: published_of(own) for g, own in goldens.items() if own}
    cases += [replace(c, check=CHECK) for c in cases if published.get(c.golden) and c.check == "values"]
    failures = matched(known, cases)
    path = out / "results.jsonl"
    told: list[CaseRecords] = []
    with Writer(path) as writer:
        header = _header(device, goldens)
        writer.write(header)
        for number, case in enumerate(cases, 1):
            with _progress(f"{number}/{len(cases)} {case}"):
                result = _result(case, goldens[case.golden], published.get(case.golden), require, len(cases))
                result = in_the_light_of_what_is_known(result, case.implementation, failures.get(case, ()))
            told.append(records_of(result))
            for record in told[-1].activations:
                writer.write(record)
            if case.check == "values":
                _leave(result, goldens[case.golden], out / "failures", require)
            writer.write(told[-1].check)
        end = footer(case.check for case in told)
        writer.write(end)
    show(Results(header, tuple(told), end), how)
    if how == "pretty":
        print(f"\nresults: {path}")
    return end.exit_code


def _result(case: Case, own: Golden | None, published: Published | None, require: Sequence[str], runs: int) -> Result:
    if case.check == CHECK and own and published:
        return check_published(case.implementation, own, published, case.device, case.dtype)
    if case.check == "outputs":
        return run(CHECKS["outputs"], case.implementation, own or case.golden, case.device, case.dtype, runs)
    return check(case.implementation, own or case.golden, case.device, case.dtype, require=require, runs=runs)


def _has_an_unobserved_self(implementation: str) -> bool:
    try:
        return hasattr(load(implementation), "unobserved")
    except ConformanceError:  # told when it is run
        return False


def _leave(result: Result, own: Golden | None, folder: Path, require: Sequence[str]) -> None:
    """What a failure leaves behind, for `replay`, and a pass takes away; it must not be one more failure."""
    try:
        if result.outcome not in ("fail", "crash"):
            left_by(result.case, folder).unlink(missing_ok=True)
            return
        golden = own or load_golden(result.case.golden)
        leave(result, golden.origin or golden.name, golden.batches, folder, require)
    except (OSError, ConformanceError) as error:
        print(f"nothing was left behind of {result.case}: {error}", file=sys.stderr)


def _own_record(own: Golden) -> GoldenRecord:
    """A golden of one's own, told apart from others of its name by the digests of inputs and weights."""
    weights = content_digest(own.checkpoint.weights)
    return GoldenRecord(own.version, content_digest(stored_arrays(own.batches, {})), weights, own.origin)


@contextmanager
def _progress(text: str) -> Iterator[None]:
    """A line that tells what runs, on a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    with console.status(text):
        yield


def _header(device: str, goldens: Mapping[str, Golden | None]) -> Header:
    import torch

    gpu = torch.cuda.get_device_name() if device.startswith("cuda") and torch.cuda.is_available() else None
    entries = manifest()
    return Header(
        schema=SCHEMA_VERSION,
        suite=__version__,
        python=platform.python_version(),
        torch=str(torch.__version__),
        transformers=metadata.version("transformers"),
        platform=platform.platform(),
        processor=f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.backends.cpu.get_cpu_capability()}",
        gpu=gpu,
        threads=torch.get_num_threads(),
        goldens={
            name: GoldenRecord(int(e["version"]), e["stored_digest"], e["weights_digest"], e["source"])
            for name, e in entries.items()
            if name in goldens and goldens[name] is None
        }
        | {name: _own_record(own) for name, own in goldens.items() if own},
        checkpoint=next((g.name for g in goldens.values() if g is not None), None),
        false_alarm=FALSE_ALARM,
    )
