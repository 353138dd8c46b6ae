"""Locations and manifests of the shipped fixtures and of goldens in their own folders. Imports neither NumPy nor torch."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec

from conformance.errors import FixtureError, UnknownNameError, UsageError
from conformance.model.files import read_json, reading
from conformance.names import nearest

MANIFEST = "manifest.json"
GRADIENTS = ".gradients.safetensors"  # suffix of the file of a golden's gradients, after the golden's name
SCHEMA = 2
# Goldens on which every check runs by default. Relative positions, cross-attention, poolings and further heads are in others.
DEFAULT_GOLDENS = ("tiny", "sinusoidal")


def fixtures_directory() -> Path:
    """Return the folder with the fixtures: that of a checkout if it exists, otherwise the one in the installed wheel.

    Raises:
        FixtureError: neither exists.
    """
    package = Path(__file__).resolve().parents[1]
    for folder in (package.parent / "fixtures", package / "_fixtures"):
        if (folder / MANIFEST).is_file():
            return folder
    raise FixtureError(f"no fixtures: neither {package.parent / 'fixtures'} nor {package / '_fixtures'} has a {MANIFEST}")


class ManifestEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The manifest entry of a golden.

    Attributes:
        version: changes when the meaning of a verdict may change.
        source: where the weights come from, for display.
        architecture: the dictionary returned by `Architecture.as_dict`.
        batches: names of the batches, in the order in which they are run.
        weights_digest: digest of the weights in float64.
        stored_digest: digest of the arrays in the file.
        digest: digest of the version, the architecture, the batches and the other digests (`of_entry`).
        checkpoint: path of the checkpoint that the golden was made from, relative to the folder; otherwise empty.
        gradients_digest: digest of the arrays in the gradient file; empty if there is none.
    """

    version: Annotated[int, msgspec.Meta(ge=0)]
    source: str
    architecture: dict[str, Any]
    batches: Annotated[list[str], msgspec.Meta(min_length=1)]
    weights_digest: str
    stored_digest: str
    digest: str
    checkpoint: str = ""
    gradients_digest: str = ""

    @property
    def is_whole(self) -> bool:
        """Whether the entry is unaltered, that is, whether its digest is correct."""
        digests = (self.weights_digest, self.stored_digest, self.gradients_digest)
        return self.digest == of_entry(self.version, self.architecture, self.batches, *digests)


def of_entry(
    version: int, architecture: Mapping[str, Any], batches: Sequence[str], weights: str, stored: str, gradients: str = ""
) -> str:
    """Return the SHA-256 of a manifest entry, so that an edited entry is detected.

    The location of the weights is not included, since they may be moved.
    """
    said = (version, architecture, batches, weights, stored, *([gradients] if gradients else []))
    return hashlib.sha256(msgspec.json.encode(said, order="deterministic")).hexdigest()


class _Schema(msgspec.Struct, frozen=True):
    schema: int


class _Manifest(msgspec.Struct, frozen=True):
    goldens: dict[str, ManifestEntry]


def manifest(folder: Path | None = None) -> dict[str, ManifestEntry]:
    """Return the manifest entries by golden name; raises `FixtureError` if the manifest cannot be read."""
    file = (folder or fixtures_directory()) / MANIFEST
    with reading(file, "a manifest", FixtureError):
        schema = read_json(file, _Schema).schema
        if schema != SCHEMA:
            raise FixtureError(f"{file} is of schema {schema}, this is {SCHEMA}; make the golden again")
        return read_json(file, _Manifest).goldens


def is_folder(golden: str | Path) -> bool:
    """Return whether a golden is identified by its folder rather than by its name.

    A string that is the name of a shipped golden is taken as the name; the folder is then written `./tiny`.
    """
    return isinstance(golden, Path) or (golden not in manifest() and Path(golden).exists())


def located(golden: str | Path, folder: Path | None = None) -> tuple[str, Path | None]:
    """Return the name of a golden and the folder with its manifest, which is None for the shipped fixtures.

    Args:
        golden: the golden's name, or its folder.
        folder: folder of the manifest in which the name is looked up; None means the shipped fixtures.

    Raises:
        UnknownNameError: there is no golden and no folder with this name.
        UsageError: the folder contains no golden, or several.
        FixtureError: the manifest cannot be read.
    """
    if folder is None and is_folder(golden):
        return _alone_in(Path(golden)), Path(golden).resolve()
    names = manifest(folder)
    if golden not in names:
        raise UnknownNameError(f"no golden {str(golden)!r}, and no folder is called so; {nearest(str(golden), names)}")
    return str(golden), folder


def _alone_in(folder: Path) -> str:
    """Return the name of the only golden in the folder."""
    if not folder.is_dir():
        raise UsageError(f"{folder} is {'a file' if folder.exists() else 'not there'}; a golden of your own is a folder")
    if not (folder / MANIFEST).is_file():
        raise UsageError(f"{folder} is no golden: it has no {MANIFEST}; `golden make --checkpoint DIR -o FOLDER` makes one")
    names = manifest(folder)
    if len(names) != 1:
        raise UsageError(f"{folder} holds {', '.join(names) or 'no golden'}, and a golden of your own lies alone")
    return next(iter(names))
