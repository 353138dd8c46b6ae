"""The arguments of all commands: the table of their options, and the parser made from it.

An option is written as its help has it, `-o --output FILE…`: its names, its metavariable, and `…` if it may be repeated. A
positional argument has no dash; `…` stands for one or more of it, and `*` for any number. `!` marks what must
be given, and `=` a default. The metavariable determines the type. The module with a command is imported when the command is run.
"""

import argparse
import math
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from textwrap import fill
from typing import Any, NoReturn

from conformance.checks.check import EXAMPLES
from conformance.errors import UsageError
from conformance.isolation.fork_server import start_server
from conformance.judge import DEPTHS
from conformance.report.output_formats import DOCUMENT_FORMATS, REPORT_FORMATS

Options = Mapping[str, str]
# The reference of each command, which `COMMAND --help` prints after the options.
_TEXT = files("conformance.cli").joinpath("help.md").read_text("utf-8")
_SECTIONS = (section.partition("\n") for section in re.split(r"^## ", _TEXT, flags=re.MULTILINE)[1:])
_REFERENCE: Mapping[str, str] = {name: f"\n{text.strip()}\n" for name, _, text in _SECTIONS}
_REQUIRED = "the following arguments are required"  # with which argparse's message begins
_UNDECODED = re.compile("[\ud800-\udfff]")  # for the bytes that Python could not decode
_SIZE = re.compile(r"(\d{1,15})(KiB|MiB|GiB)?")

_FORMAT_NAMES = "float64, float32, bfloat16 or float16"
_ALLOW_PICKLE = {"--allow-pickle": "if DIR has no safetensors file, read its pytorch_model.bin (tensors only)"}
_VERBOSE = {"-v --verbose": "print what the report leaves out: the numbers that a pass confirms, every check, scripts of failures"}


def _checkpoint(says: str, mark: str = "") -> Options:
    return {f"--checkpoint DIR{mark}": says, **_ALLOW_PICKLE}


def _inputs(text: str, batch: str = "inputs; JSON or safetensors") -> Options:
    return {"--text TEXT…": text, "--batch FILE": batch}


