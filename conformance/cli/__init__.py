"""The argument parser of the command line. The module with the function of a command is imported when the command is run."""

import argparse
import math
import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from conformance.checks.search.plan import EXAMPLES
from conformance.cli.help import REFERENCE
from conformance.errors import INTERRUPTED, ConformanceError, UsageError
from conformance.isolation.server import started_context
from conformance.judge.depth import DEPTHS
from conformance.model.files import ALLOW_PICKLE
from conformance.names import capped, printable_lines

FORMATS = ("pretty", "json", "markdown")
_SIZE = re.compile(r"(\d{1,15})(KiB|MiB|GiB)?")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return the exit code: 0 conforms, 1 does not, 2 usage error, 3 the harness or a fixture is broken."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    arguments = _parser().parse_args(argv)
    try:
        _require_our_packages()
        if getattr(arguments, "allow_pickle", False):
            os.environ[ALLOW_PICKLE] = "1"  # child processes inherit it
        return int(arguments.command(arguments))
    except ConformanceError as error:
        print("\n".join(printable_lines(capped(f"bert-conformance: {error}"))), file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("bert-conformance: interrupted", file=sys.stderr)
        return INTERRUPTED
    except SystemExit as error:  # after argparse reported a usage error
        if isinstance(error.__context__, BrokenPipeError):  # rich raises it when the reader of a pipe has closed it
            return 1
        print(f"bert-conformance: what was run tried to end the process ({error.code})", file=sys.stderr)
        return ConformanceError.exit_code
    except (OSError, UnicodeError) as error:
        if isinstance(error, BrokenPipeError):  # the reader has closed the pipe
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        print(f"bert-conformance: {error}", file=sys.stderr)
        return UsageError.exit_code
    except Exception as error:
        traceback.print_exc()
        print(f"bert-conformance: the harness itself failed, please report it: {type(error).__name__}: {error}", file=sys.stderr)
        return ConformanceError.exit_code


def _require_our_packages() -> None:
    """Raise `UsageError` if another distribution's package `implementations` shadows ours; the name is generic."""
    ours = Path(__file__).resolve().parents[2]
    spec = find_spec("implementations")
    theirs = Path(spec.origin).resolve().parents[1] if spec and spec.origin else None
    if theirs != ours:
        raise UsageError(
            f"the package 'implementations' comes from {theirs}, not from {ours}: it shadows bert-conformance's own; "
            "run the command bert-conformance, which does not look here first, or start from another folder"
        )


def _command(entry_point: str, *, workers: bool = False) -> Callable[[argparse.Namespace], int]:
    """Return a function that imports and runs `module:name` of this package; with `workers`, the fork server is started first."""

    def call(arguments: argparse.Namespace) -> int:
        if workers:
            started_context()
        module, _, name = entry_point.partition(":")
        return int(getattr(import_module(f"conformance.cli.{module}"), name)(arguments))

    return call


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bert-conformance", description="Is this BERT right, and if not, where?")
    parts = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(
        name: str, says: str, entry_point: str = "", *, formats: Sequence[str] = FORMATS, workers: bool = False
    ) -> argparse.ArgumentParser:
        made = parts.add_parser(name, help=says, description=says[0].upper() + says[1:] + ".", **_reference(name))
        made.set_defaults(command=_command(entry_point or f"{name}:run", workers=workers))
        made.add_argument("--format", choices=formats, default="pretty")
        return made

    command("list", "implementations and goldens", "commands:listing")
    _add_explain(command("explain", "what a name in a report means, its equation, usual cause and remedy; no arguments: all names"))
    _add_run(command("run", "run candidates and judge them; no arguments: everything", "commands:run"))
    _add_diff(command("diff", "what differs between two implementations, traces, goldens or results files", workers=True))
    report = command("report", "one report from one or many results files", "commands:report", formats=(*FORMATS, "junit"))
    report.add_argument("results", nargs="+", type=Path)
    _add_output(report, ".txt, .md, .xml, .json or .html")
    trace = command("trace", "how an input flows through a network: tokens, and every activation's shape, equation and statistics")
    _add_trace(trace)
    _add_diagnose(command("diagnose", "which faults explain the final outputs of a closed system, given its checkpoint"))
    _add_similarity(
        command(
            "similarity",
            "which texts change rank by cosine similarity between two systems, and whether rounding explains it",
            workers=True,
        )
    )
    again = command("replay", "run again what a failure left behind, or every failure of a results file", "commands:replay")
    again.add_argument("file", type=Path)
    kept = command("cache", "what is kept from run to run, and where", "commands:cache", formats=("pretty", "json"))
    kept.add_argument("--clear", action="store_true", help="remove it")
    _add_map(command("map", "propose the registration of a module of unknown names, and write its adaptor"))
    _add_new(command("new", "a package around a registration: entry point, tests, tox, CI", formats=("pretty",)))
    _add_golden(parts.add_parser("golden", help="verify or make goldens, or show their power"))
    return parser


def _reference(command: str) -> dict[str, Any]:
    """Return the parser arguments that show a command's reference below its options, without reformatting."""
    return {"epilog": REFERENCE.get(command, ""), "formatter_class": argparse.RawDescriptionHelpFormatter}


def _add_trace(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("implementation", metavar="NAME", help="an implementation, golden:NAME (the true values), or a saved trace")
    parser.add_argument("other", metavar="NAME2", nargs="?", help="another one, to be shown beside it")
    _add_output(
        parser, ".html (with the drawings), .md, .json, .txt, or .safetensors for the activations, which `diff` and `trace` read"
    )
    _add_subject(parser)


def _add_output(parser: argparse.ArgumentParser, suffixes: str) -> None:
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help=f"write it there in the form that the suffix says: {suffixes}; may be given several times",
    )


def _add_explain(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name",
        nargs="*",
        metavar="NAME",
        help="a fault, a mistake in inputs, a check or the id of its test, an activation or the end of its name, an outcome, "
        "a golden, an arithmetic, cmd or trace",
    )


def _add_diff(parser: argparse.ArgumentParser) -> None:
    for side in ("a", "b"):
        parser.add_argument(side, metavar=side.upper(), help="an implementation, golden:NAME, a saved trace, or a results file")
    _add_output(parser, ".html, .md, .json or .txt")
    _add_subject(parser)


def _add_checkpoint(parser: argparse.ArgumentParser, says: str, *, required: bool = False) -> None:
    parser.add_argument("--checkpoint", type=Path, metavar="DIR", required=required, help=says)
    parser.add_argument(
        "--allow-pickle",
        action="store_true",
        help="read DIR's pytorch_model.bin, its tensors alone, where it has no safetensors file",
    )


def _add_diagnose(parser: argparse.ArgumentParser) -> None:
    _add_checkpoint(parser, "the local Hugging Face BERT that it should run", required=True)
    parser.add_argument(
        "--outputs",
        type=Path,
        metavar="FILE",
        required=True,
        help="the outputs: text as a library prints it, a server's JSON, npy, npz, safetensors or Parquet; the forms are below",
    )
    parser.add_argument(
        "--text", action="append", metavar="TEXT", help="an input, where FILE has none; the checkpoint's tokenizer reads it"
    )
    parser.add_argument("--batch", type=Path, metavar="FILE", help="inputs, where FILE has none; JSON or safetensors")
    parser.add_argument("--output", metavar="NAME", help="which output a table without a name is (default: by its axes)")
    parser.add_argument(
        "--pooling",
        metavar="NAME",
        help="how an embedding is pooled: cls, mean, max, mean-normalised … (default: as the checkpoint says, else any)",
    )
    parser.add_argument(
        "--dtype", default="float32", help="what it computes in: float64, float32, bfloat16 or float16 (default: float32)"
    )
    parser.add_argument(
        "--time-limit",
        metavar="SECONDS",
        help="end the search after so long with the best that was found, and say what was not tried (default: none)",
    )


def _add_similarity(parser: argparse.ArgumentParser) -> None:
    for side in ("a", "b"):
        parser.add_argument(
            side,
            metavar=side.upper(),
            help="an implementation, as `run -i` takes it, or a file of embeddings, as `diagnose` reads it",
        )
    parser.add_argument("--texts", type=Path, metavar="FILE", required=True, help="the texts, one a line, at least three")
    _add_checkpoint(parser, "the network, with its pooling: a local directory of sentence-transformers", required=True)
    parser.add_argument("--device", default="cpu", help="torch device (default: cpu)")
    parser.add_argument(
        "--dtype",
        action="append",
        metavar="DTYPE",
        help="float64, float32, bfloat16 or float16; given twice, that of A and that of B (default: float32)",
    )


def _add_map(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "module", metavar="MODULE:FACTORY", help="a class of torch.nn.Module, a function that builds one, or one that is built"
    )
    _add_checkpoint(parser, "look at it with this network's sizes (default: sizes that are all different)")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the adaptor there: a Python file")


def _add_new(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="DIR", help="a new folder; the package is called as it is")
    parser.add_argument("--map", metavar="MODULE:FACTORY", help="the module that it registers, mapped as `map` does")


def _add_subject(parser: argparse.ArgumentParser) -> None:
    """Add the options that select one golden or checkpoint, with its own inputs or the user's."""
    parser.add_argument(
        "--golden",
        metavar="NAME",
        help="golden to run on, or a folder that `golden make` wrote (default: tiny, and minilm for texts)",
    )
    _add_checkpoint(parser, "a local Hugging Face BERT, instead of a golden")
    parser.add_argument("--text", action="append", metavar="TEXT", help="an input, read by the network's tokenizer")
    parser.add_argument("--batch", type=Path, metavar="FILE", help="inputs; JSON or safetensors")
    parser.add_argument("--device", default="cpu", help="torch device (default: cpu)")
    parser.add_argument("--dtype", default="float32", help="float64, float32, bfloat16 or float16 (default: float32)")


def _add_own(parser: argparse.ArgumentParser) -> None:
    _add_checkpoint(parser, "a local Hugging Face BERT, instead of all goldens")
    parser.add_argument("--text", action="append", metavar="TEXT", help="with --checkpoint: an input; its tokenizer reads it")
    parser.add_argument(
        "--batch",
        type=Path,
        metavar="FILE",
        help="with --checkpoint: inputs; JSON or safetensors",
    )
    parser.add_argument("--device", help="torch device (default: cpu, or that of the recorded traces)")


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-i",
        "--implementation",
        action="append",
        metavar="NAME",
        help="registered name, package.module:object, 'cmd:PROGRAM ARGS', an exported program or a recorded trace (default: all)",
    )
    parser.add_argument(
        "--golden", action="append", metavar="NAME", help="golden to run on, or a folder that `golden make` wrote (default: all)"
    )
    parser.add_argument("--dtype", action="append", help="float64, float32, bfloat16 or float16 (default: float32)")
    parser.add_argument(
        "--check", action="append", metavar="NAME", help="checks to run (* and ? as in a shell; default: values; '*' is all)"
    )
    parser.add_argument("--examples", type=_count, default=EXAMPLES, metavar="N", help=f"of each search (default: {EXAMPLES})")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="from which examples are drawn (default: 0)")
    parser.add_argument(
        "--depth", choices=DEPTHS, default="full", help="screen: whether a step fails; full: which mistake it is, too (default)"
    )
    parser.add_argument("--no-cache", action="store_true", help="compute what depends on no candidate anew, and keep none of it")
    parser.add_argument("--shard", default="1/1", metavar="K/N", help="the K-th of N shares; `report` puts them together")
    parser.add_argument("--timeout", type=_seconds, metavar="SECONDS", help="end a check that takes longer (default: none)")
    parser.add_argument("--memory", type=_bytes, metavar="SIZE", help="how much a candidate may take, as 8GiB (default: any)")
    parser.add_argument(
        "--network", action="store_true", help="let candidates use the network (default: not, where the system allows to forbid it)"
    )
    parser.add_argument(
        "--in-process", action="store_true", help="run candidates in this process, for a debugger; none is kept from the others"
    )
    _add_own(parser)
    parser.add_argument(
        "--require-activations", action="append", metavar="PATTERN", help="these must be observed (* and ? as in a shell)"
    )
    parser.add_argument("--known-failures", type=Path, metavar="FILE", help="a TOML file of what is known to fail")
    parser.add_argument("--out", type=Path, default=Path("conformance-results"), metavar="DIR", help="where results.jsonl goes")
    parser.add_argument(
        "--resume", action="store_true", help="run only what is missing in DIR's results.jsonl, of a run that was cut short"
    )
    parser.add_argument("--schema", action="store_true", help="print the JSON Schema of the results file and stop")


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of at least 1")
    return int(text)


