"""The command line: runs a command and turns errors into messages and exit codes.

`cli.arguments` has the argument parsers, with the arguments of `run` from `cli.run_arguments`. `cli.NAME` has the command NAME, or
`cli.commands` if it is short. `cli.interrupts` ends a run whose interrupt was lost.
"""

import io
import os
import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import packages_distributions
from pathlib import Path

import conformance
from conformance.cli.arguments import parsed
from conformance.errors import INTERRUPTED, ConformanceError, UsageError
from conformance.model.files import ALLOW_PICKLE
from conformance.names import capped, printable_lines


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return the exit code: 0 conforms, 1 does not, 2 usage error, 3 the harness or a fixture is broken."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    # The candidate's threads and the judge's take turns: a thread that waits for work is to sleep, not to occupy the other's core.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    _replace_unencodable_characters()
    arguments = parsed(argv)
    try:
        _require_our_package()
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
        print(f"bert-conformance: the code that was run tried to exit the process ({error.code})", file=sys.stderr)
        return ConformanceError.exit_code
    except (OSError, UnicodeError) as error:
        if isinstance(error, BrokenPipeError):  # the reader has closed the pipe
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        print(f"bert-conformance: {error}", file=sys.stderr)
        return UsageError.exit_code
    except Exception as error:
        traceback.print_exc()
        print(f"bert-conformance: internal error, please report it: {type(error).__name__}: {error}", file=sys.stderr)
        return ConformanceError.exit_code


def _replace_unencodable_characters() -> None:
    """Write characters that the encoding of standard output lacks, such as σ in ASCII, as escapes, as standard error does."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors in ("strict", "surrogateescape"):
        sys.stdout.reconfigure(errors="backslashreplace")


def _require_our_package() -> None:
    """Raise `UsageError` if the files of another distribution's package `conformance` have replaced ours; the name is generic."""
    if "parametrize_with_checks" not in getattr(conformance, "__all__", ()):
        others = sorted({*packages_distributions().get("conformance", ())} - {"bert-conformance"})
        raise UsageError(
            f"the package 'conformance' in {Path(__file__).parents[1]} is not that of bert-conformance: "
            f"{' or '.join(others) or 'another distribution'} has a package of that name too, which has replaced it; "
            "install each into an environment of its own"
        )
