"""The pytest plug-in: options, and the shipped suite's parametrisation. Imports neither torch nor transformers."""

from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of the shipped suite, prefixed so as not to collide with anyone's own."""
    group = parser.getgroup("bert-conformance", "BERT conformance (pytest --pyargs conformance.suite)")
    group.addoption("--bert-implementation", action="append", default=[], metavar="NAME", help="candidates (default: all)")
    group.addoption("--bert-golden", action="append", default=[], metavar="NAME", help="goldens (default: all)")
    group.addoption("--bert-device", action="append", default=[], metavar="DEVICE", help="torch devices (default: cpu)")
    group.addoption("--bert-dtype", action="append", default=[], metavar="DTYPE", help="formats (default: float32)")
    group.addoption("--bert-checkpoint", metavar="DIR", help="run on this local Hugging Face BERT instead of goldens")
    group.addoption("--bert-known-failures", metavar="FILE", help="a TOML file of checks that are known to fail")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give every test that asks for `bert_check` the checks of its module's `CHECKS`."""
    if "bert_check" not in metafunc.fixturenames:
        return
    from conformance.candidates.registry import registered
    from conformance.checks.parametrize import bound_checks, parameters
    from conformance.errors import ConformanceError

    option = metafunc.config.getoption
    names = option("--bert-implementation") or [r.name for r in registered()]
    checkpoint = option("--bert-checkpoint")
    goldens = [f"checkpoint:{checkpoint}"] if checkpoint else option("--bert-golden")
    known = option("--bert-known-failures")
    if not names:
        raise pytest.UsageError("no implementation is registered, so there is nothing to check")
    checks = getattr(metafunc.module, "CHECKS", ())
    try:
        bound = bound_checks(names, goldens, option("--bert-device") or ["cpu"], option("--bert-dtype") or ["float32"], checks)
        metafunc.parametrize("bert_check", list(parameters(bound, Path(known) if known else None)))
    except ConformanceError as error:
        raise pytest.UsageError(str(error)) from error
