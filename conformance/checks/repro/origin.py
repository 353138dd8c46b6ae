"""The name by which a script loads a candidate: of a registered implementation, a file, a command, or an object of a module."""

import sys
from pathlib import Path
from typing import Any

from conformance.candidates.entry_points import registered_origin
from conformance.candidates.lookup import described_by
from conformance.candidates.registry import load_implementation
from conformance.errors import ConformanceError


def loadable(name: str, implementation: str | Any) -> str:
    """Return what `load_implementation` loads the candidate from in any folder; an empty text if no module holds it by a name.

    Args:
        name: the name of the candidate.
        implementation: the candidate as requested: the name, or an object with that name.
    """
    described = described_by(name)
    if described:
        return described[1]
    module, colon, path = origin(name, implementation).partition(":")
    return f"{Path(module).resolve()}:{path}" if module.endswith(".py") else f"{module}{colon}{path}"


def from_any_folder(name: str) -> str:
    """Return the name of a candidate with the absolute path of its file, if it begins with one; other names are unchanged."""
    file, colon, path = name.partition(":")
    return f"{Path(file).resolve()}{colon}{path}" if file and Path(file).is_file() else name


def origin(name: str, implementation: str | Any) -> str:
    """Return `module:name` of a candidate: its registered origin, else the module that holds it, else an empty text.

    Args:
        name: the name of the candidate.
        implementation: the candidate as requested: the name, or an object with that name.
    """
    known = registered_origin(name) or (name if ":" in name else "")
    if isinstance(implementation, str):
        return known
    try:
        if known and load_implementation(name) is implementation:
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
