"""The fixtures, and goldens in folders of their own: where they lie, and what their manifests say. Imports nothing heavy."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec

from conformance.errors import FixtureError, UnknownNameError, UsageError
from conformance.model.files import read_json, reading
from conformance.names import nearest

MANIFEST = "manifest.json"
GRADIENTS = ".gradients.safetensors"  # what the file of a golden's gradients is called, after its name
SCHEMA = 2
SMALL = ("tiny", "sinusoidal")  # between them the steps of every architecture but for other activation functions


def fixtures_directory() -> Path:
    """The folder with the fixtures: that of a checkout first, else the one that the wheel carries."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package.parent / "fixtures", package / "_fixtures"):
        if (folder / MANIFEST).is_file():
            return folder
    raise FixtureError(f"no fixtures: neither {package.parent / 'fixtures'} nor {package / '_fixtures'} has a {MANIFEST}")


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A golden, as its manifest describes it.

    Attributes:
        version: changes when the meaning of a verdict may.
        source: where the weights come from, for people.
        architecture: as `Architecture.as_dict` has it.
        batches: names, in the order in which they are run.
        weights_digest: of the weights, in float64.
        stored_digest: of the arrays in the file.
        digest: of the version, the architecture, the batches and the other digests: `of_entry`.
        checkpoint: of one that was made from a checkpoint, where that lies as seen from the folder; else empty.
        gradients_digest: of the arrays in the file of its gradients; empty where there is none.
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
        """Whether it is as it was written."""
        digests = (self.weights_digest, self.stored_digest, self.gradients_digest)
        return self.digest == of_entry(self.version, self.architecture, self.batches, *digests)


def of_entry(
    version: int, architecture: Mapping[str, Any], batches: Sequence[str], weights: str, stored: str, gradients: str = ""
) -> str:
    """SHA-256 of what an entry says, but for where the weights lie, since they may be moved: so an edited entry is noticed."""
    said = (version, architecture, batches, weights, stored, *([gradients] if gradients else []))
    return hashlib.sha256(msgspec.json.encode(said, order="deterministic")).hexdigest()


class _Schema(msgspec.Struct, frozen=True):
    schema: int


class _Manifest(msgspec.Struct, frozen=True):
    goldens: dict[str, Entry]


def manifest(folder: Path | None = None) -> dict[str, Entry]:
    """The manifest: an entry a golden; `FixtureError` when it cannot be read."""
    file = (folder or fixtures_directory()) / MANIFEST
    with reading(file, "a manifest", FixtureError):
        schema = read_json(file, _Schema).schema
        if schema != SCHEMA:
            raise FixtureError(f"{file} is of schema {schema}, this is {SCHEMA}; make the golden again")
        return read_json(file, _Manifest).goldens


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
