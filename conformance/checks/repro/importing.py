"""The lines of a script that import a candidate."""

import sys
from keyword import iskeyword
from pathlib import Path
from typing import Any

from conformance.candidates.registry import described_by, load, registered
from conformance.errors import ConformanceError
from conformance.names import printable


def imported(name: str, implementation: str | Any) -> str:
    """Return lines that bind the implementation to `candidate`, or a line to be completed if it cannot be imported by a name."""
    described = described_by(name)
    if described:
        return f"from conformance import {described[0]}\ncandidate = {described[0]}({described[1]!r})"
    module, _, path = origin(name, implementation).partition(":")
    if not path:
        return f"candidate = ...  # {printable(name)}: no module holds it by a name, so put here what makes it"
    first, *rest = path.split(".")
    if module.endswith(".py"):
        found = f"runpy.run_path({str(Path(module).resolve())!r})[{first!r}]"
        return f"import runpy\ncandidate = {'.'.join((found, *rest))}"
    if not all(part.isidentifier() and not iskeyword(part) for part in (*module.split("."), first, *rest)):
        found = f"importlib.import_module({module!r})"
        for part in (first, *rest):
            found = f"getattr({found}, {part!r})"
        return f"import importlib\ncandidate = {found}"
    if rest:
        return f"from {module} import {first}\ncandidate = {path}"
    return f"from {module} import {first} as candidate"


def origin(name: str, implementation: str | Any) -> str:
    """Return `module:name` of a candidate: its registered origin, else the module that holds it, else an empty text.

    Args:
        name: the name of the candidate.
        implementation: the candidate as requested: the name, or an object with that name.
    """
    known = next((r.origin for r in registered() if r.name == name), name if ":" in name else "")
    if isinstance(implementation, str):
        return known
    try:
        if known and load(name) is implementation:
            return known
    except ConformanceError:
        pass
    return _origin(implementation)


def _origin(candidate: Any) -> str:
    """Return `module:name` of an object that an imported module holds under a public name; otherwise an empty text."""
    for module, holder in list(sys.modules.items()):
        for name, value in list(vars(holder).items()) if holder is not None and hasattr(holder, "__dict__") else ():
            if value is candidate and not name.startswith("_"):
                return f"{module}:{name}"
    return ""
