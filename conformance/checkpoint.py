"""A checkpoint: an architecture and its parameters under Hugging Face's names."""

import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from conformance.activations import parameter_shapes
from conformance.architecture import Architecture
from conformance.errors import CheckpointError, FixtureError
from conformance.numerics.formats import Array, format_named

if TYPE_CHECKING:
    import torch


LAYER_PARAMETERS = 16  # of one encoder layer: weight and bias of six products and two norms


class LazyWeights(Mapping[str, Array]):
    """Parameters by name, each loaded when asked for."""

    def __init__(self, names: Iterable[str], load: Callable[[str], Array]) -> None:
        """`load(name)` returns a float64 array."""
        self._names, self._load = dict.fromkeys(names), load

    def __getitem__(self, name: str) -> Array:
        """Load one; `KeyError` for a name that the architecture does not have."""
        if name not in self._names:
            raise KeyError(name)
        return self._load(name)

    def __iter__(self) -> Iterator[str]:
        """The names."""
        return iter(self._names)

    def __len__(self) -> int:
        """How many."""
        return len(self._names)


@dataclass(frozen=True)
class Checkpoint:
    """What a candidate is given to prepare itself from.

    Attributes:
        architecture: sizes and switches under Hugging Face's config names.
        weights: float64 NumPy arrays by Hugging Face's names (`bert.…`, `cls.…`, `classifier.…`), loaded when asked for.
    """

    architecture: Architecture
    weights: Mapping[str, Array]
    _source: Path | None = field(default=None, repr=False)

    def state_dict(self, dtype: str = "float32", device: str = "cpu") -> "dict[str, torch.Tensor]":
        """The parameters in torch, rounded to `dtype`, on `device`."""
        import torch

        kind = getattr(torch, dtype)
        return {name: torch.from_numpy(np.array(value)).to(device=device, dtype=kind) for name, value in self.weights.items()}

    @cached_property
    def path(self) -> Path:
        """A safetensors file with the parameters; written to a temporary folder where there is none yet."""
        if self._source is not None:
            return self._source
        path = Path(tempfile.mkdtemp(prefix="bert-conformance-")) / "model.safetensors"
        save_file({k: np.ascontiguousarray(v) for k, v in self.weights.items()}, path)
        return path


def rounded_weights(checkpoint: Checkpoint, dtype: str) -> Mapping[str, Array]:
    """The parameters as a candidate of `dtype` holds them: each rounded to that format when asked for, exact in float64.

    The last few are kept, a layer's worth, so that memory does not grow with depth.
    """
    target = format_named(dtype)
    return LazyWeights(checkpoint.weights, lru_cache(maxsize=LAYER_PARAMETERS)(lambda name: target.round(checkpoint.weights[name])))


def canonical_name(name: str) -> str:
    """Hugging Face's name as in `BertForPreTraining`: with the `bert.` prefix, LayerNorms with `weight` and `bias`."""
    if name.endswith((".gamma", ".beta")):
        name = name.removesuffix(".gamma") + ".weight" if name.endswith("gamma") else name.removesuffix(".beta") + ".bias"
    return f"bert.{name}" if name.startswith(("embeddings.", "encoder.", "pooler.")) else name


# Entries of published checkpoints that are no parameters, or copies of one (the tied decoder).
_REDUNDANT = ("bert.embeddings.position_ids", "cls.predictions.decoder.weight", "cls.predictions.decoder.bias")


def load_directory(folder: Path) -> Checkpoint:
    """A local Hugging Face BERT directory: `config.json` and `model.safetensors`.

    Raises:
        CheckpointError: a file is missing, or a parameter is missing, unexpected or of the wrong shape; all are listed.
    """
    config_file, weights_file = folder / "config.json", folder / "model.safetensors"
    for file in (config_file, weights_file):
        if not file.is_file():
            raise CheckpointError(f"{file} does not exist; a checkpoint is a directory with config.json and model.safetensors")
    config = json.loads(config_file.read_text("utf-8"))
    try:
        reader: Any = safe_open(weights_file, "numpy")
    except Exception as error:  # safetensors raises its own untyped error for a damaged header
        raise FixtureError(f"{weights_file} cannot be read: {error}") from error
    stored = {canonical_name(key): key for key in reader.keys()}  # noqa: SIM118 -- safe_open is no mapping
    heads = tuple(
        head for head, mark in (("pretraining", "cls.predictions.bias"), ("classification", "classifier.weight")) if mark in stored
    )
    labels = len(config["id2label"]) if "id2label" in config else 2
    switches = {"heads": heads, "pooler": "bert.pooler.dense.weight" in stored, "num_labels": labels}
    architecture = Architecture.from_config(config, **switches)
    shapes = parameter_shapes(architecture)
    found = {name: tuple(reader.get_slice(key).get_shape()) for name, key in stored.items()}
    check_parameters(shapes, {n: s for n, s in found.items() if n not in _REDUNDANT})
    weights = LazyWeights(shapes, lambda name: np.asarray(reader.get_tensor(stored[name]), np.float64))
    return Checkpoint(architecture, weights, weights_file)


def check_parameters(expected: Mapping[str, tuple[int, ...]], found: Mapping[str, tuple[int, ...]]) -> None:
    """Every parameter exactly once and of its shape; raises one `CheckpointError` that lists all that is wrong."""
    wrong = {n: (expected[n], found[n]) for n in expected.keys() & found.keys() if expected[n] != found[n]}
    lines = [f"missing: {n} {expected[n]}" for n in sorted(expected.keys() - found.keys())]
    lines += [f"unexpected: {n} {found[n]}" for n in sorted(found.keys() - expected.keys())]
    lines += [f"wrong shape: {n} is {is_}, should be {should}" for n, (should, is_) in sorted(wrong.items())]
    if lines:
        raise CheckpointError("parameters do not fit the architecture:\n  " + "\n  ".join(lines))
