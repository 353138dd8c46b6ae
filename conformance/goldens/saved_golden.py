"""Goldens made from a local checkpoint: a folder with a manifest, batches and true activations.

The weights stay in the checkpoint's directory. The manifest contains its path, the digest of the weights and the architecture, so
that other weights, or another epsilon in `config.json`, are detected before anything is judged.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from conformance.errors import FixtureError, UsageError
from conformance.goldens.manifest import MANIFEST, ManifestEntry
from conformance.model.batch import Batch
from conformance.model.checkpoint import Checkpoint
from conformance.model.digest import content_digest
from conformance.model.directory import files_of, load_directory
from conformance.model.files import Stamp, stamps_of


@dataclass(frozen=True)
class SavedGolden:
    """The recipe of a golden made from a checkpoint directory and given batches.

    Attributes:
        name: name of the folder when the golden was made.
        home: the golden's folder.
        source: path of the checkpoint directory when the golden was made.
        beside: the same path relative to `home`, which is tried first, since both may have been moved together.
        stamp: the files of the checkpoint and their stamps; when they change, the checkpoint is verified again.
        given: the batches while the golden is made; empty for a loaded golden, which has the stored ones.
    """

    name: str
    home: Path
    source: str
    beside: str
    version: int = 1
    stamp: tuple[tuple[Path, Stamp | None], ...] = ()
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
        return replace(found, stamp=tuple(stamps_of(files_of(found.folder)).items())) if found.folder else found

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
