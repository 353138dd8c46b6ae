"""The argument parsers of all commands.

The module with the function of a command is imported when the command is run.
"""

import argparse
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from pathlib import Path
from textwrap import fill
from typing import Any, NoReturn

from conformance.cli.argument_types import add_checkpoint, add_inputs, positive_integer
from conformance.cli.help import REFERENCE
from conformance.cli.run_arguments import add_run_arguments
from conformance.errors import UsageError
from conformance.isolation.fork_server import started_context
from conformance.report.output_formats import DOCUMENT_FORMATS, REPORT_FORMATS

FORMATS = ("pretty", "json", "markdown")
_REQUIRED = "the following arguments are required"  # with which argparse's message begins


class _Parser(argparse.ArgumentParser):
    """A parser whose errors name the command that explains its arguments."""

    def error(self, message: str) -> NoReturn:
        """Print the usage, the error with what each missing option is, and exit with the code of usage errors."""
        self.print_usage(sys.stderr)
        missing = [a for a in self._actions if a.required and a.option_strings and message.startswith(_REQUIRED)]
        message += "".join(f"\n  {a.option_strings[0]} {a.metavar}: {a.help}" for a in missing if a.option_strings[0] in message)
        self.exit(UsageError.exit_code, f"{self.prog}: error: {message}\nfor explanations and examples: {self.prog} --help\n")


def parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the arguments; a candidate that is given to `run` without -i is recognized as such."""
    parser = argument_parser()
    arguments, unknown = parser.parse_known_args(argv)
    if unknown:
        is_run = getattr(arguments, "command_name", "") == "run"
        bare = next((name for name in unknown if not name.startswith("-")), "") if is_run else ""
        hint = f"; a candidate is given with -i: bert-conformance run -i {shlex.quote(bare)}" if bare else ""
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
    return arguments


def _command(entry_point: str, *, workers: bool = False) -> Callable[[argparse.Namespace], int]:
    """Return a function that imports and runs `module:name` of this package; with `workers`, the fork server is started first."""

    def call(arguments: argparse.Namespace) -> int:
        if workers:
            started_context()
        module, _, name = entry_point.partition(":")
        return int(getattr(import_module(f"conformance.cli.{module}"), name)(arguments))

    return call


def argument_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = _Parser(
        prog="bert-conformance",
        description="Check whether a BERT implementation is correct and, if not, where it is wrong and which mistake it makes.",
        **_reference("bert-conformance"),
    )
    parts = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(
        name: str, says: str, entry_point: str = "", *, formats: Sequence[str] = FORMATS, workers: bool = False
    ) -> argparse.ArgumentParser:
        made = parts.add_parser(name, **_described(says), **_reference(name))
        made.set_defaults(command_name=name, command=_command(entry_point or f"{name}:run", workers=workers))
        _add_format(made, formats)
        return made

    command("list", "list registered implementations, and goldens", "commands:listing")
    _add_explain(
        command("explain", "explain a name in a report: meaning, equation, usual cause, repair; without a name: list all names")
    )
    run = command("run", "run and judge candidates; without arguments: every registered one on every golden", "commands:run")
    add_run_arguments(run)
    _add_verbose(run)
    _add_diff(command("diff", "compare two implementations, traces, goldens or results files", workers=True))
    report = command(
        "report", "make one report from one or more results files", "commands:report", formats=("pretty", *REPORT_FORMATS)
    )
    report.add_argument("results", nargs="+", type=Path, metavar="RESULTS", help="a results file, results.jsonl")
    _add_output(report, REPORT_FORMATS)
    _add_verbose(report)
    trace = command(
        "trace", "show how an input flows through a network: tokens, and the shape, equation and statistics of each activation"
    )
    _add_trace(trace)
    _add_diagnose(
        command("diagnose", "find the mistakes that explain the final outputs of a closed system, given its checkpoint and inputs")
    )
    _add_similarity(
        command(
            "similarity",
            "find pairs of texts whose rank by cosine similarity differs between two systems, and whether rounding explains it",
            workers=True,
        )
    )
    again = command("replay", "repeat a saved failure, or every failure of a results file", "commands:replay")
    again.add_argument("file", type=Path, metavar="FILE", help="a file of `failures/`, or a results file")
    _add_verbose(again)
    kept = command("cache", "show or clear the data kept between runs", "commands:cache", formats=("pretty", "json"))
    kept.add_argument("--clear", action="store_true", help="remove all entries")
    _add_map(command("map", "propose the registration of a module with unknown names, and write its adaptor"))
    _add_new(command("new", "create a package around a registration: entry point, tests, tox, CI", formats=("pretty",)))
    _add_golden(parts.add_parser("golden", help="verify or make goldens, or show which mistakes each can detect"))
    return parser


def _described(says: str) -> dict[str, Any]:
    """Return the parser arguments that describe a command in the list of commands and in its own help."""
    return {"help": says, "description": fill(f"{says[0].upper()}{says[1:]}.")}


def _add_format(parser: argparse.ArgumentParser, formats: Sequence[str]) -> None:
    parser.add_argument(
        "--format", choices=formats, default="pretty", help="format of what is printed (default: pretty, for people)"
    )


def _add_verbose(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-v",
        "--verbose",
        dest="format",
        action="store_const",
        const="long",
        help="print what the report leaves out: the numbers that a pass confirms, every check, scripts of failures",
    )


def _reference(command: str) -> dict[str, Any]:
    """Return the parser arguments that show a command's reference below its options, without reformatting."""
    return {"epilog": REFERENCE.get(command, ""), "formatter_class": argparse.RawDescriptionHelpFormatter}


