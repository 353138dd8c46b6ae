"""What the name of a candidate stands for: an entry point, an object of a module or file, an exported program, a trace, a command.

A process that runs no candidate calls `require_known`, which imports nothing; `resolved` imports the module. Several files may have
the same name, or import modules of the same name beside them.
"""

import ast
import importlib
import os
import pkgutil
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from hashlib import sha256
from importlib import metadata
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from conformance.errors import CandidateNameError, PluginError, UsageError
from conformance.goldens.manifest import manifest
from conformance.names import nearest, nearest_names, suggestion

GROUP = "bert_conformance.implementations"
SWITCH = "BERT_CONFORMANCE_NO_PLUGINS"
# Suffixes of exported programs, each with the module of `candidates.archives` (which says how to add one) that reads it.
READERS: Mapping[str, str] = {
    ".pt": "torchscript",
    ".pth": "torchscript",
    ".ts": "torchscript",
    ".pt2": "exported",
    ".onnx": "onnx",
}
TRACE = ".safetensors"  # suffix of a recorded trace
PYTHON = ".py"
COMMAND = "cmd:"  # prefix of a command line
KINDS = (
    f"a candidate is a registered name (`bert-conformance list`), package.module:object, FILE.py:object, an exported program "
    f"({', '.join(READERS)}), a recorded trace ({TRACE}) or 'cmd:PROGRAM ARGS'"
)
_FOLDERS: set[Path] = set()  # folders of the files that were imported


@dataclass(frozen=True)
class Registered:
    """A registered implementation that has not been imported."""

    name: str
    distribution: str
    version: str
    origin: str


def entry_points() -> Mapping[str, metadata.EntryPoint]:
    """Return the entry points of implementations by name; none if the environment variable `SWITCH` is 1."""
    return {entry.name: entry for entry in _all()}


def require_one(name: str) -> None:
    """Raise `PluginError` if several distributions register an implementation of that name."""
    found = [entry for entry in _all() if entry.name == name]
    if len(found) > 1:
        by = " and ".join(f"{' '.join(name_and_version(entry.dist))} ({entry.value})" for entry in found)
        raise PluginError(
            f"the name {name} is registered by {len(found)} installed distributions, {by}; uninstall all but one, or give the "
            f"object instead of the name: {found[0].value}"
        )


def _all() -> Sequence[metadata.EntryPoint]:
    """Return all entry points of implementations, sorted by name; none if the environment variable `SWITCH` is 1."""
    if os.environ.get(SWITCH) == "1":
        return ()
    return _found_on(tuple((folder, _modified(folder)) for folder in sys.path))


# A scan reads a file of each installed distribution, and a run asks for the entry points at each candidate.
@lru_cache(maxsize=1)
def _found_on(path: tuple[tuple[str, int], ...]) -> Sequence[metadata.EntryPoint]:
    """Return the entry points found on `sys.path`, which is given with the times of modification of its folders."""
    return sorted(metadata.entry_points(group=GROUP), key=lambda e: (e.name, e.value))


def _modified(folder: str) -> int:
    try:
        return os.stat(folder or ".").st_mtime_ns
    except (OSError, TypeError, ValueError):  # a folder that does not exist, or an entry that is no path
        return 0


def of_other_packages() -> list[str]:
    """Return the names of the implementations that other distributions register: what is run if no candidate is named.

    Raises:
        CandidateNameError: there is none.
    """
    names = list(dict.fromkeys(r.name for r in registered() if r.distribution != "bert-conformance"))
    if not names:
        raise CandidateNameError(f"name a candidate, as in `bert-conformance run mybert.py:MyBert --golden tiny`; {KINDS}")
    return names


def registered() -> list[Registered]:
    """Return every registered implementation, sorted by name; a name that several distributions register occurs several times."""
    about = cache(name_and_version)  # importlib parses a distribution's whole metadata at each look
    return [Registered(e.name, *about(e.dist), e.value) for e in _all()]


