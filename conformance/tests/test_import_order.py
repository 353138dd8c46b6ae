"""Imports have one direction."""

import ast
from collections.abc import Container, Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import conformance

ROOT = Path(conformance.__file__).parent
ORDER = (
    *("errors", "names", "progress", "numerics", "model", "oracle", "faults", "goldens"),
    *("candidates", "judge", "mapping", "diagnosis", "results", "checks", "isolation"),
    *("glossary", "report", "suite", "pytest_plugin", "cli", "__main__"),
)
# Imports for annotations only and imports inside functions do not count as imports at import time.
LATE = {
    ("conformance.candidates.registry", "conformance.mapping.mapped"),
    ("conformance.candidates.registry", "conformance.isolation.remote"),
    ("conformance.checks.laws.inputs", "conformance.isolation.remote"),
    ("conformance.results.result", "conformance.report.finding"),
}


def _place(module: str) -> int:
    return ORDER.index(module.split(".")[1])


def _modules() -> dict[str, ast.Module]:
    paths = {path: path.relative_to(ROOT.parent).with_suffix("").parts for path in ROOT.rglob("*.py")}
    return {
        ".".join(parts).removesuffix(".__init__"): ast.parse(path.read_text("utf-8"))
        for path, parts in paths.items()
        if not {"tests", "benchmarks", "implementations"}.intersection(parts)
    }


def _imported(tree: ast.Module, modules: Container[str]) -> Iterator[str]:
    """Return the modules of this package that a module imports anywhere, including in functions and for annotations."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "conformance":
            whole = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in modules else node.module for name in whole)


def test_a_package_imports_only_packages_before_it_and_no_modules_form_a_cycle() -> None:
    modules = _modules()
    graph = {name: {*_imported(tree, modules)} - {name, "conformance"} for name, tree in modules.items()}
    del graph["conformance"]  # The public names are imported when first requested.
    assert {_place(module) for module in graph} == {*range(len(ORDER))}
    edges = {(module, other) for module, others in graph.items() for other in others}
    assert {(module, other) for module, other in edges if _place(other) > _place(module)} == LATE
    sorter = TopologicalSorter({m: {o for o in others if (m, o) not in LATE} for m, others in graph.items()})
    assert len([*sorter.static_order()]) == len(graph)  # A cycle raises a CycleError that names its modules.