def _add_trace(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("implementation", metavar="NAME", help="an implementation, golden:NAME (the oracle), or a saved trace")
    parser.add_argument("other", metavar="NAME2", nargs="?", help="a second one, shown beside the first")
    _add_output(parser, DOCUMENT_FORMATS, ", or .safetensors for the activations, which `diff` and `trace` read")
    _add_subject(parser)


def _add_output(parser: argparse.ArgumentParser, formats: Iterable[str], other: str = "") -> None:
    suffixes = ", ".join(REPORT_FORMATS[name].suffix for name in formats) + other
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help=f"write to FILE, in the format given by its suffix: {suffixes}; may be repeated",
    )


def _add_explain(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name",
        nargs="*",
        metavar="NAME",
        help="a term, a mistake, a check or its test id, an activation or the end of its name, an outcome, a golden, an "
        "arithmetic, cmd (candidates in any language), or trace (recorded activations); words need no quotes",
    )


def _add_diff(parser: argparse.ArgumentParser) -> None:
    for side, file in (("a", "a results file (.jsonl), the earlier one"), ("b", "the later results file")):
        parser.add_argument(
            side, metavar=side.upper(), help=f"an implementation, golden:NAME (the oracle), a saved trace (.safetensors), or {file}"
        )
    _add_output(parser, DOCUMENT_FORMATS)
    _add_subject(parser)


def _add_diagnose(parser: argparse.ArgumentParser) -> None:
    add_checkpoint(parser, "the folder of the Hugging Face BERT that the system should run", required=True)
    parser.add_argument(
        "--outputs",
        type=Path,
        metavar="FILE",
        required=True,
        help="a file with the system's outputs, or - for standard input: text printed by a library, a server's JSON, npy, npz, "
        "safetensors or Parquet; see the formats below",
    )
    add_inputs(
        parser,
        "an input, if the outputs file has none; tokenized with the checkpoint's tokenizer; once for each row of the outputs",
        "inputs, if the outputs file has none; JSON or safetensors",
    )
    parser.add_argument(
        "--output",
        metavar="NAME",
        help="what a table without a name is, such as embedding or logits (default: determined by its axes)",
    )
    parser.add_argument(
        "--pooling",
        metavar="NAME",
        help="pooling of an embedding: cls, mean, max, mean-normalised, ... (default: that of the checkpoint, else any, so that a "
        "pooling that is not meant conforms, too)",
    )
    parser.add_argument(
        "--dimensions",
        type=positive_integer,
        metavar="N",
        help="number of features that the system shortens embeddings to, before it normalises them (default: the directory's "
        "truncate_dim)",
    )
    parser.add_argument(
        "--dtype",
        default="float32",
        help="format in which the system should compute: float64, float32, bfloat16 or float16 (default: float32)",
    )
    parser.add_argument(
        "--time-limit",
        metavar="SECONDS",
        help="end the search after this time; report the best result, and what was not tried (default: no limit)",
    )