def registered_origin(name: str) -> str | None:
    """Return the `module:object` of a registered implementation; None if there is none of that name."""
    entry = entry_points().get(name)
    return None if entry is None else entry.value


def name_and_version(distribution: metadata.Distribution | None) -> tuple[str, str]:
    """Return the name and the version of a distribution."""
    if distribution is None:
        return "unknown", "?"
    found = distribution.metadata
    return found["Name"], found["Version"]


def require_known(name: str) -> None:
    """Check, without importing it, that a candidate of that name can exist.

    A submodule and the objects of a module may come into being when it is imported; only `resolved` can tell whether they exist.

    Raises:
        CandidateNameError: the name is not registered, and there is no such file or module.
        UsageError: the program of a command does not exist.
    """
    if name in entry_points():
        return
    if is_command(name):
        arguments_of(name)
    elif _is_file(name):
        _require_readable(Path(name))
    elif ":" in name:
        _require_module(name)
    else:
        raise CandidateNameError(_unknown(name))


def is_object(name: str) -> bool:
    """Return whether a name has the form `package.module:object` or `FILE.py:object`."""
    return ":" in name and name not in entry_points() and described_by(name) is None


def described_by(name: str) -> str | None:
    """Return what a command line or the file of an exported program or a trace is loaded from; None for a name of another kind."""
    if is_command(name):
        return name
    return str(Path(name).resolve()) if _is_file(name) else None


def is_command(name: str) -> bool:
    """Return whether a name is the command line of a program in any language."""
    return name.startswith(COMMAND)


def arguments_of(name: str) -> list[str]:
    """Return the arguments of a command line after `cmd:`, split as by a POSIX shell.

    Raises:
        UsageError: the command line cannot be split, or does not start with an executable program.

    Example:
        >>> arguments_of("cmd:no-such-program --fast")
        Traceback (most recent call last):
        ...
        conformance.errors.UsageError: cmd:no-such-program --fast: there is no program 'no-such-program' that can be run, ...
    """
    try:
        arguments = shlex.split(name.removeprefix(COMMAND))
    except ValueError as error:
        raise UsageError(f"{name}: the command line cannot be split: {error}") from error
    if not arguments:
        raise UsageError(f"{name}: no program is named; write 'cmd:PROGRAM ARGS', as 'cmd:node my_bert.mjs'")
    if shutil.which(arguments[0]) is None:
        raise UsageError(
            f"{name}: there is no program {arguments[0]!r} that can be run, neither at that path nor on PATH; install it, make it "
            "executable, or name what runs it, as 'cmd:python3 my_bert.py'"
        )
    return arguments


def resolved(name: str) -> Any:
    """Import the module of `package.module:object` or `FILE.py:object` and return the object.

    Raises:
        CandidateNameError: there is no such module or file, or it has no such object.
    """
    module, _, path = name.partition(":")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as `python -m` does
    found: Any = _from_file(Path(module)) if module.endswith(PYTHON) else _from_path(module, name)
    for part in path.split("."):
        if not hasattr(found, part):
            there = _likely(found, _objects_in(module)) if part == path else [n for n in dir(found) if not n.startswith("_")]
            hint = nearest(part, dict.fromkeys((*there, *dir(found))), f"it has {', '.join(there) or 'no public name'}")
            raise CandidateNameError(f"{module} has no object {path!r}; {hint}")
        found = getattr(found, part)
    return found


def _likely(module: Any, names: Sequence[str]) -> Sequence[str]:
    """Return the names of the objects with `prepare`, and of torch modules and their classes; all names if there are none."""
    return [n for n in names if any(hasattr(getattr(module, n, None), of) for of in ("prepare", "state_dict"))] or names