def _seconds(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0.0 < found < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0")
    return found


def _bytes(text: str) -> int:
    match = _SIZE.fullmatch(text)
    if not match or not int(match[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write 8GiB, 512MiB or a number of bytes")
    exponent: int = ["", "KiB", "MiB", "GiB"].index(match[2] or "")
    return int(match[1]) << (10 * exponent)


def _add_golden(parser: argparse.ArgumentParser) -> None:
    parts = parser.add_subparsers(required=True, metavar="verify|make|power")
    verify = parts.add_parser("verify", help="stored files, weights and batches, activations")
    verify.add_argument(
        "golden", nargs="*", metavar="GOLDEN", help="its name, or a folder that `make` wrote (default: all shipped)"
    )
    verify.set_defaults(command=_command("commands:verify"))
    make = parts.add_parser(
        "make",
        help="a golden of a local checkpoint, to run on again: its batches, the true activations, the weights' digest",
        **_reference("make"),
    )
    _add_checkpoint(make, "a local Hugging Face BERT; it is not copied", required=True)
    make.add_argument("--text", action="append", metavar="TEXT", help="an input; the checkpoint's tokenizer reads it")
    make.add_argument("--batch", type=Path, metavar="FILE", help="inputs; JSON or safetensors (default: a generated batch)")
    make.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FOLDER",
        help="a new folder; the golden is called as it is (default: DIR-golden, here)",
    )
    make.set_defaults(command=_command("commands:make"))
    power = parts.add_parser("power", help="the detection-power matrix")
    power.add_argument("--golden", action="append", metavar="NAME", help="a golden, or a folder that `make` wrote (default: all)")
    power.add_argument("--dtype", action="append")
    power.set_defaults(command=_command("commands:power"))
    for part in (verify, make, power):
        part.add_argument("--format", choices=FORMATS, default="pretty")
