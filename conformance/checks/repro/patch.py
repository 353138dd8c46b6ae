"""A failure as a patch: an `@example` at the test that found it, or a test of its own where a command did."""

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
    """`@conformance.example(...)` in one line: under a name that is not in use."""
    plain = found.plain()
    varied = "".join(f", {name}={value!r}" for name, value in plain["variation"].items())
    return f"@conformance.example({case.check!r}, {plain['batch']!r}{varied})"


def patch_of(test: Callable[..., Any], case: Case, found: Example, root: Path) -> str:
    """A unified diff, relative to `root`, that puts the example at the test; empty where the test has no file in there."""
    file = Path(inspect.getsourcefile(test) or "")
    if not file.is_file() or not file.resolve().is_relative_to(root.resolve()):
        return ""
    before = file.read_bytes().decode("utf-8").splitlines(keepends=True)  # line ends as they are
    start = inspect.getsourcelines(test)[1] - 1
    indent = before[start][: len(before[start]) - len(before[start].lstrip())]
    after = [*before[:start], f"{indent}{decorator(case, found)}\n", *before[start:]]
    if not _imports_it(before):
        after.insert(_first_import(before), f"{IMPORT}\n")
    name = file.resolve().relative_to(root.resolve()).as_posix()
    return _diff(before, after, f"a/{name}", f"b/{name}")


def _diff(before: list[str], after: list[str], old: str, new: str) -> str:
    """As `git apply` reads it, which is reported of a last line without an end."""
    lines = difflib.unified_diff(before, after, old, new)
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _imports_it(lines: list[str]) -> bool:
    nodes = (n for n in ast.parse("".join(lines)).body if isinstance(n, ast.Import))
    return any(alias.name == "conformance" and not alias.asname for node in nodes for alias in node.names)


def _first_import(lines: list[str]) -> int:
    """The line before the first import that is no `__future__`."""
    for node in ast.parse("".join(lines)).body:
        if isinstance(node, ast.Import) or (isinstance(node, ast.ImportFrom) and node.module != "__future__"):
            return node.lineno - 1
    return 0


def new_test(case: Case, network: str, found: Example) -> str:
    """A unified diff that adds a test with the example, for a candidate that has a name."""
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
