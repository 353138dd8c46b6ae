"""The source of a candidate, and what it imports, as far as that can be read without importing anything."""

import ast
import hashlib
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from conformance.candidates.lookup import COMMAND, described_by, is_command, registered_origin

_SUITE = "conformance"  # imports none of the packages that candidates need
_UNREADABLE = (OSError, SyntaxError, ValueError, IndexError, RecursionError)  # an IndexError: a relative import above the root


def may_import(name: str, package: str) -> bool:
    """Return whether a candidate's module, or one that it imports from its own package or folder, imports `package`.

    The answer is True if the source of `package.module:object` or `FILE.py:object` is not found or cannot be parsed, and False for
    names of other kinds: exported programs, traces and commands.
    """
    module, colon, _ = (registered_origin(name) or name).partition(":")
    if not colon or module == "cmd":
        return False
    try:
        root, module = _located(module)
        sources = _sources(root, module, module.rpartition(".")[0])
        first = next(sources, None)
        return first is None or any(one.partition(".")[0] == package for _, names in (first, *sources) for one in names)
    except _UNREADABLE:
        return True


def source_digest(name: str) -> str:
    """Return a digest of the files that a candidate's name stands for, by which an edited candidate is recognized.

    These are the module of `package.module:object` or `FILE.py:object` with what it imports from its own package or folder, an
    exported program, a recorded trace, and the files that a command names. The digest is empty if none of them is found.
    """
    digest, found = hashlib.sha256(), False
    for file in _files_of(registered_origin(name) or name):
        found = True
        with file.open("rb") as content:
            digest.update(hashlib.file_digest(content, "sha256").digest())
    return digest.hexdigest() if found else ""


def _files_of(name: str) -> list[Path]:
    """Return the files that a candidate's name stands for, in an order that does not depend on where they are."""
    if described_by(name) is not None:
        parts = shlex.split(name.removeprefix(COMMAND)) if is_command(name) else [name]
        return [Path(part) for part in (shutil.which(part) or part for part in parts) if Path(part).is_file()]
    found: list[Path] = []
    try:
        root, module = _located(name.partition(":")[0])
        top = module.partition(".")[0]
        found += _files(root, module)
        for file, _ in _sources(root, module, module.rpartition(".")[0] if top == _SUITE or "." not in module else top):
            found.append(file)
    except _UNREADABLE:  # the files before the one that cannot be parsed, which is reported when it is imported
        pass
    return sorted({*found})


def _located(module: str) -> tuple[Path, str]:
    """Return the folder that a module or file is imported from, and its dotted name there."""
    if module.endswith(".py"):
        return Path(module).parent, Path(module).stem
    top = module.partition(".")[0]
    return next((Path(folder) for folder in ("", *sys.path) if _files(Path(folder), top)), Path()), module


def _sources(root: Path, module: str, own: str) -> Iterator[tuple[Path, list[str]]]:
    """Yield the files of a module below a folder, and of those that it imports from the package `own`, with what each imports.

    Without `own`, modules of the folder are followed.
    """
    left = _files(root, module)
    seen = set(left)
    while left:
        file = left.pop()
        names = list(_imported(file, root))
        yield file, names
        for imported in names:
            if imported.startswith(f"{own}.") if own else imported.partition(".")[0] != _SUITE:
                new = [file for file in _files(root, imported) if file not in seen]
                seen.update(new)
                left += new


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