def _unknown(name: str) -> str:
    """Return the message for a name without a colon that is neither registered nor a file that can be run."""
    path = Path(name)
    if objects := _objects_in(name):
        what = "file" if name.endswith(PYTHON) else "module"
        return f"{name} is a {what}; name one of its objects: {', '.join(f'{name}:{o}' for o in objects)}"
    if (path / "results.jsonl").is_file() and name:
        return f"{name} is a folder with results, which cannot be run; give its results file {path / 'results.jsonl'}"
    if path.is_dir() and name:
        return (
            f"{name} is a folder, which cannot be run; if it is a checkpoint, give it as --checkpoint {name}, beside the "
            f"candidate that loads it: {KINDS}"
        )
    if path.is_file():
        return f"{name} defines no public name; a candidate is one of its objects, named as {name}:my_bert"
    if path.suffix in (*READERS, TRACE, PYTHON) or os.sep in name:
        return _no_file(path)
    if name in manifest():
        return (
            f"{name} is a golden, a network to run on, and no implementation: give it as --golden {name}; `trace` and `diff` take "
            f"the oracle's activations on it as golden:{name}"
        )
    known = ", ".join(entry_points()) or (f"none, since {SWITCH}=1 is set" if os.environ.get(SWITCH) == "1" else "none")
    return f"no implementation {name!r}; {nearest(name, entry_points(), f'registered are {known}; {KINDS}')}"


def _require_readable(file: Path) -> None:
    """Raise `CandidateNameError` unless the suffix of a file is that of an exported program or of a recorded trace."""
    if file.suffix not in (*READERS, TRACE):
        raise CandidateNameError(
            f"{file}: no exported program that can be read; by their suffixes these can: {', '.join(READERS)}; a recorded trace "
            f"has the suffix {TRACE}"
        )


def _require_module(name: str) -> None:
    """Raise `CandidateNameError` if `module:object` is malformed, or if its file or top-level package does not exist."""
    module, _, path = name.partition(":")
    if module in entry_points():
        raise CandidateNameError(f"{module} is a registered name and stands alone: write {module}, without ':{path}'")
    is_file = module.endswith(PYTHON)
    if not is_file and os.sep in module:
        raise CandidateNameError(
            f"{name!r}: {module} is not a module; write package.module:object with dots, or FILE.py:object with its suffix"
        )
    if not (is_file or all(module.split("."))) or not all(part.isidentifier() for part in path.split(".")):
        raise CandidateNameError(f"{name!r} is not of the form package.module:object or FILE.py:object; {KINDS}")
    if is_file:
        _require_file(Path(module), path)
    elif not _exists(top := module.partition(".")[0]):
        raise CandidateNameError(_no_module(top, name))


def _exists(top: str) -> bool:
    """Return whether there is a top-level module of that name, here or installed; it is not imported."""
    if Path(top).is_dir() or any(module.name == top for module in pkgutil.iter_modules([os.getcwd()])):
        return True
    try:
        return find_spec(top) is not None
    except (ImportError, ValueError):  # a module without a specification: it is imported already
        return top in sys.modules


def _require_file(file: Path, path: str = "") -> None:
    if not file.is_file():
        raise CandidateNameError(_no_file(file, path))


def _no_file(file: Path, path: str = "") -> str:
    """Return the message for a file that does not exist, with the files of its kind in its folder whose names are nearest.

    The suggestions repeat `path`, the object in it.
    """
    if not file.parent.is_dir():
        return f"there is no file {str(file)!r}: the folder {str(file.parent)!r} does not exist"
    there = sorted(other.stem for other in file.parent.iterdir() if other.suffix == file.suffix and other.is_file())
    near = [f"{file.with_name(other + file.suffix)}{path and f':{path}'}" for other in nearest_names(file.stem, there)]
    return f"there is no file {str(file)!r}; {suggestion(near) or 'give its path from the current folder'}"