_SUBJECT = {
    "--golden NAME": "golden to run on, or a folder written by `golden make` (default: tiny, or minilm with --text)",
    **_checkpoint("a local Hugging Face BERT to run on, instead of a golden"),
    **_inputs("an input, tokenized with the network's tokenizer; may be repeated"),
    "--device DEVICE=cpu": "torch device (default: cpu)",
    "--dtype DTYPE=float32": f"{_FORMAT_NAMES} (default: float32)",
}
_RUN = {
    "CANDIDATE*": "a registered name, package.module:object, FILE.py:object, 'cmd:PROGRAM ARGS', an exported program or a recorded "
    "trace (default: all that other packages register)",
    "-i --implementation NAME…": "a candidate too; may be repeated",
    "--golden NAME…": "golden to run on (`list` has their names), or a folder written by `golden make`; may be repeated; '*': all "
    "(default: tiny and, if its package is installed, minilm; all if no candidate is named)",
    "--dtype DTYPE…": f"{_FORMAT_NAMES}; may be repeated (default: float32)",
    "--check PATTERN…": "check to run (`explain` lists them), * and ? as in a shell; may be repeated (default: values; '*': all)",
    f"--examples N={EXAMPLES}": f"number of batches that each search draws (default: {EXAMPLES})",
    "--seed INTEGER=0": "seed of the drawn batches (default: 0)",
    f"--depth {'|'.join(DEPTHS)}=full": "screen: find failing steps; full: also identify mistakes (default); exhaustive: the same, "
    "of every element",
    "--no-cache": "neither read nor write the cache (see `cache --help`)",
    "-j --jobs N=1": "run N checks at a time, each in a process (default: 1)",
    "--timeout SECONDS": "time limit of a check (default: none)",
    "--memory SIZE": "memory limit of a candidate, such as 8GiB (default: none)",
    "--network": "allow network access to candidates (default: blocked, if the system supports this)",
    "--in-process": "run candidates in this process, for a debugger, without isolation or limits",
    **_checkpoint("a local Hugging Face BERT to run on, instead of goldens"),
    **_inputs(
        "with --checkpoint: an input, tokenized with its tokenizer; may be repeated",
        "with --checkpoint: inputs; JSON or safetensors",
    ),
    "--device DEVICE": "torch device (default: that of recorded traces, else cpu)",
    "--require-activations PATTERN…": "activations that the candidate must expose, or it fails (* and ? as in a shell); may be "
    "repeated",
    "--known-failures FILE": "TOML file of known failures; see below",
    "-o --output DIR=conformance-results": "folder of results.jsonl and the report, which replace earlier ones (default: "
    "conformance-results)",
    "--resume": "run only the checks missing in the results.jsonl of an interrupted run in DIR",
    "--schema": "print the JSON Schema of the results file and exit",
    **_VERBOSE,
}
_SIDE = "an implementation, golden:NAME (the oracle), a saved trace (.safetensors), or "
_DIAGNOSE = {
    "FILE": "a file with the system's outputs, or - for standard input: text printed by a library, a server's JSON, "
    "or, in a file alone, npy, npz or safetensors; see the formats below",
    **_checkpoint("the folder of the Hugging Face BERT that the system should run", "!"),
    **_inputs(
        "an input, if the outputs file has none; tokenized with the checkpoint's tokenizer; once for each row of the outputs",
        "inputs, if the outputs file has none; JSON or safetensors",
    ),
    "--name NAME": "what a table without a name is, such as embedding or logits (default: determined by its axes)",
    "--pooling NAME": "pooling of an embedding: cls, mean, max, mean-normalised, ... (default: that of the checkpoint, else any, "
    "so that a pooling that is not meant conforms, too)",
    "--dimensions N": "number of features that the system shortens embeddings to, before it normalises them (default: the "
    "directory's truncate_dim)",
    "--dtype DTYPE=float32": f"format in which the system should compute: {_FORMAT_NAMES} (default: float32)",
}
_EMBEDDING = "an implementation, as for `run`, or a file of embeddings, as for `diagnose`"
_SIMILARITY = {
    "A": _EMBEDDING,
    "B": _EMBEDDING,
    "--texts FILE!": "the texts, one per line, at least three",
    **_checkpoint("the network with its pooling: a local sentence-transformers directory", "!"),
    "--device DEVICE=cpu": "torch device (default: cpu)",
    "--dtype DTYPE…": f"{_FORMAT_NAMES}; if given twice, the first is for A and the second for B (default: float32)",
}
_MODULE = "a subclass of torch.nn.Module, a function that builds a module, or a module; see below"
_POWER = {
    "--golden NAME…": "a golden, or a folder written by `make` (default: all)",
    "--dtype DTYPE…": f"{_FORMAT_NAMES}; may be repeated (default: float32, bfloat16 and float16)",
    "--sigma modular|widest=modular": "the arithmetic from which sigma is derived: every library call rounds once (the default), "
    "or the widest correct one, in half formats that in which every operation is rounded",
}

