"""The docstring of a package is an index of its modules: it names each of them, and nothing that does not exist."""

import re
from importlib import import_module
from pkgutil import iter_modules

import pytest

import conformance


def modules_of(package: str) -> set[str]:
    return {module.name for module in iter_modules(import_module(package).__path__)} - {"__main__"}


@pytest.mark.parametrize("name", ["candidates", "checks", "diagnosis", "judge", "report"])
def test_a_package_names_each_of_its_modules(name: str) -> None:
    package = f"{conformance.__name__}.{name}"
    named = re.findall(r"`([a-z_]+(?:\.\w+)*)`", import_module(package).__doc__ or "")
    modules, others = modules_of(package), modules_of(conformance.__name__)
    assert modules - {one.partition(".")[0] for one in named} == set()
    assert {one for one in named if one.partition(".")[0] not in modules | others} == set()
    for one in named:
        module, _, member = one.partition(".")
        where = import_module(f"{package}.{module}" if module in modules else f"conformance.{module}")
        assert not member or hasattr(where, member) or member in modules_of(where.__name__), one
