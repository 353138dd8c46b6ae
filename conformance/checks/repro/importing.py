"""The lines that import a candidate in a script."""

import sys
from keyword import iskeyword
from typing import Any

from conformance.candidates.registry import described_by, load, registered
from conformance.errors import ConformanceError
from conformance.names import printable


def imported(name: str, implementation: str | Any) -> str:
    """The lines that bind it to `candidate`: by its entry point, its module, its file, its command; or one to be filled in."""
    described = described_by(name)
    if described:
        return f"from conformance import {described[0]}\ncandidate = {described[0]}({described[1]!r})"
    module, _, path = origin(name, implementation).partition(":")
    if not path:
        return f"candidate = ...  # {printable(name)}: no module holds it by a name, so put here what makes it"
    first, *rest = path.split(".")
    if not all(part.isidentifier() and not iskeyword(part) for part in (*module.split("."), first, *rest)):
        found = f"importlib.import_module({module!r})"
        for part in (first, *rest):
            found = f"getattr({found}, {part!r})"
        return f"import importlib\ncandidate = {found}"
    if rest:
        return f"from {module} import {first}\ncandidate = {path}"
    return f"from {module} import {first} as candidate"


def origin(name: str, implementation: str | Any) -> str:
    """`module:name` of the candidate: that of its registered name, else the place where it is found, else an empty text.

    `implementation` is what was asked for: the name, or an object that is called so.
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
    """`module:name` of the object, where a module that was imported holds it; else an empty text."""
    for module, holder in list(sys.modules.items()):
        for name, value in list(vars(holder).items()) if holder is not None and hasattr(holder, "__dict__") else ():
            if value is candidate and not name.startswith("_"):
                return f"{module}:{name}"
    return ""
