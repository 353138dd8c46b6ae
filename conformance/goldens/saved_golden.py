"""Goldens made from a local checkpoint: a folder with a manifest, batches and true activations.

The weights stay in the checkpoint's directory. The manifest contains its path, the digest of the weights and the architecture, so
that other weights, or another epsilon in `config.json`, are detected before anything is judged.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from conformance.errors import FixtureError, UsageError
from conformance.goldens.manifest import MANIFEST, ManifestEntry
from conformance.model.batch import Batch
from conformance.model.checkpoint import Checkpoint
from conformance.model.digest import content_digest
from conformance.model.directory import load_directory
from conformance.model.stored import PICKLE, SAFETENSORS


@dataclass(frozen=True)
class SavedGolden:
    """The recipe of a golden made from a checkpoint directory and given batches.

    Attributes:
        name: name of the folder when the golden was made.
        home: the golden's folder.
        source: path of the checkpoint directory when the golden was made.
        beside: the same path relative to `home`, which is tried first, since both may have been moved together.
        stamp: modification times and sizes of the checkpoint's files; when they change, the checkpoint is verified again.
        given: the batches while the golden is made; empty for a loaded golden, which has the stored ones.
    """

    name: str
    home: Path
    source: str
    beside: str
    version: int = 1
    stamp: tuple[tuple[int, int], ...] = ()
    given: Mapping[str, Batch] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, home: Path, checkpoint: Path, batches: Mapping[str, Batch]) -> Self:
        """Return the recipe of a golden that is to be made in the folder `home`."""
        home, checkpoint = home.resolve(), checkpoint.resolve()
        return cls(home.name, home, str(checkpoint), os.path.relpath(checkpoint, home), given=batches)

    @classmethod
    def described(cls, name: str, home: Path, entry: ManifestEntry) -> Self:
        """Return the recipe described by the manifest in `home`."""
        found = cls(name, home, entry.source, entry.checkpoint, entry.version)
        return cls(name, home, found.source, found.beside, found.version, _stamp(found.folder))

    @property
    def folder(self) -> Path | None:
        """The checkpoint's directory, or None if it no longer exists."""
        places = (self.home / place for place in (self.beside, self.source))
        return next((place.resolve() for place in places if place.is_dir()), None)

    def checkpoint(self) -> Checkpoint:
        """Return the checkpoint, read from its directory.

        Raises:
            FixtureError: the directory no longer exists or is no longer a valid checkpoint.
        """
        if self.folder is None:
            raise FixtureError(
                f"golden {self.name}: the checkpoint that it was made from is not at {self.source}; put it back, or write where it "
                f'is as "checkpoint" into {self.home / MANIFEST}'
            )
        try:
            return load_directory(self.folder)
        except UsageError as error:
            raise FixtureError(f"golden {self.name}: the checkpoint that it was made from cannot be read: {error}") from error

    @property
    def about(self) -> str:
        """A sentence that names the checkpoint from which the golden was made."""
        return f"Made from {self.source}."

    def weights_digest(self) -> str:
        """Return the digest of the parameters' values in float64, which does not depend on the file's format and order."""
        return content_digest(self.checkpoint().weights)

    def batches(self) -> Mapping[str, Batch]:
        """Return the given batches."""
        return self.given

    def keeps(self, activation: str) -> bool:
        """Return True, since all activations are stored."""
        return True


def _stamp(folder: Path | None) -> tuple[tuple[int, int], ...]:
    """Return what changes if a file of a checkpoint does; sentence-transformers has files in folders of their own."""
    if folder is None:
        return ()
    folders = (folder, *sorted(path for path in folder.iterdir() if path.is_dir())) if folder.is_dir() else ()
    files = [one / name for one in folders for name in ("modules.json", "config.json", SAFETENSORS, PICKLE)]
    return tuple((file.stat().st_mtime_ns, file.stat().st_size) for file in files if file.is_file())
