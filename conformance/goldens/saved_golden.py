"""A golden that was made from a local checkpoint and is kept: a folder with its manifest, its batches and its true activations.

The weights stay where they lie. The manifest has that place, their digest and the architecture, so that other weights, or another
epsilon in `config.json`, are noticed before anything is judged.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from conformance.errors import FixtureError, UsageError
from conformance.goldens.manifest import MANIFEST, Entry
from conformance.model.batch import Batch
from conformance.model.checkpoint import Checkpoint
from conformance.model.digest import content_digest
from conformance.model.directory import load_directory
from conformance.model.stored import PICKLE, SAFETENSORS


@dataclass(frozen=True)
class SavedGolden:
    """The recipe: a checkpoint's directory, and batches that were given.

    Attributes:
        name: what the folder was called when it was made.
        home: the folder.
        source: the directory as it was when it was made.
        beside: the same as seen from `home`, since both may have been moved together; this is tried first.
        stamp: sizes and times of the directory's files: what was verified once is verified again when they change.
        given: the batches, while it is made; afterwards they are those that are stored.
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
        """To be made in the folder `home`."""
        home, checkpoint = home.resolve(), checkpoint.resolve()
        return cls(home.name, home, str(checkpoint), os.path.relpath(checkpoint, home), given=batches)

    @classmethod
    def described(cls, name: str, home: Path, entry: Entry) -> Self:
        """As the manifest in `home` has it."""
        found = cls(name, home, entry.source, entry.checkpoint, entry.version)
        return cls(name, home, found.source, found.beside, found.version, _stamp(found.folder))

    @property
    def folder(self) -> Path | None:
        """The checkpoint's directory; None where it is gone."""
        places = (self.home / place for place in (self.beside, self.source))
        return next((place.resolve() for place in places if place.is_dir()), None)

    def checkpoint(self) -> Checkpoint:
        """Read from where it lies.

        Raises:
            FixtureError: it is gone, or is no checkpoint any more.
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
        """The checkpoint that it was made from."""
        return f"Made from {self.source}."

    def weights_digest(self) -> str:
        """Of the content: of the parameters' values in float64, whatever the file's format and order."""
        return content_digest(self.checkpoint().weights)

    def batches(self) -> Mapping[str, Batch]:
        """Those given."""
        return self.given

    def keeps(self, activation: str) -> bool:
        """All of them."""
        return True


def _stamp(folder: Path | None) -> tuple[tuple[int, int], ...]:
    files = [folder / name for name in ("config.json", SAFETENSORS, PICKLE)] if folder else []
    return tuple((file.stat().st_mtime_ns, file.stat().st_size) for file in files if file.is_file())
