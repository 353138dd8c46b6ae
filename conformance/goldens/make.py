"""Making the goldens, and verifying those that are stored."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from conformance.batch import Batch
from conformance.checkpoint import Checkpoint
from conformance.goldens.digest import content_digest
from conformance.goldens.golden import stored_arrays
from conformance.goldens.recipe import Recipe
from conformance.goldens.recipes import RECIPES
from conformance.numerics.formats import Array
from conformance.oracle import Network


def make(folder: Path) -> None:
    """Write every golden and the manifest into `folder`."""
    entries = {}
    for name, recipe in RECIPES.items():
        batches, checkpoint = recipe.batches(), recipe.checkpoint()
        arrays = stored_arrays(batches, {b: _kept(recipe, checkpoint, batch) for b, batch in batches.items()})
        save_file(arrays, folder / f"{name}.safetensors")
        entries[name] = _entry(recipe, batches, content_digest(arrays))
    (folder / "manifest.json").write_text(json.dumps({"schema": 1, "goldens": entries}, indent=2) + "\n", "utf-8")


def _kept(recipe: Recipe, checkpoint: Checkpoint, batch: Batch) -> dict[str, Array]:
    walk = Network(checkpoint.architecture, checkpoint.weights, batch).walk()
    return {name: np.array(value, order="C") for name, value in walk if recipe.keeps(name)}


def _entry(recipe: Recipe, batches: Mapping[str, Batch], stored_digest: str) -> dict[str, Any]:
    return {
        "version": recipe.version,
        "source": recipe.source,
        "architecture": recipe.checkpoint().architecture.as_dict(),
        "batches": list(batches),
        "weights_digest": recipe.weights_digest(),
        "stored_digest": stored_digest,
    }