def _no_module(missing: str, name: str) -> str:
    """Return the message for a module that does not exist, with the nearest of those beside it."""
    parent = missing.rpartition(".")[0]
    folders = list(getattr(sys.modules.get(parent), "__path__", ())) if parent else [os.getcwd(), *sys.path]
    there = (f"{parent}.{m.name}" if parent else m.name for m in pkgutil.iter_modules(folders) if not m.name.startswith("_"))
    remedy = "install its package, change to the folder that has it, or give its path: FILE.py:object"
    hint = nearest(missing, dict.fromkeys(there), remedy)
    return f"no module {missing!r}, here or installed, for the implementation {name!r}; {hint}"


def _objects_in(name: str) -> list[str]:
    """Return the public names that a module or file defines at its top level; its source is parsed, not imported."""
    file = Path(name if name.endswith(PYTHON) else f"{name.replace('.', '/')}{PYTHON}")
    folders = [Path(), *map(Path, sys.path)]
    found = next((folder / file for folder in folders if (folder / file).is_file()), None)
    if found is None:
        return []
    try:
        body = ast.parse(found.read_bytes()).body
    except (SyntaxError, ValueError):
        return []
    names = [node.name for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    assigned = [node for node in body if isinstance(node, ast.Assign | ast.AnnAssign)]
    targets = [t for node in assigned for t in (node.targets if isinstance(node, ast.Assign) else [node.target])]
    names += [t.id for target in targets for t in ast.walk(target) if isinstance(t, ast.Name) and isinstance(t.ctx, ast.Store)]
    return [n for n in dict.fromkeys(names) if not n.startswith("_")]


def _is_file(name: str) -> bool:
    return Path(name).is_file() and not name.endswith(PYTHON)


def _from_path(module: str, name: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and (module == error.name or module.startswith(f"{error.name}.")):
            raise CandidateNameError(_no_module(error.name, name)) from error
        raise


def _from_file(file: Path) -> Any:
    """Return the module in a file; it may import other modules of its folder."""
    _require_file(file)
    return module_of(file.resolve())


def module_of(file: Path) -> ModuleType:
    """Return the module in a file, imported once; it may import other modules of its folder.

    Its name is that of the file, with a digest of the path added if another module has that name, or if the name has a dot.

    The path of the file is absolute and without symbolic links.
    """
    for name in (file.stem, _unique(file)):
        if _is_in(sys.modules.get(name), file):
            return sys.modules[name]
    name = _unique(file) if file.stem in sys.modules or "." in file.stem else file.stem
    sys.path.insert(0, str(file.parent))
    try:
        with _without_modules_of_other_candidates(file.parent):
            return importlib.import_module(name) if name == file.stem else _imported_as(name, file)
    finally:
        sys.path.remove(str(file.parent))
        _FOLDERS.add(file.parent)


def _unique(file: Path) -> str:
    return f"{file.stem}_{sha256(str(file).encode()).hexdigest()[:8]}"


def _imported_as(name: str, file: Path) -> ModuleType:
    spec = spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = module = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


@contextmanager
def _without_modules_of_other_candidates(folder: Path) -> Iterator[None]:
    """Hide the modules beside other candidates' files that also exist in this folder, and show them again afterwards."""
    hidden = {
        name: module
        for name, module in sys.modules.items()
        if any(_is_below(module, other) for other in _FOLDERS - {folder}) and _is_beside(name.partition(".")[0], folder)
    }
    for name in hidden:
        del sys.modules[name]
    try:
        yield
    finally:
        sys.modules.update(hidden)


def _is_beside(name: str, folder: Path) -> bool:
    return (folder / f"{name}.py").is_file() or (folder / name).is_dir()


def _is_in(module: ModuleType | None, file: Path) -> bool:
    found = getattr(module, "__file__", None)
    return isinstance(found, str) and Path(found).resolve() == file


def _is_below(module: ModuleType, folder: Path) -> bool:
    found = getattr(module, "__file__", None)
    return isinstance(found, str) and folder in Path(found).parents
