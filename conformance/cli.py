"""The command line: `list`, `run`, `golden`. Parses here; what is heavy is imported by the command that needs it."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from conformance.errors import ConformanceError, UsageError


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code: 0 conforms, 1 does not, 2 usage, 3 the harness or a fixture is broken."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    arguments = _parser().parse_args(argv)
    try:
        _require_our_packages()
        return int(arguments.command(arguments))
    except ConformanceError as error:
        print(f"bert-conformance: {error}", file=sys.stderr)
        return error.exit_code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bert-conformance", description="Is this BERT right, and if not, where?")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    listing = commands.add_parser("list", help="implementations and goldens")
    listing.set_defaults(command=_list)
    running = commands.add_parser("run", help="run candidates and judge them", description="No arguments: everything.")
    running.add_argument(
        "-i", "--implementation", action="append", metavar="NAME", help="registered name, or package.module:object"
    )
    running.add_argument("--golden", action="append", metavar="NAME", help="golden to run on (default: all)")
    running.add_argument("--checkpoint", type=Path, metavar="DIR", help="run on this local Hugging Face BERT instead")
    running.add_argument("--text", action="append", metavar="TEXT", help="with --checkpoint: an input; its tokenizer reads it")
    running.add_argument("--batch", type=Path, metavar="FILE", help="with --checkpoint: inputs, as JSON or safetensors")
    running.add_argument(
        "--require-activations", action="append", metavar="PATTERN", help="these must be observed (* and ? as in a shell)"
    )
    running.add_argument("--device", default="cpu", help="torch device (default: cpu)")
    running.add_argument("--dtype", action="append", help="float64, float32, bfloat16 or float16 (default: float32)")
    running.add_argument("--out", type=Path, default=Path("conformance-results"), metavar="DIR", help="where results.jsonl goes")
    running.add_argument("--schema", action="store_true", help="print the JSON Schema of the results file and stop")
    running.set_defaults(command=_run)
    golden = commands.add_parser("golden", help="verify or make goldens, or show their power")
    parts = golden.add_subparsers(required=True, metavar="verify|make|power")
    verifying = parts.add_parser("verify", help="stored files, weights and batches, activations")
    verifying.set_defaults(command=_verify)
    making = parts.add_parser("make", help="write all goldens")
    making.add_argument("folder", type=Path)
    making.set_defaults(command=_make)
    powering = parts.add_parser("power", help="the detection-power matrix")
    powering.add_argument("--golden", action="append", metavar="NAME")
    powering.add_argument("--dtype", action="append")
    powering.set_defaults(command=_power)
    for sub in (listing, running, verifying, powering):
        sub.add_argument("--format", choices=("pretty", "json", "markdown"), default="pretty")
    return parser


def _require_our_packages() -> None:
    """Both import names are generic: say so if another distribution's `implementations` would be imported."""
    ours = Path(__file__).resolve().parents[1]
    spec = find_spec("implementations")
    theirs = Path(spec.origin).resolve().parents[1] if spec and spec.origin else None
    if theirs != ours:
        raise UsageError(f"the package 'implementations' comes from {theirs}, not from {ours}: it shadows bert-conformance's own")


def _table(rows: list[dict[str, Any]], how: str) -> None:
    """Rows of the same keys, as told by --format."""
    if how == "json":
        print(json.dumps(rows, indent=2))
        return
    if not rows:
        return
    cells = [list(rows[0]), *([str(v) for v in row.values()] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
    edge = "| " if how == "markdown" else ""
    for number, line in enumerate(cells):
        body = (" | " if edge else "  ").join(c.ljust(w) for c, w in zip(line, widths, strict=True))
        print(f"{edge}{body}{edge[::-1]}".rstrip())
        if number == 0 and edge:
            print("|" + "|".join("-" * (w + 2) for w in widths) + "|")


def _list(arguments: argparse.Namespace) -> int:
    from conformance.goldens.manifest import manifest
    from conformance.registry import registered

    rows = [
        {"kind": "implementation", "name": r.name, "from": f"{r.distribution} {r.version}", "origin": r.origin}
        for r in registered()
    ]
    for name, entry in manifest().items():
        rows.append({"kind": "golden", "name": name, "from": f"version {entry['version']}", "origin": entry["source"]})
    _table(rows, arguments.format)
    return 0


def _run(arguments: argparse.Namespace) -> int:
    if arguments.schema:
        from conformance.records import json_schema

        print(json.dumps(json_schema(), indent=2))
        return 0
    from conformance.session import run_all

    return run_all(
        arguments.implementation,
        _subjects(arguments),
        arguments.device,
        arguments.dtype or ["float32"],
        arguments.require_activations or [],
        arguments.out,
        arguments.format,
    )


def _subjects(arguments: argparse.Namespace) -> dict[str, Any]:
    """What to run on: goldens by name, and the user's own checkpoint."""
    from conformance.goldens.manifest import manifest

    if not arguments.checkpoint:
        if arguments.text or arguments.batch:
            raise UsageError("--text and --batch are inputs for a checkpoint; name one with --checkpoint DIR")
        return dict.fromkeys(arguments.golden or manifest())
    from conformance.goldens.own import from_directory

    own = from_directory(arguments.checkpoint, arguments.text or (), arguments.batch)
    return {own.name: own, **dict.fromkeys(arguments.golden or ())}


def _verify(arguments: argparse.Namespace) -> int:
    from conformance.goldens.manifest import manifest
    from conformance.goldens.verify import verify

    results = [part for name in manifest() for part in verify(name)]
    _table([vars(r) for r in results], arguments.format)
    return 3 if any(r.outcome == "fail" for r in results) else 0


def _make(arguments: argparse.Namespace) -> int:
    from conformance.goldens.make import make

    arguments.folder.mkdir(parents=True, exist_ok=True)
    make(arguments.folder)
    return 0


def _power(arguments: argparse.Namespace) -> int:
    from conformance.errors import DependencyMissingError
    from conformance.goldens.golden import load_golden
    from conformance.goldens.manifest import manifest
    from conformance.goldens.power import power

    rows: list[dict[str, Any]] = []
    for name in arguments.golden or list(manifest()):
        try:
            for dtype in arguments.dtype or ["float32", "bfloat16", "float16"]:
                for p in power(load_golden(name), dtype):
                    separable = f"{p.separable} of {p.places}"
                    row = {
                        "golden": name,
                        "dtype": dtype,
                        "fault": p.fault,
                        "best z": f"{p.best:.3g}",
                        "weakest z": f"{p.weakest:.3g}",
                    }
                    rows.append({**row, "separable": separable, "weakest at": p.weakest_at})
        except DependencyMissingError as why:
            print(f"golden {name} skipped: {why}", file=sys.stderr)
    _table(rows, arguments.format)
    return 0 if rows else 1
