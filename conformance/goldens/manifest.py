"""The fixtures, and goldens in folders of their own: where they lie, and what their manifests say. Imports nothing heavy."""

import json
from pathlib import Path
from typing import Any

from conformance.errors import FixtureError, UnknownNameError, UsageError
from conformance.names import nearest

MANIFEST = "manifest.json"
SCHEMA = 1


def fixtures_directory() -> Path:
    """The folder with the fixtures: that of a checkout first, else the one that the wheel carries."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package.parent / "fixtures", package / "_fixtures"):
        if (folder / MANIFEST).is_file():
            return folder
    raise FixtureError(f"no fixtures: neither {package.parent / 'fixtures'} nor {package / '_fixtures'} has a {MANIFEST}")


def manifest(folder: Path | None = None) -> dict[str, Any]:
    """The manifest: an entry a golden; `FixtureError` when it cannot be read."""
    file = (folder or fixtures_directory()) / MANIFEST
    try:
        return dict(json.loads(file.read_text("utf-8"))["goldens"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FixtureError(f"{file} cannot be read: {error}") from error


def is_folder(golden: str | Path) -> bool:
    """Whether a golden is reported by its folder, and not by its name; a name goes first, so that the folder is `./tiny`."""
    return isinstance(golden, Path) or (golden not in manifest() and Path(golden).exists())


def located(golden: str | Path, folder: Path | None = None) -> tuple[str, Path | None]:
    """The name of a golden, and the folder with its manifest, None for the fixtures'.

    Args:
        golden: its name, or the folder of its own in which it lies.
        folder: that with the manifest in which the name is looked up, where that is not the fixtures'.

    Raises:
        UnknownNameError: neither a golden nor a folder is called so.
        UsageError: the folder holds no golden, or several.
        FixtureError: its manifest cannot be read.
    """
    if folder is None and is_folder(golden):
        return _alone_in(Path(golden)), Path(golden).resolve()
    names = manifest(folder)
    if golden not in names:
        raise UnknownNameError(f"no golden {str(golden)!r}, and no folder is called so; {nearest(str(golden), names)}")
    return str(golden), folder


def _alone_in(folder: Path) -> str:
    """The name of the only golden in the folder."""
    if not folder.is_dir():
        raise UsageError(f"{folder} is {'a file' if folder.exists() else 'not there'}; a golden of your own is a folder")
    if not (folder / MANIFEST).is_file():
        raise UsageError(f"{folder} is no golden: it has no {MANIFEST}; `golden make --checkpoint DIR -o FOLDER` makes one")
    names = manifest(folder)
    if len(names) != 1:
        raise UsageError(f"{folder} holds {', '.join(names) or 'no golden'}, and a golden of your own lies alone")
    return next(iter(names))
