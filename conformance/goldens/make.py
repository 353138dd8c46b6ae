"""Make goldens: from a local checkpoint, or the shipped ones with `python -m conformance.goldens.make FOLDER [--only NAME]`."""

import argparse
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
from safetensors.numpy import save_file

from conformance.errors import UsageError
from conformance.goldens.golden import Golden, flat, load_golden, stored_arrays
from conformance.goldens.manifest import DEFAULT_GOLDENS, GRADIENTS, MANIFEST, SCHEMA, ManifestEntry, manifest, of_entry
from conformance.goldens.recipe import Recipe, keeps_gradient, saved
from conformance.goldens.shipped_goldens import RECIPES
from conformance.model.batch import Batch
from conformance.model.checkpoint import Checkpoint, content_digest
from conformance.numerics.formats import Array
from conformance.oracle import Network


def make(folder: Path, recipes: Iterable[Recipe] = tuple(RECIPES.values())) -> None:
    """Write the goldens of the recipes and their manifest to `folder`, creating it if necessary."""
    folder.mkdir(parents=True, exist_ok=True)
    _write_manifest(folder, {recipe.name: _stored(folder, recipe) for recipe in recipes})


def make_one(folder: Path, recipe: Recipe) -> None:
    """Write the golden of one shipped recipe to the folder of a manifest, whose other entries are kept; the order is the table's.

    Raises:
        FixtureError: the folder has no manifest that can be read.
    """
    kept = manifest(folder)  # read first, so that nothing is written if it cannot be read
    entries = {**kept, recipe.name: _stored(folder, recipe)}
    _write_manifest(folder, {name: entries[name] for name in dict.fromkeys((*RECIPES, *entries)) if name in entries})


def _stored(folder: Path, recipe: Recipe) -> ManifestEntry:
    """Write the files of one golden and return its manifest entry."""
    batches, checkpoint = recipe.batches(), recipe.checkpoint()
    arrays = stored_arrays(batches, {name: _kept(recipe, checkpoint, batch) for name, batch in batches.items()})
    save_file(arrays, folder / f"{recipe.name}.safetensors")
    gradients: dict[str, Array] = {}
    if recipe.name in DEFAULT_GOLDENS and not recipe.beside:
        gradients = flat("gradient", {name: _kept_gradients(checkpoint, batch) for name, batch in batches.items()})
        save_file(gradients, folder / f"{recipe.name}{GRADIENTS}")
    architecture = checkpoint.architecture.as_dict()
    digests = recipe.weights_digest(checkpoint), content_digest(arrays), content_digest(gradients) if gradients else ""
    return ManifestEntry(
        recipe.version,
        recipe.source,
        architecture,
        list(batches),
        *digests[:2],
        of_entry(recipe.version, architecture, list(batches), *digests),
        recipe.beside,
        digests[2],
    )


def _write_manifest(folder: Path, entries: Mapping[str, ManifestEntry]) -> None:
    text = json.dumps(msgspec.to_builtins({"schema": SCHEMA, "goldens": dict(entries)}), indent=2)
    (folder / MANIFEST).write_text(f"{text}\n", "utf-8")


def keep(own: Golden, folder: Path) -> Golden:
    """Write a golden of a local checkpoint (`from_directory`) to `folder` and return it as loaded from there.

    The golden has the name of the folder.

    Raises:
        UsageError: the folder is not empty, since goldens are never overwritten; or its name is that of a shipped golden.
    """
    assert own.folder is not None
    home, checkpoint = folder.resolve(), own.folder.resolve()
    recipe = saved(home.name, home, str(checkpoint), os.path.relpath(checkpoint, home), batches=own.batches)
    if recipe.name in manifest():
        raise UsageError(f"{folder}: a golden that is shipped is called {recipe.name!r}; call the folder otherwise")
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise UsageError(f"{folder} is there, and a golden is never written over; name a folder that is new, or remove it")
    make(folder, [recipe])
    return load_golden(folder)


def _kept(recipe: Recipe, checkpoint: Checkpoint, batch: Batch) -> dict[str, Array]:
    walk = Network(checkpoint.architecture, checkpoint.weights, batch).walk()
    return {name: np.array(value, order="C") for name, value in walk if recipe.keeps(name)}


def _kept_gradients(checkpoint: Checkpoint, batch: Batch) -> dict[str, Array]:
    """Return the gradients to store, named `SOURCE/NAME.grad` by the activation that the backward pass starts from."""
    networks = Network(checkpoint.architecture, checkpoint.weights, batch).backward_passes()
    walks = ((network.source, *step) for network in networks for step in network.walk())
    return {f"{source}/{key}": np.array(value, order="C") for source, key, value in walks if keeps_gradient(key)}


def main(arguments: Sequence[str] | None = None) -> None:
    """Store all shipped goldens, or the one named by `--only`."""
    parser = argparse.ArgumentParser(
        prog="python -m conformance.goldens.make", description="Store the shipped goldens in a folder, with their manifest."
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument(
        "--only", metavar="NAME", choices=RECIPES, help="make one golden, and keep the other entries of the folder's manifest"
    )
    options = parser.parse_args(arguments)
    if options.only:
        make_one(options.folder, RECIPES[options.only])
    else:
        make(options.folder)


if __name__ == "__main__":
    main()
