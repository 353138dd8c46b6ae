"""Loaded goldens: a network, batches and, if stored, true activations and gradients."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from conformance.errors import FixtureError, UsageError
from conformance.goldens.manifest import GRADIENTS, MANIFEST, ManifestEntry, fixtures_directory, located, manifest
from conformance.goldens.recipe import Recipe, generated_checkpoint, saved
from conformance.goldens.shipped_goldens import RECIPES
from conformance.model.architecture import Architecture
from conformance.model.batch import Batch
from conformance.model.checkpoint import Checkpoint, content_digest
from conformance.model.directory import files_of
from conformance.model.files import Stamp, read_safetensors, reading, stamps_of
from conformance.numerics.formats import Array

Gradients = Mapping[str, Mapping[str, Mapping[str, Array]]]


@dataclass(frozen=True)
class Golden:
    """One network with the batches on which it is run.

    Attributes:
        name, version: the version changes when the meaning of a verdict may change.
        batches: the inputs by name; a candidate is prepared once and called with each batch.
        activations: stored true activations by batch. They hold for every format, since the weights are exact in all of them. The
            oracle computes activations that are not stored.
        recorded: stored true activations of the unrounded weights, for a golden made from a checkpoint. Such weights round
            differently in every format, so the judge runs the oracle, as for all of the user's own goldens.
        origin: the name under which `open_golden` finds the network, if it is not `name`.
        folder: folder of the tokenizer, or None if there is none.
        files: the files that the golden is read from, each with its stamp before it was read.
        read_gradients: function that reads `gradients`, or None if none are stored.

    Example:
        >>> golden = load_golden("tiny")
        >>> golden.batches["padded"].input_ids.shape
        (6, 16)
        >>> golden.checkpoint.architecture.num_hidden_layers
        2
    """

    name: str
    version: int
    batches: Mapping[str, Batch] = field(repr=False)
    make_checkpoint: Callable[[], Checkpoint] = field(repr=False)
    activations: Mapping[str, Mapping[str, Array]] = field(default_factory=dict, repr=False)
    origin: str = ""
    folder: Path | None = None
    recorded: Mapping[str, Mapping[str, Array]] = field(default_factory=dict, repr=False)
    read_gradients: Callable[[], Gradients] | None = field(default=None, repr=False)
    files: Mapping[Path, Stamp | None] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def gradients(self) -> Gradients:
        """Stored true gradients for the unrounded weights, by batch and by the activation that the backward pass starts from.

        Raises:
            FixtureError: the file is missing, altered or truncated.
        """
        return self.read_gradients() if self.read_gradients else {}

    @cached_property
    def checkpoint(self) -> Checkpoint:
        """The network, regenerated from the seed or read from its directory.

        Raises:
            DependencyMissingError: the network comes from a package that is not installed.
            FixtureError: the weights or the architecture differ from the manifest.
        """
        return self.make_checkpoint()


def with_config(golden: Golden, **settings: Any) -> Golden:
    """Return the golden with these settings changed in its config."""
    checkpoint = replace(golden.checkpoint, architecture=golden.checkpoint.architecture.with_(**settings))
    return replace(golden, make_checkpoint=lambda: checkpoint)


def stored_arrays(batches: Mapping[str, Batch], activations: Mapping[str, Mapping[str, Array]]) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of a fixture file, named `batch/NAME/array` and `activation/NAME/activation`."""
    return flat("batch", {name: batch.arrays() for name, batch in batches.items()}) | flat("activation", activations)


def flat(what: str, arrays: Mapping[str, Mapping[str, Any]]) -> dict[str, npt.NDArray[Any]]:
    """Return arrays of one kind, which are nested by batch and name, under the names `WHAT/BATCH/NAME`."""
    return {f"{what}/{batch}/{name}": array for batch, of_batch in arrays.items() for name, array in of_batch.items()}


def nested(arrays: Mapping[str, npt.NDArray[Any]], what: str) -> dict[str, dict[str, npt.NDArray[Any]]]:
    """Return the arrays of one kind (`batch`, `activation` or `gradient`), by batch and name."""
    found: dict[str, dict[str, npt.NDArray[Any]]] = {}
    for key, array in arrays.items():
        kind, batch, name = key.split("/", 2)
        if kind == what:
            found.setdefault(batch, {})[name] = array
    return found


