"""Import of candidates from files, of which several may have the same name, or import modules of the same name beside them."""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

_FOLDERS: set[Path] = set()  # folders of the files that were imported


def module_of(file: Path) -> ModuleType:
    """Return the module in a file, imported once; it may import other modules of its folder.

    Its name is that of the file, with a digest of the path added if another module has that name, or if the name has a dot.

    Args:
        file: an absolute path without symbolic links.
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
        if any(_is_below(module, other) for other in _FOLDERS - {folder}) and _exists(name.partition(".")[0], folder)
    }
    for name in hidden:
        del sys.modules[name]
    try:
        yield
    finally:
        sys.modules.update(hidden)


def _exists(name: str, folder: Path) -> bool:
    return (folder / f"{name}.py").is_file() or (folder / name).is_dir()


def _is_in(module: ModuleType | None, file: Path) -> bool:
    found = getattr(module, "__file__", None)
    return isinstance(found, str) and Path(found).resolve() == file


def _is_below(module: ModuleType, folder: Path) -> bool:
    found = getattr(module, "__file__", None)
    return isinstance(found, str) and folder in Path(found).parents
