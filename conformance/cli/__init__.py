"""The command line: runs a command and turns errors into messages and exit codes.

`cli.arguments` has the options of all commands. `cli.NAME` has the command NAME, or `cli.commands` if it is short.
`cli.streams` escapes what is printed, and `cli.interrupts` ends a command by a signal.
"""

import os
import sys
import traceback
from argparse import Namespace
from collections.abc import Sequence
from importlib.metadata import packages_distributions
from pathlib import Path

import conformance
from conformance.cli.arguments import parsed
from conformance.cli.interrupts import Interrupt, raised_interrupts
from conformance.cli.streams import open_missing_streams, printable_streams, replace_unencodable_characters
from conformance.errors import INTERRUPTED, ConformanceError, UsageError
from conformance.model.files import ALLOW_PICKLE
from conformance.names import capped


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return the exit code: 0 conforms, 1 does not, 2 usage error, 3 the harness or a fixture is broken."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    # The candidate's threads and the judge's take turns: a thread that waits for work is to sleep, not to occupy the other's core.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    open_missing_streams()
    replace_unencodable_characters()
    with printable_streams(), raised_interrupts():
        return _exit_code(argv)


def _exit_code(argv: Sequence[str] | None) -> int:
    """Run the command and return its exit code, or that of the exception that it raises; print the message of the exception."""
    arguments = None
    try:
        arguments = _parsed(argv)
        _require_our_package()
        if getattr(arguments, "allow_pickle", False):
            os.environ[ALLOW_PICKLE] = "1"  # child processes inherit it
        code = int(arguments.command(arguments))
        sys.stdout.flush()
        return code
    except ConformanceError as error:
        print(capped(f"bert-conformance: {error}"), file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt as error:
        print("bert-conformance: interrupted", file=sys.stderr)
        return error.exit_code if isinstance(error, Interrupt) else INTERRUPTED
    except SystemExit as error:
        if arguments is None:  # argparse has printed help or reported a usage error
            raise
        print(f"bert-conformance: the code that was run tried to exit the process ({error.code})", file=sys.stderr)
        return ConformanceError.exit_code
    except (OSError, UnicodeError) as error:
        print(f"bert-conformance: {error}", file=sys.stderr)
        return UsageError.exit_code
    except Exception as error:
        traceback.print_exc()
        print(f"bert-conformance: internal error, please report it: {type(error).__name__}: {error}", file=sys.stderr)
        return ConformanceError.exit_code


def _parsed(argv: Sequence[str] | None) -> Namespace:
    """Parse the arguments, and write at once what argparse prints."""
    try:
        return parsed(argv)
    finally:
        sys.stdout.flush()


def _require_our_package() -> None:
    """Raise `UsageError` if the files of another distribution's package `conformance` have replaced ours; the name is generic."""
    if "parametrize_with_checks" not in getattr(conformance, "__all__", ()):
        others = sorted({*packages_distributions().get("conformance", ())} - {"bert-conformance"})
        raise UsageError(
            f"the package 'conformance' in {Path(__file__).parents[1]} is not that of bert-conformance: "
            f"{' or '.join(others) or 'another distribution'} has a package of that name too, which has replaced it; "
            "install each into an environment of its own"
        )