# Of each command its description, the `module:function` of this package that runs it, and its options.
COMMANDS: Mapping[str, tuple[str, str, Options]] = {
    "list": ("list registered implementations, and goldens", "commands:listing", {}),
    "explain": (
        "explain a name in a report: meaning, equation, usual cause, repair; without a name: list all names",
        "commands:explain",
        {
            "NAME*": "a term, a mistake, a check or its test id, an activation or the end of its name, an outcome, a golden, cmd "
            "(candidates in any language), or trace (recorded activations); words need no quotes"
        },
    ),
    "run": ("run and judge candidates", "commands:run", _RUN),
    "diff": (
        "compare two implementations, traces, goldens or results files",
        "diff:run",
        {
            "A": f"{_SIDE}a results file (.jsonl), the earlier one",
            "B": f"{_SIDE}the later results file",
            **_SUBJECT,
        },
    ),
    "report": (
        "make one report from one or more results files",
        "commands:report",
        {"RESULTS…": "a results file, results.jsonl", **_VERBOSE},
    ),
    "trace": (
        "show how an input flows through a network: tokens, and the shape, equation and statistics of each activation",
        "trace:run",
        {
            "NAME": "an implementation, golden:NAME (the oracle), or a saved trace",
            **_SUBJECT,
        },
    ),
    "diagnose": (
        "find the mistakes that explain the final outputs of a closed system, given its checkpoint and inputs",
        "diagnose:run",
        _DIAGNOSE,
    ),
    "similarity": (
        "find pairs of texts whose rank by cosine similarity differs between two systems, and whether rounding explains it",
        "similarity:run",
        _SIMILARITY,
    ),
    "replay": (
        "repeat the failures of a results file",
        "commands:replay",
        {"FILE": "a results file", **_VERBOSE},
    ),
    "cache": ("show or clear the data kept between runs", "commands:cache", {"--clear": "remove all entries"}),
    "map": (
        "propose the registration of a module with unknown names, and write its adaptor",
        "map:run",
        {
            "MODULE:FACTORY": _MODULE,
            **_checkpoint("examine the module with the sizes of this network (default: sizes that are all different)"),
            "-o --output FILE": "write the adaptor to this Python file",
            "-v --verbose": "print the whole mapping, also what values confirm",
        },
    ),
    "new": (
        "create a package around a registration: entry point, tests, CI",
        "new:run",
        {
            "DIR": "a new folder; its name is the name of the package",
            "--map MODULE:FACTORY": "the module to register, mapped as by `map`",
        },
    ),
    "golden verify": (
        "verify stored files, weights and batches, and activations",
        "commands:verify",
        {"GOLDEN*": "a golden, or a folder written by `make` (default: all shipped)"},
    ),
    "golden make": (
        "make a golden of a local checkpoint: its batches, the oracle's activations, the digest of the weights",
        "commands:make",
        {
            **_checkpoint("a local Hugging Face BERT; it is not copied", "!"),
            **_inputs(
                "an input, tokenized with the checkpoint's tokenizer", "inputs; JSON or safetensors (default: a generated batch)"
            ),
            "-o --output FOLDER": "a new folder; its name is the name of the golden (default: DIR-golden in the current folder)",
        },
    ),
    "golden power": ("list how well each golden detects each mistake", "commands:power", _POWER),
}
_OF_RUNS = ("run", "report", "replay")


def _positive_integer(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer of at least 1")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number of seconds")
    return value


def utf8(text: str) -> str:
    """Return a text; what Python could not decode, such as UTF-8 under the locale C, is decoded as UTF-8."""
    if not _UNDECODED.search(text):
        return text
    try:
        return os.fsencode(text).decode("utf-8")
    except UnicodeError as error:
        raise argparse.ArgumentTypeError(f"{text!a:.80} is not UTF-8") from error


