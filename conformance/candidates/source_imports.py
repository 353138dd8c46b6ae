"""Whether the source of a candidate imports a package, as far as that can be read without importing anything."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from conformance.candidates.entry_points import registered_origin

_SUITE = "conformance"  # imports none of the packages that candidates need


def may_import(name: str, package: str) -> bool:
    """Return whether a candidate's module, or one that it imports from its own package or folder, imports `package`.

    The answer is True if the source of `package.module:object` or `FILE.py:object` is not found or cannot be parsed, and False for
    names of other kinds: exported programs, traces and commands.

    Args:
        name: the candidate's name.
        package: name of a top-level package.
    """
    module, colon, _ = (registered_origin(name) or name).partition(":")
    if not colon or module == "cmd":
        return False
    try:
        if module.endswith(".py"):
            return _imports(Path(module).parent, Path(module).stem, package)
        top = module.partition(".")[0]
        root = next((Path(folder) for folder in ("", *sys.path) if _files(Path(folder), top)), Path())
        return _imports(root, module, package)
    except (OSError, SyntaxError, ValueError, IndexError, RecursionError):  # an IndexError: a relative import above the root
        return True


def _imports(root: Path, module: str, package: str) -> bool:
    """Return whether a module below a folder imports a package, by itself or by a module of its own package."""
    own, left = module.rpartition(".")[0], _files(root, module)
    if not left:
        return True
    seen = set(left)
    while left:
        for imported in _imported(left.pop(), root):
            top = imported.partition(".")[0]
            if top == package:
                return True
            if imported.startswith(f"{own}.") if own else top != _SUITE:
                new = [file for file in _files(root, imported) if file not in seen]
                seen.update(new)
                left += new
    return False


def _imported(file: Path, root: Path) -> Iterator[str]:
    """Yield what a file below a folder imports, anywhere in its code, as dotted names.

    `from a import b` yields a.b, which may be a module or an object of the module a.
    """
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = file.parents[node.level - 1].relative_to(root).parts if node.level else ()
            yield from (".".join((*parents, *filter(None, [node.module]), alias.name)) for alias in node.names)


def _files(folder: Path, name: str) -> list[Path]:
    """Return the files below a folder that importing a dotted name runs: the packages, and the module or that of the object."""
    paths = [folder.joinpath(*name.split(".")[: i + 1]) for i in range(name.count(".") + 1)]
    return [file for path in paths for file in (path / "__init__.py", path.with_name(f"{path.name}.py")) if file.is_file()]