def load_golden(name: str | Path, folder: Path | None = None) -> Golden:
    """Return a golden after checking its stored tensors against the digest in the manifest.

    Args:
        name: name of a shipped golden, or the path of a folder written by `golden make`. A path that is also a name, such as
            `tiny`, must be written as `./tiny`.
        folder: folder of the manifest in which the name is looked up; None means the shipped one.

    Raises:
        UnknownNameError: there is no such golden.
        UsageError: the folder does not contain a golden.
        FixtureError: the file is missing, altered or truncated.

    Example:
        >>> load_golden("sinusoidal").version
        2
        >>> load_golden("tinny")
        Traceback (most recent call last):
        ...
        conformance.errors.UnknownNameError: no golden 'tinny', and no folder is called so; did you mean 'tiny'?
    """
    called, home = located(name, folder)
    place = home or fixtures_directory()
    files = stamps_of(place / file for file in (MANIFEST, f"{called}.safetensors", f"{called}{GRADIENTS}"))
    entry = manifest(home)[called]
    if not entry.is_whole:
        raise FixtureError(f"golden {called}: its entry in the manifest is not as it was written; it was altered")
    try:
        stored = _stored(called, entry, f"{called}.safetensors", entry.stored_digest, place)
        return _described(called, entry, stored, home, files)
    except (KeyError, OSError, TypeError, ValueError, UsageError) as error:
        raise FixtureError(f"golden {called}: its manifest does not describe it ({error!r:.300}); it was altered") from error


def _stored(name: str, entry: ManifestEntry, called: str, digest: str, home: Path) -> dict[str, npt.NDArray[Any]]:
    """Return the tensors of one of a golden's files after checking their digest."""
    file = home / called
    restore = "make it again" if entry.checkpoint else "reinstall"
    try:
        with reading(file, "the arrays of a golden", FixtureError):
            stored, _ = read_safetensors(file)
    except FixtureError as error:
        raise FixtureError(f"golden {name}: {error}; {restore}, or restore it from a checkout") from error
    if content_digest(stored) != digest:
        raise FixtureError(f"golden {name}: {file} is not what the manifest describes; it was altered")
    return stored


def _described(
    name: str, entry: ManifestEntry, stored: Mapping[str, npt.NDArray[Any]], home: Path | None, files: Mapping[Path, Stamp | None]
) -> Golden:
    """Return the golden described by a manifest entry; its network comes from a recipe, or from the checkpoint it was made from."""
    recipe = RECIPES[name] if not (home and entry.checkpoint) else saved(name, home, entry.source, entry.checkpoint, entry.version)
    kept, folder = bool(recipe.beside), recipe.folder()
    batches = {batch: Batch.of(arrays) for batch, arrays in nested(stored, "batch").items()}
    activations = {
        batch: {key: np.asarray(array, np.float64) for key, array in found.items()}
        for batch, found in nested(stored, "activation").items()
    }
    if set(batches) != set(entry.batches):
        raise ValueError(f"the file has the batches {', '.join(batches)}, and the manifest {', '.join(entry.batches)}")
    architecture, digest = Architecture.from_config(entry.architecture), entry.weights_digest
    return Golden(
        name,
        entry.version,
        {batch: batches[batch] for batch in entry.batches},
        lambda: _verified(recipe, architecture, digest),
        {} if kept else activations,
        recorded=activations if kept else {},
        origin=str(home) if kept else "",
        folder=folder,
        read_gradients=partial(_gradients, name, entry, home or fixtures_directory()) if entry.gradients_digest else None,
        files={**files, **(stamps_of(files_of(folder)) if folder else {})},
    )


def _gradients(name: str, entry: ManifestEntry, home: Path) -> Gradients:
    """Return the gradients stored in a separate file next to the golden's own."""
    stored = _stored(name, entry, f"{name}{GRADIENTS}", entry.gradients_digest, home)
    found: dict[str, dict[str, dict[str, Array]]] = {}
    for batch, arrays in nested(stored, "gradient").items():
        for key, array in arrays.items():
            source, _, of = key.partition("/")
            found.setdefault(batch, {}).setdefault(source, {})[of] = np.asarray(array, np.float64)
    return found


def forget_checkpoints() -> None:
    """Clear the cached networks of goldens, so that they are generated or read again on the next access."""
    _verified.cache_clear()
    generated_checkpoint.cache_clear()


@lru_cache(maxsize=2)
def _verified(recipe: Recipe, architecture: Architecture, digest: str) -> Checkpoint:
    """Return the recipe's network after checking it against the manifest; raises `FixtureError` if it differs.

    The result is cached for consecutive checks on the same golden.
    """
    checkpoint = recipe.checkpoint()
    ours, theirs = architecture.as_dict(), checkpoint.architecture.as_dict()
    both = ((name, theirs.get(name), ours.get(name)) for name in ours | theirs)
    changed = [f"{name} {found!r}, expected {expected!r}" for name, found, expected in both if found != expected]
    if changed:
        raise FixtureError(f"golden {recipe.name}: the network ({recipe.source}) is another: it has {'; '.join(changed)}")
    found = recipe.weights_digest(checkpoint)
    if found != digest:
        raise FixtureError(f"golden {recipe.name}: the weights ({recipe.source}) have SHA-256 {found}, expected {digest}")
    return checkpoint