def _size(text: str) -> int:
    match = _SIZE.fullmatch(text)
    if not match or not int(match[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; write 8GiB, 512MiB or a number of bytes")
    exponent: int = ["", "KiB", "MiB", "GiB"].index(match[2] or "")
    return int(match[1]) << (10 * exponent)


_TYPES: Mapping[str, Callable[[str], Any]] = {
    **dict.fromkeys(("DIR", "FILE", "FOLDER", "RESULTS"), Path),
    "N": _positive_integer,
    "INTEGER": int,
    "SECONDS": _seconds,
    "SIZE": _size,
    "TEXT": utf8,
}


class _Parser(argparse.ArgumentParser):
    """A parser whose errors name the command that explains its arguments."""

    def error(self, message: str) -> NoReturn:
        """Print the usage, the error with what each missing option is, and exit with the code of usage errors."""
        self.print_usage(sys.stderr)
        missing = [a for a in self._actions if a.required and a.option_strings and message.startswith(_REQUIRED)]
        message += "".join(f"\n  {a.option_strings[0]} {a.metavar}: {a.help}" for a in missing if a.option_strings[0] in message)
        self.exit(UsageError.exit_code, f"{self.prog}: error: {message}\nfor explanations and examples: {self.prog} --help\n")


def parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the arguments. Candidates may stand before, between and behind the options of `run`, beyond what argparse supports."""
    arguments, unknown = argument_parser().parse_known_args(argv)
    if arguments.command_name == "run":
        further = [name for name in unknown if not name.startswith("-")]
        arguments.implementation = [*arguments.candidate, *further, *arguments.implementation]
        unknown = [option for option in unknown if option.startswith("-")]
    if unknown:
        arguments.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    return arguments


def argument_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = _Parser(
        prog="bert-conformance",
        description="Check whether a BERT implementation is correct and, if not, where it is wrong and which mistake it makes.",
        **_reference("bert-conformance"),
    )
    parts = parser.add_subparsers(required=True, metavar="COMMAND")
    goldens = None
    for name, (says, entry_point, options) in COMMANDS.items():
        group, _, part = name.rpartition(" ")
        if group and goldens is None:
            golden = parts.add_parser(group, help="verify or make goldens, or show which mistakes each can detect")
            goldens = golden.add_subparsers(required=True, metavar="verify|make|power")
        description = fill(f"{says[0].upper()}{says[1:]}.")
        made = (goldens if group and goldens else parts).add_parser(part, help=says, description=description, **_reference(part))
        made.set_defaults(command_name=name, command=_command(entry_point, workers=name in ("diff", "similarity")), parser=made)
        formats = tuple(REPORT_FORMATS) if name in _OF_RUNS else DOCUMENT_FORMATS
        made.add_argument(
            "--format",
            choices=("pretty", *formats),
            default="pretty",
            help="format of what is printed (default: pretty, for people)",
        )
        if not any(option.startswith("-o ") for option in options):
            written = [*(REPORT_FORMATS[each].suffix for each in formats), *([".safetensors"] if name == "trace" else [])]
            made.set_defaults(suffixes=written)
            about = f"write to FILE instead of printing, in the format of its suffix: {', '.join(written)}; may be repeated"
            _add(made, "-o --output FILE…", about)
        for option, about in options.items():
            _add(made, option, about)
    return parser


def _reference(command: str) -> dict[str, Any]:
    """Return the parser arguments that show a command's reference below its options, without reformatting."""
    return {"epilog": _REFERENCE.get(command, ""), "formatter_class": argparse.RawDescriptionHelpFormatter}


def _command(entry_point: str, *, workers: bool) -> Callable[[argparse.Namespace], int]:
    """Return a function that imports and runs `module:name` of this package; with `workers`, the fork server is started first."""

    def call(arguments: argparse.Namespace) -> int:
        if "suffixes" in arguments:
            from conformance.cli.output import require_writable

            require_writable(arguments)
        if workers:
            start_server()
        module, _, name = entry_point.partition(":")
        return int(getattr(import_module(f"conformance.cli.{module}"), name)(arguments))

    return call


def _add(parser: argparse.ArgumentParser, option: str, about: str) -> None:
    """Add an option of the table to a parser."""
    written, _, default = option.partition("=")
    *names, last = written.split()
    if last.startswith("-"):
        if last == "--verbose":
            parser.add_argument(*names, last, dest="format", action="store_const", const="long", help=about)
        else:
            parser.add_argument(*names, last, action="store_true", help=about)
        return
    metavar = last.rstrip("…*!")
    kind = _TYPES.get(metavar, str)
    settings: dict[str, Any] = {"metavar": metavar, "help": about, "type": kind}
    if not names:
        if count := {"…": "+", "*": "*"}.get(last[-1]):
            settings["nargs"] = count
        parser.add_argument(metavar.partition(":")[0].lower(), **settings)
        return
    if "|" in metavar:
        settings |= {"choices": metavar.split("|"), "metavar": None}
    if last.endswith("…"):
        settings |= {"action": "append", "default": []}
    elif default:
        settings["default"] = kind(default)
    parser.add_argument(*names, **settings, required=last.endswith("!"))
