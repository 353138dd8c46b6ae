"""A golden, loaded: network, batches and, where they are stored, the true activations."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load_file

from conformance.batch import Batch
from conformance.checkpoint import Checkpoint
from conformance.errors import FixtureError, UnknownNameError
from conformance.goldens.digest import content_digest
from conformance.goldens.manifest import fixtures_directory, manifest
from conformance.goldens.recipes import RECIPES
from conformance.numerics.formats import Array


@dataclass(frozen=True)
class Golden:
    """One network with the batches that it is run on.

    Attributes:
        name, version: the version changes when the meaning of a verdict may.
        batches: the inputs, by name; a candidate is prepared once and called with each.
        activations: true activations that are stored, by batch; the oracle computes what is not.
        origin: under which name `open_golden` finds its network, where that is another.
        folder: where its tokenizer lies; None where it has none.
    """

    name: str
    version: int
    batches: Mapping[str, Batch] = field(repr=False)
    make_checkpoint: Callable[[], Checkpoint] = field(repr=False)
    activations: Mapping[str, Mapping[str, Array]] = field(default_factory=dict, repr=False)
    origin: str = ""
    folder: Path | None = None

    @cached_property
    def checkpoint(self) -> Checkpoint:
        """Regenerated from the seed, or read from where it lies.

        Raises:
            DependencyMissingError: it comes from a package that is not installed.
            FixtureError: weights that are not those of the manifest.
        """
        return self.make_checkpoint()


def stored_arrays(batches: Mapping[str, Batch], activations: Mapping[str, Mapping[str, Array]]) -> dict[str, npt.NDArray[Any]]:
    """What a fixture file holds: `batch/NAME/array` and `activation/NAME/activation`."""
    arrays: dict[str, npt.NDArray[Any]] = {
        f"batch/{name}/{key}": array for name, batch in batches.items() for key, array in batch.arrays().items()
    }
    arrays |= {f"activation/{name}/{key}": array for name, found in activations.items() for key, array in found.items()}
    return arrays


def nested(arrays: Mapping[str, npt.NDArray[Any]], what: str) -> dict[str, dict[str, npt.NDArray[Any]]]:
    """The arrays of `what` (`batch` or `activation`), by batch and name."""
    found: dict[str, dict[str, npt.NDArray[Any]]] = {}
    for key, array in arrays.items():
        kind, batch, name = key.split("/", 2)
        if kind == what:
            found.setdefault(batch, {})[name] = array
    return found


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
    batches = {batch: Batch.of(arrays) for batch, arrays in nested(stored, "batch").items()}
    order = entry["batches"]
    activations = {
        batch: {key: np.asarray(array, np.float64) for key, array in found.items()}
        for batch, found in nested(stored, "activation").items()
    }
    return Golden(
        name,
        int(entry["version"]),
        {batch: batches[batch] for batch in order},
        lambda: _verified(name, entry["weights_digest"]),
        activations,
        folder=RECIPES[name].folder,
    )


@lru_cache(maxsize=2)
def _verified(name: str, digest: str) -> Checkpoint:
    """The recipe's network, once its weights are those of the manifest; raises `FixtureError` if they are not.

    Made once for the checks that come one after the other.
    """
    recipe = RECIPES[name]
    found = recipe.weights_digest()
    if found != digest:
        raise FixtureError(f"golden {recipe.name}: the weights ({recipe.source}) have SHA-256 {found}, expected {digest}")
    return recipe.checkpoint()
