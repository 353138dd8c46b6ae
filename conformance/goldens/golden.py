"""A golden, loaded: checkpoint, batch and, where they are stored, the true activations."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from conformance.architecture import Architecture
from conformance.batch import Batch
from conformance.checkpoint import Checkpoint, load_directory
from conformance.errors import FixtureError, UnknownNameError
from conformance.goldens import minilm, tiny
from conformance.goldens.digest import content_digest
from conformance.goldens.manifest import fixtures_directory, manifest
from conformance.numerics.formats import Array


@dataclass(frozen=True)
class Golden:
    """One network with one batch.

    Attributes:
        name, version: the version changes when the meaning of a verdict may.
        batch: the inputs.
        activations: true activations that are stored; empty where the oracle computes them on the spot.
    """

    name: str
    version: int
    entry: Mapping[str, Any] = field(repr=False)
    batch: Batch = field(repr=False)
    activations: Mapping[str, Array] = field(repr=False)

    @cached_property
    def checkpoint(self) -> Checkpoint:
        """Regenerated from the seed, or read from the installed package.

        Raises:
            DependencyMissingError: the package is not installed.
            FixtureError: weights that are not those of the manifest.
        """
        if "package_digest" in self.entry:
            return load_directory(minilm.verified_directory(self.entry["package_digest"]))
        weights = tiny.weights(self.entry["seed"])
        if content_digest(weights) != self.entry["weights_digest"]:
            raise FixtureError(f"golden {self.name}: regenerated weights differ from the manifest's digest")
        return Checkpoint(Architecture.from_config(self.entry["architecture"], heads=tiny.ARCHITECTURE.heads), weights)


def load_golden(name: str, folder: Path | None = None) -> Golden:
    """The golden called `name`, its stored tensors checked against the manifest's digest.

    Raises:
        UnknownNameError: there is no such golden.
        FixtureError: the file is missing, altered or cut short.
    """
    entries = manifest(folder)
    if name not in entries:
        raise UnknownNameError(f"no golden {name!r}; there are {', '.join(entries)}")
    entry = entries[name]
    file = (folder or fixtures_directory()) / f"{name}.safetensors"
    try:
        stored = load_file(file)
    except (OSError, SafetensorError) as error:
        raise FixtureError(f"golden {name}: {file} cannot be read ({error}); reinstall, or restore it from a checkout") from error
    if content_digest(stored) != entry["stored_digest"]:
        raise FixtureError(f"golden {name}: {file} is not what the manifest describes; it was altered")
    batch = Batch.of({k.removeprefix("batch."): v for k, v in stored.items() if k.startswith("batch.")})
    activations = {
        k.removeprefix("activation."): np.asarray(v, np.float64) for k, v in stored.items() if k.startswith("activation.")
    }
    return Golden(name, int(entry["version"]), entry, batch, activations)
