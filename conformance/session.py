"""One run from the command line: pairs, progress, the results file, the report, the exit code."""

import os
import platform
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from importlib import metadata
from pathlib import Path

import msgspec
from rich.console import Console

from conformance import __version__
from conformance.goldens.make import TINY_SEED
from conformance.goldens.manifest import manifest
from conformance.records import SCHEMA_VERSION, Header, Writer
from conformance.registry import registered
from conformance.report.telling import activation_records, check_record, footer
from conformance.report.terminal import tell
from conformance.run import Pair, Result, check


def run_all(
    implementations: Sequence[str] | None, goldens: Sequence[str] | None, device: str, dtypes: Sequence[str], out: Path, how: str
) -> int:
    """Run every pair, write `results.jsonl` into `out`, print the report; returns the exit code."""
    names = implementations or [r.name for r in registered()]
    pairs = [Pair(i, g, device, t) for g in goldens or list(manifest()) for t in dtypes for i in names]
    progress = Console(stderr=True)
    results: list[Result] = []
    path = out / "results.jsonl"
    with Writer(path) as writer:
        writer.write(_header(device))
        for number, pair in enumerate(pairs, 1):
            with progress.status(f"{number}/{len(pairs)} {pair}") if progress.is_terminal else nullcontext():
                result = check(pair.implementation, pair.golden, pair.device, pair.dtype, runs=len(pairs))
            results.append(result)
            for record in activation_records(result):
                writer.write(record)
            writer.write(check_record(result))
        end = footer(results)
        writer.write(end)
    if how == "json":
        sys.stdout.write(msgspec.json.encode([check_record(r) for r in results]).decode() + "\n")
    elif how == "markdown":
        print("| candidate | outcome | activations |\n| --- | --- | --- |")
        for r in results:
            print(f"| {r.pair} | {r.outcome} | {r.judged} of {len(r.verdicts)} |")
    else:
        tell(results, end, Console())
        print(f"\nresults: {path}")
    return end.exit_code


def _header(device: str) -> Header:
    import torch

    gpu = torch.cuda.get_device_name() if device.startswith("cuda") and torch.cuda.is_available() else None
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
        goldens={name: f"{entry['version']}:{entry['stored_digest']}" for name, entry in manifest().items()},
        seeds={"tiny": TINY_SEED},
    )
