"""A golden, loaded: network, batches and, where they are stored, the true activations."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from conformance.errors import FixtureError, UsageError
from conformance.goldens.manifest import GRADIENTS, Entry, fixtures_directory, located, manifest
from conformance.goldens.recipe import Recipe
from conformance.goldens.recipes import RECIPES
from conformance.goldens.saved_golden import SavedGolden
from conformance.model.architecture import Architecture
from conformance.model.batch import Batch
from conformance.model.checkpoint import Checkpoint
from conformance.model.digest import content_digest
from conformance.model.files import read_safetensors, reading
from conformance.numerics.formats import Array

Gradients = Mapping[str, Mapping[str, Mapping[str, Array]]]


@dataclass(frozen=True)
class Golden:
    """One network with the batches that it is run on.

    Attributes:
        name, version: the version changes when the meaning of a verdict may.
        batches: the inputs, by name; a candidate is prepared once and called with each.
        activations: true activations that are stored, by batch, in any format of the weights, which are exact in each; the oracle
            computes what is not.
        recorded: true activations of the weights as they are, stored when it was made from a checkpoint. Its weights round
            differently in every format, so the judge has the oracle run on the spot, as for every other golden of one's own.
        origin: under which name `open_golden` finds its network, where that is another.
        folder: where its tokenizer lies; None where it has none.
        read_gradients: reads `gradients`; None where none are stored.

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

    @cached_property
    def gradients(self) -> Gradients:
        """True gradients that are stored, of the weights as they are: by batch and by what the backward pass starts from.

        Raises:
            FixtureError: the file is missing, altered or cut short.
        """
        return self.read_gradients() if self.read_gradients else {}

    @cached_property
    def checkpoint(self) -> Checkpoint:
        """Regenerated from the seed, or read from where it lies.

        Raises:
            DependencyMissingError: it comes from a package that is not installed.
            FixtureError: weights, or an architecture, that are not those of the manifest.
        """
        return self.make_checkpoint()


def stored_arrays(batches: Mapping[str, Batch], activations: Mapping[str, Mapping[str, Array]]) -> dict[str, npt.NDArray[Any]]:
    """What a fixture file holds: `batch/NAME/array` and `activation/NAME/activation`."""
    arrays: dict[str, npt.NDArray[Any]] = {
        f"batch/{name}/{key}": array for name, batch in batches.items() for key, array in batch.arrays().items()
    }
    arrays |= {f"activation/{name}/{key}": array for name, found in activations.items() for key, array in found.items()}
    return arrays


def stored_gradients(gradients: Gradients) -> dict[str, Array]:
    """What the file of a golden's gradients holds: `gradient/BATCH/SOURCE/NAME.grad`."""
    return {
        f"gradient/{batch}/{source}/{name}": array
        for batch, by_source in gradients.items()
        for source, found in by_source.items()
        for name, array in found.items()
    }


def nested(arrays: Mapping[str, npt.NDArray[Any]], what: str) -> dict[str, dict[str, npt.NDArray[Any]]]:
    """The arrays of `what` (`batch` or `activation`), by batch and name."""
    found: dict[str, dict[str, npt.NDArray[Any]]] = {}
    for key, array in arrays.items():
        kind, batch, name = key.split("/", 2)
        if kind == what:
            found.setdefault(batch, {})[name] = array
    return found


def load_golden(name: str | Path, folder: Path | None = None) -> Golden:
    """The golden called `name`, or the one in the folder `name`, its stored tensors checked against the manifest's digest.

    Args:
        name: of a golden that is shipped, or the path of a folder that `golden make` wrote (`./tiny`, where a golden is called so).
        folder: where the manifest lies in which the name is looked up, where that is not the shipped one.

    Raises:
        UnknownNameError: there is no such golden.
        UsageError: the folder holds no golden.
        FixtureError: the file is missing, altered or cut short.

    Example:
        >>> load_golden("sinusoidal").version
        2
        >>> load_golden("tinny")
        Traceback (most recent call last):
        ...
        conformance.errors.UnknownNameError: no golden 'tinny', and no folder is called so; did you mean 'tiny'?
    """
    called, home = located(name, folder)
    entry = manifest(home)[called]
    if not entry.is_whole:
        raise FixtureError(f"golden {called}: its entry in the manifest is not as it was written; it was altered")
    try:
        stored = _stored(called, entry, f"{called}.safetensors", entry.stored_digest, home or fixtures_directory())
        return _described(called, entry, stored, home)
    except (KeyError, OSError, TypeError, ValueError, UsageError) as error:
        raise FixtureError(f"golden {called}: its manifest does not describe it ({error!r:.300}); it was altered") from error


def _stored(name: str, entry: Entry, called: str, digest: str, home: Path) -> dict[str, npt.NDArray[Any]]:
    """The tensors of a file of its, which are what the manifest says."""
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


def _described(name: str, entry: Entry, stored: Mapping[str, npt.NDArray[Any]], home: Path | None) -> Golden:
    """Its network is that of its recipe, of a shipped golden, or the checkpoint that it was made from."""
    recipe: Recipe = SavedGolden.described(name, home, entry) if home and entry.checkpoint else RECIPES[name]
    kept = isinstance(recipe, SavedGolden)
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
        folder=recipe.folder,
        read_gradients=partial(_gradients, name, entry, home or fixtures_directory()) if entry.gradients_digest else None,
    )


def _gradients(name: str, entry: Entry, home: Path) -> Gradients:
    """Those of the file beside the golden's own."""
    stored = _stored(name, entry, f"{name}{GRADIENTS}", entry.gradients_digest, home)
    found: dict[str, dict[str, dict[str, Array]]] = {}
    for batch, arrays in nested(stored, "gradient").items():
        for key, array in arrays.items():
            source, _, of = key.partition("/")
            found.setdefault(batch, {}).setdefault(source, {})[of] = np.asarray(array, np.float64)
    return found


def forget_checkpoints() -> None:
    """Generate, or read, the networks of goldens anew when they are asked for again."""
    _verified.cache_clear()
    for recipe in RECIPES.values():
        vars(recipe).pop("_checkpoint", None)


@lru_cache(maxsize=2)
def _verified(recipe: Recipe, architecture: Architecture, digest: str) -> Checkpoint:
    """The recipe's network, once it is that of the manifest; raises `FixtureError` if it is not.

    Made once for the checks that come one after the other.
    """
    checkpoint = recipe.checkpoint()
    ours, theirs = architecture.as_dict(), checkpoint.architecture.as_dict()
    both = ((name, theirs.get(name), ours.get(name)) for name in ours | theirs)
    changed = [f"{name} {found!r}, expected {expected!r}" for name, found, expected in both if found != expected]
    if changed:
        raise FixtureError(f"golden {recipe.name}: the network ({recipe.source}) is another: it has {'; '.join(changed)}")
    found = recipe.weights_digest()
    if found != digest:
        raise FixtureError(f"golden {recipe.name}: the weights ({recipe.source}) have SHA-256 {found}, expected {digest}")
    return checkpoint
