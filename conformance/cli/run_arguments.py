"""The arguments of the command `run`."""

import argparse
from pathlib import Path

from conformance.checks.check import EXAMPLES
from conformance.cli.argument_types import add_checkpoint, add_inputs, positive_integer, seconds, size
from conformance.judge import DEPTHS


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments in the order in which the help lists them."""
    _add_cases(parser)
    _add_extent(parser)
    _add_limits(parser)
    _add_own(parser)
    _add_requirements(parser)
    _add_results(parser)


def _add_cases(parser: argparse.ArgumentParser) -> None:
    """Add the options that select candidates, goldens, formats and checks."""
    parser.add_argument(
        "-i",
        "--implementation",
        action="append",
        metavar="NAME",
        help="candidate: a registered name, package.module:object, FILE.py:object, 'cmd:PROGRAM ARGS', an exported program or a "
        "recorded trace; may be repeated (default: all that are registered)",
    )
    parser.add_argument(
        "--golden",
        action="append",
        metavar="NAME",
        help="golden to run on (`list` has their names), or a folder written by `golden make`; may be repeated (default: all, "
        "which takes minutes; tiny takes seconds)",
    )
    parser.add_argument(
        "--dtype",
        action="append",
        metavar="DTYPE",
        help="float64, float32, bfloat16 or float16; may be repeated (default: float32)",
    )
    parser.add_argument(
        "--check",
        action="append",
        metavar="PATTERN",
        help="check to run (`explain` lists them), * and ? as in a shell; may be repeated (default: values; '*': all)",
    )


def _add_extent(parser: argparse.ArgumentParser) -> None:
    """Add the options that determine how much is drawn, judged and kept."""
    parser.add_argument(
        "--examples",
        type=positive_integer,
        default=EXAMPLES,
        metavar="N",
        help=f"number of batches that each search draws (default: {EXAMPLES})",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the drawn batches (default: 0)")
    parser.add_argument(
        "--depth",
        choices=DEPTHS,
        default="full",
        help="screen: find failing steps; full: also identify mistakes (default); exhaustive: the same, of every element",
    )
    parser.add_argument("--no-cache", action="store_true", help="neither read nor write the cache (see `cache --help`)")
    parser.add_argument(
        "-j", "--jobs", type=positive_integer, default=1, metavar="N", help="run N checks at a time, each in a process (default: 1)"
    )


def _add_limits(parser: argparse.ArgumentParser) -> None:
    """Add the limits and permissions of candidates."""
    parser.add_argument("--timeout", type=seconds, metavar="SECONDS", help="time limit of a check (default: none)")
    parser.add_argument("--memory", type=size, metavar="SIZE", help="memory limit of a candidate, such as 8GiB (default: none)")
    parser.add_argument(
        "--network", action="store_true", help="allow network access to candidates (default: blocked, if the system supports this)"
    )
    parser.add_argument(
        "--in-process", action="store_true", help="run candidates in this process, for a debugger, without isolation or limits"
    )


def _add_own(parser: argparse.ArgumentParser) -> None:
    """Add the options that name the user's own network and inputs, and the device."""
    add_checkpoint(parser, "a local Hugging Face BERT to run on, instead of goldens")
    add_inputs(
        parser,
        "with --checkpoint: an input, tokenized with its tokenizer; may be repeated",
        "with --checkpoint: inputs; JSON or safetensors",
    )
    parser.add_argument("--device", help="torch device (default: that of recorded traces, else cpu)")


def _add_requirements(parser: argparse.ArgumentParser) -> None:
    """Add what candidates must expose, and where they may fail."""
    parser.add_argument(
        "--require-activations",
        action="append",
        metavar="PATTERN",
        help="activations that the candidate must expose, or it fails (* and ? as in a shell); may be repeated",
    )
    parser.add_argument("--known-failures", type=Path, metavar="FILE", help="TOML file of known failures; see below")


def _add_results(parser: argparse.ArgumentParser) -> None:
    """Add the options of the results."""
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("conformance-results"),
        metavar="DIR",
        help="folder of results.jsonl and the report, which replace earlier ones (default: conformance-results)",
    )
    parser.add_argument(
        "--resume", action="store_true", help="run only the checks missing in the results.jsonl of an interrupted run in DIR"
    )
    parser.add_argument("--schema", action="store_true", help="print the JSON Schema of the results file and exit")
