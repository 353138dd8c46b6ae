"""The fixtures: where they lie, and what their manifest says. Imports nothing heavy."""

import json
from pathlib import Path
from typing import Any

from conformance.errors import FixtureError


def fixtures_directory() -> Path:
    """The folder with the fixtures: that of a checkout first, else the one that the wheel carries."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package.parent / "fixtures", package / "_fixtures"):
        if (folder / "manifest.json").is_file():
            return folder
    raise FixtureError(f"no fixtures: neither {package.parent / 'fixtures'} nor {package / '_fixtures'} has a manifest.json")


def manifest(folder: Path | None = None) -> dict[str, Any]:
    """The manifest: an entry a golden; `FixtureError` when it cannot be read."""
    file = (folder or fixtures_directory()) / "manifest.json"
    try:
        return dict(json.loads(file.read_text("utf-8"))["goldens"])
    except (OSError, ValueError, KeyError) as error:
        raise FixtureError(f"{file} cannot be read: {error}") from error
