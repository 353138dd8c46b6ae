"""A failure as a patch: an `@example` on the test that found it or, if a command found it, a new test."""

import ast
import difflib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from conformance.names import plain_name
from conformance.results.case import Case
from conformance.results.example import Example

IMPORT = "import conformance"


def decorator(case: Case, found: Example) -> str:
    """Return the line `@conformance.example(...)`; the qualified name cannot clash with other names in the file."""
    plain = found.plain()
    varied = "".join(f", {name}={value!r}" for name, value in plain["variation"].items())
    return f"@conformance.example({case.check!r}, {plain['batch']!r}{varied})"


def patch_of(test: Callable[..., Any], case: Case, found: Example, root: Path) -> str:
    """Return a unified diff, relative to `root`, that adds the example to the test; empty if the test has no file in `root`."""
    file = Path(inspect.getsourcefile(test) or "")
    if not file.is_file() or not file.resolve().is_relative_to(root.resolve()):
        return ""
    before = file.read_bytes().decode("utf-8").splitlines(keepends=True)  # keep the line endings
    start = inspect.getsourcelines(test)[1] - 1
    indent = before[start][: len(before[start]) - len(before[start].lstrip())]
    after = [*before[:start], f"{indent}{decorator(case, found)}\n", *before[start:]]
    if not _imports_it(before):
        after.insert(_first_import(before), f"{IMPORT}\n")
    name = file.resolve().relative_to(root.resolve()).as_posix()
    return _diff(before, after, f"a/{name}", f"b/{name}")


def _diff(before: list[str], after: list[str], old: str, new: str) -> str:
    """Return the unified diff in the form of `git apply`, which requires a note after a last line without a line ending."""
    lines = difflib.unified_diff(before, after, old, new)
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _imports_it(lines: list[str]) -> bool:
    nodes = (n for n in ast.parse("".join(lines)).body if isinstance(n, ast.Import))
    return any(alias.name == "conformance" and not alias.asname for node in nodes for alias in node.names)


def _first_import(lines: list[str]) -> int:
    """Return the index of the line of the first import that is not from `__future__`; 0 if there is none."""
    for node in ast.parse("".join(lines)).body:
        if isinstance(node, ast.Import) or (isinstance(node, ast.ImportFrom) and node.module != "__future__"):
            return node.lineno - 1
    return 0


def new_test(case: Case, network: str, found: Example) -> str:
    """Return a unified diff that adds a test with the example, for a candidate that can be loaded by its name."""
    slug = plain_name(f"{case.implementation}_{case.check}", "_")
    options = f"goldens=[{network!r}], devices=[{case.device!r}], dtypes=[{case.dtype!r}], checks=[{case.check!r}]"
    lines = [
        f"{IMPORT}\n",
        "\n",
        "\n",
        f"@conformance.parametrize_with_checks([{case.implementation!r}], {options})\n",
        f"{decorator(case, found)}\n",
        f"def test_{slug}(check):\n",
        "    check()\n",
    ]
    return _diff([], lines, "/dev/null", f"b/test_{slug}.py")