def _add_similarity(parser: argparse.ArgumentParser) -> None:
    for side in ("a", "b"):
        parser.add_argument(
            side,
            metavar=side.upper(),
            help="an implementation, as for `run -i`, or a file of embeddings, as for `diagnose`",
        )
    parser.add_argument("--texts", type=Path, metavar="FILE", required=True, help="the texts, one per line, at least three")
    add_checkpoint(parser, "the network with its pooling: a local sentence-transformers directory", required=True)
    parser.add_argument("--device", default="cpu", help="torch device (default: cpu)")
    parser.add_argument(
        "--dtype",
        action="append",
        metavar="DTYPE",
        help="float64, float32, bfloat16 or float16; if given twice, the first is for A and the second for B (default: float32)",
    )


def _add_map(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "module",
        metavar="MODULE:FACTORY",
        help="a subclass of torch.nn.Module, a function that builds a module, or a module; see below",
    )
    add_checkpoint(parser, "examine the module with the sizes of this network (default: sizes that are all different)")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the adaptor to this Python file")


def _add_new(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="DIR", help="a new folder; its name is the name of the package")
    parser.add_argument("--map", metavar="MODULE:FACTORY", help="the module to register, mapped as by `map`")


def _add_subject(parser: argparse.ArgumentParser) -> None:
    """Add the options that select one golden or checkpoint, with its own inputs or the user's."""
    parser.add_argument(
        "--golden",
        metavar="NAME",
        help="golden to run on, or a folder written by `golden make` (default: tiny, or minilm with --text)",
    )
    add_checkpoint(parser, "a local Hugging Face BERT to run on, instead of a golden")
    add_inputs(parser, "an input, tokenized with the network's tokenizer; may be repeated", "inputs; JSON or safetensors")
    parser.add_argument("--device", default="cpu", help="torch device (default: cpu)")
    parser.add_argument("--dtype", default="float32", help="float64, float32, bfloat16 or float16 (default: float32)")


def _add_golden(parser: argparse.ArgumentParser) -> None:
    parts = parser.add_subparsers(required=True, metavar="verify|make|power")
    verify = parts.add_parser(
        "verify", **_described("verify stored files, weights and batches, and activations"), **_reference("verify")
    )
    verify.add_argument(
        "golden", nargs="*", metavar="GOLDEN", help="a golden, or a folder written by `make` (default: all shipped)"
    )
    verify.set_defaults(command=_command("commands:verify"))
    make = parts.add_parser(
        "make",
        **_described("make a golden of a local checkpoint: its batches, the oracle's activations, the digest of the weights"),
        **_reference("make"),
    )
    add_checkpoint(make, "a local Hugging Face BERT; it is not copied", required=True)
    add_inputs(
        make,
        "an input, tokenized with the checkpoint's tokenizer",
        "inputs; JSON or safetensors (default: a generated batch)",
    )
    make.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FOLDER",
        help="a new folder; its name is the name of the golden (default: DIR-golden in the current folder)",
    )
    make.set_defaults(command=_command("commands:make"))
    power = parts.add_parser("power", **_described("list how well each golden detects each mistake"), **_reference("power"))
    power.add_argument("--golden", action="append", metavar="NAME", help="a golden, or a folder written by `make` (default: all)")
    power.add_argument(
        "--dtype",
        action="append",
        metavar="DTYPE",
        help="float64, float32, bfloat16 or float16; may be repeated (default: float32, bfloat16 and float16)",
    )
    power.add_argument(
        "--sigma",
        choices=("modular", "widest"),
        default="modular",
        help="the arithmetic from which sigma is derived: every library call rounds once (the default), or the widest correct one, "
        "in half formats that in which every operation is rounded",
    )
    power.set_defaults(command=_command("commands:power"))
    for part in (verify, make, power):
        _add_format(part, FORMATS)
