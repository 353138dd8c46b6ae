"""Imports have one direction: there is no cycle between modules, and a package imports only packages that precede it in the
order."""

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import conformance

ROOT = Path(conformance.__file__).parent
ORDER = (
    "errors",
    "names",
    "progress",
    "numerics",
    "model",
    "oracle",
    "faults",
    "goldens",
    "candidates",
    "judge",
    "mapping",
    "diagnosis",
    "results",
    "checks",
    "isolation",
    "glossary",
    "report",
    "suite",
    "pytest_plugin",
    "cli",
    "__main__",
)
# Imports for annotations only and imports inside functions do not count as imports at import time.
LATE = {
    ("conformance.candidates.registry", "conformance.mapping.mapped"),
}


def modules() -> dict[str, ast.Module]:
    found = {}
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        if not {"tests", "benchmarks", "implementations"}.intersection(parts):
            found[".".join(parts).removesuffix(".__init__")] = ast.parse(path.read_text("utf-8"))
    return found


def imported(tree: ast.Module, known: dict[str, ast.Module]) -> Iterator[str]:
    """Return the modules of this package that a module imports anywhere, including in functions and for annotations."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "conformance":
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in known else node.module


def package(module: str) -> str:
    return module.split(".")[1]


@pytest.fixture(scope="module")
def graph() -> dict[str, set[str]]:
    known = modules()
    found = {name: {m for m in imported(tree, known) if m != name and m != "conformance"} for name, tree in known.items()}
    del found["conformance"]  # The public names are imported when first requested.
    return found


def test_every_package_and_module_has_a_place_in_the_order(graph: dict[str, set[str]]) -> None:
    assert {package(module) for module in graph} == set(ORDER)


def test_a_package_imports_only_packages_before_it(graph: dict[str, set[str]]) -> None:
    backwards = {
        (module, other)
        for module, others in graph.items()
        for other in others
        if ORDER.index(package(other)) > ORDER.index(package(module))
    }
    assert backwards == LATE


def test_no_cycle_between_modules(graph: dict[str, set[str]]) -> None:
    try:
        order = list(
            TopologicalSorter({m: {o for o in others if (m, o) not in LATE} for m, others in graph.items()}).static_order()
        )
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))
    assert len(order) == len(graph)
