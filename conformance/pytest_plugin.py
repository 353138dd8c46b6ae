"""The pytest plug-in: options, and parametrization of the shipped suite. Imports neither torch nor transformers."""

from argparse import ArgumentTypeError
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from conformance.judge import DEPTHS

if TYPE_CHECKING:
    from conformance.checks.recording import Recording

# Options that parametrize the shipped suite alone.
_OF_THE_SUITE = tuple(f"--bert-{name}" for name in ("implementation", "golden", "device", "dtype", "checkpoint", "known-failures"))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the shipped suite, prefixed so that they do not collide with a user's own."""
    group = parser.getgroup("bert-conformance", "BERT conformance (pytest --pyargs conformance.suite)")
    group.addoption(
        "--bert-implementation",
        action="append",
        default=[],
        metavar="NAME",
        help="candidates (default: those that other packages register)",
    )
    group.addoption(
        "--bert-golden",
        action="append",
        default=[],
        metavar="NAME",
        help="goldens (default: all); not of decorated tests, see goldens= of parametrize_with_checks",
    )
    group.addoption("--bert-device", action="append", default=[], metavar="DEVICE", help="torch devices (default: cpu)")
    group.addoption("--bert-dtype", action="append", default=[], metavar="DTYPE", help="formats (default: float32)")
    group.addoption("--bert-checkpoint", metavar="DIR", help="run on this local Hugging Face BERT instead of goldens")
    group.addoption("--bert-known-failures", metavar="FILE", help="a TOML file of checks that are known to fail")
    group.addoption("--bert-examples", type=_positive_integer, metavar="N", help="examples of each search (default: 20)")
    group.addoption(
        "--bert-depth",
        choices=DEPTHS,
        default="full",
        help="screen: fails or not, and where; full: which mistake, too; exhaustive: the same, of every element",
    )
    group.addoption(
        "--bert-out",
        metavar="DIR",
        help="write results.jsonl there, one a worker under xdist, and what failures leave; the first check removes those of the "
        "session before",
    )


def _positive_integer(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise ArgumentTypeError(f"{text!r} is not an integer of at least 1")
    return int(text)


def pytest_configure(config: pytest.Config) -> None:
    """Register the plug-in that counts checks."""
    from conformance.suite.pytest_session import Tally

    config.pluginmanager.register(Tally(), "bert-conformance-tally")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Apply the options that concern every check."""
    from conformance.checks.check import EXAMPLES
    from conformance.suite.pytest_session import begin

    option = session.config.getoption
    out = option("--bert-out")
    if out and not option("collectonly"):
        try:
            Path(out).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise pytest.UsageError(f"--bert-out {out}: {error}") from error
    # A test may change the current folder before the first check.
    opening = partial(_recording, session.config, Path(out).absolute()) if out else None
    begin(option("--bert-examples") or EXAMPLES, option("--bert-depth"), opening)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Close the results file; it gets a footer only if every test was run."""
    from conformance.errors import ConformanceError
    from conformance.suite.pytest_session import end, is_to_check, start_recording

    whole = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) and not (session.shouldstop or session.shouldfail)
    if whole and hasattr(session.config, "workerinput") and any(map(is_to_check, session.items)):
        with suppress(ConformanceError):  # the checks of the other workers report it
            start_recording()  # so that a worker that got no check has a file, too
    end(whole=whole)


def _recording(config: pytest.Config, out: Path) -> "Recording":
    """Open the recording of this process; under xdist each worker has its own file."""
    from conformance.checks.run_header import header_of
    from conformance.errors import ConformanceError, UsageError
    from conformance.goldens.manifest import manifest
    from conformance.suite.pytest_session import plan
    from conformance.suite.session_results import open_recording

    worker = getattr(config, "workerinput", None)
    name, run = "results.jsonl", ""
    if worker:
        number = int(worker["workerid"].removeprefix("gw")) + 1
        name, run = f"results-{number}.jsonl", worker["testrunuid"]
    device = (config.getoption("--bert-device") or ["cpu"])[0]
    try:
        return open_recording(out / name, header_of(device, dict.fromkeys(manifest()), plan(), run))
    except (OSError, ConformanceError) as error:
        raise UsageError(f"--bert-out {out}: {error}") from error


def pytest_collection_finish(session: pytest.Session) -> None:
    """Warn of options of the shipped suite that have no effect, since only a user's own tests with checks were collected."""
    parametrized = {name for item in session.items for name in getattr(getattr(item, "callspec", None), "params", {})}
    given = [option for option in _OF_THE_SUITE if session.config.getoption(option)]
    if given and "check" in parametrized and "bert_check" not in parametrized:
        session.config.issue_config_time_warning(
            pytest.PytestConfigWarning(
                f"{', '.join(given)}: without effect on tests that are decorated with parametrize_with_checks; "
                "give its arguments instead, such as dtypes=['bfloat16'] or known_failures='FILE'"
            ),
            stacklevel=2,
        )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize every test that takes `bert_check` with the checks in its module's `CHECKS`."""
    if "bert_check" not in metafunc.fixturenames:
        return
    from conformance.candidates.lookup import of_other_packages
    from conformance.errors import ConformanceError
    from conformance.suite.parametrize import bound_checks, parameters

    option = metafunc.config.getoption
    checkpoint = option("--bert-checkpoint")
    goldens = [f"checkpoint:{checkpoint}"] if checkpoint else option("--bert-golden")
    known = option("--bert-known-failures")
    checks = getattr(metafunc.module, "CHECKS", ())
    try:
        names = option("--bert-implementation") or of_other_packages()
        bound = bound_checks(names, goldens, option("--bert-device") or ["cpu"], option("--bert-dtype") or ["float32"], checks)
        metafunc.parametrize("bert_check", list(parameters(bound, Path(known) if known else None)))
    except ConformanceError as error:
        raise pytest.UsageError(str(error)) from error
