"""A checkpoint: an architecture and its parameters under Hugging Face's names."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
from safetensors.numpy import save_file

from conformance.errors import CheckpointError
from conformance.model.architecture import Architecture
from conformance.model.digest import content_digest
from conformance.model.files import scratch_folder
from conformance.numerics.formats import Array, format_named

if TYPE_CHECKING:
    import torch


LAYERS_AT_ONCE = 4  # the judged layer, and those a fault may use instead: its neighbour, the first, the one mirrored in depth
LAYER_PARAMETERS = 16  # weight and bias of the six linear layers and two norms of an encoder layer


class LazyWeights(Mapping[str, Array]):
    """A mapping from names to parameters that loads each parameter on access."""

    def __init__(self, names: Iterable[str], load: Callable[[str], Array]) -> None:
        """Initialize the mapping; `load(name)` returns a float64 array."""
        self._names, self._load = dict.fromkeys(names), load

    def __getitem__(self, name: str) -> Array:
        """Load and return a parameter; raises `KeyError` for a name that the architecture does not have."""
        if name not in self._names:
            raise KeyError(name)
        return self._load(name)

    def __contains__(self, name: object) -> bool:
        """Return whether there is a parameter of this name, without loading it."""
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names."""
        return iter(self._names)

    def __len__(self) -> int:
        """Return the number of parameters."""
        return len(self._names)


def own_copies(checkpoint: "Checkpoint") -> "Checkpoint":
    """Return a checkpoint for a candidate that copies each parameter on access, so that writes do not reach the oracle.

    A read-only array alone is no protection, because `torch.from_numpy` ignores the flag.
    """

    def copy(name: str) -> Array:
        found = np.array(checkpoint.weights[name])
        found.flags.writeable = False
        return found

    return Checkpoint(checkpoint.architecture, LazyWeights(checkpoint.weights, copy))


def read_only(weights: Mapping[str, Array]) -> Mapping[str, Array]:
    """Mark the arrays as read-only, in place, and return them as a read-only mapping."""
    for array in weights.values():
        array.flags.writeable = False
    return MappingProxyType(dict(weights))


@dataclass(frozen=True)
class Checkpoint:
    """The architecture and parameters from which a candidate prepares itself.

    Attributes:
        architecture: sizes and switches under Hugging Face's config names.
        weights: read-only float64 NumPy arrays by Hugging Face's names (`bert.…`, `cls.…`, `classifier.…`), loaded on access.

    Example:
        >>> checkpoint = load_golden("tiny").checkpoint
        >>> checkpoint.weights["bert.embeddings.word_embeddings.weight"].shape
        (96, 32)
        >>> checkpoint.state_dict("bfloat16")["bert.pooler.dense.bias"].dtype
        torch.bfloat16
    """

    architecture: Architecture
    weights: Mapping[str, Array] = field(repr=False)

    def state_dict(self, dtype: "str | torch.dtype" = "float32", device: "str | torch.device" = "cpu") -> "dict[str, torch.Tensor]":
        """Return the parameters as torch tensors, rounded to `dtype`, on `device`.

        Both arguments may be given as names or as torch's own objects.
        """
        import torch

        kind = getattr(torch, dtype) if isinstance(dtype, str) else dtype
        return {name: torch.from_numpy(np.array(value)).to(device=device, dtype=kind) for name, value in self.weights.items()}

    @cached_property
    def digest(self) -> str:
        """The SHA-256 content digest of the parameters."""
        return content_digest(self.weights)

    @cached_property
    def path(self) -> Path:
        """A safetensors file with the parameters in float64, under the names of `weights`.

        The file is written to a temporary folder on first access and removed when the process ends.
        """
        path = scratch_folder() / "model.safetensors"
        self.write(path)
        return path

    def write(self, path: Path) -> None:
        """Write the parameters to a safetensors file in float64, under the names of `weights`."""
        save_file({k: np.ascontiguousarray(v) for k, v in self.weights.items()}, path)


def rounded_weights(checkpoint: Checkpoint, dtype: str) -> Mapping[str, Array]:
    """Return the parameters as a candidate of `dtype` holds them: each rounded to that format on access, held in float64.

    The parameters used last are cached, as many as `LAYERS_AT_ONCE` layers have, so that memory does not grow with depth.
    """
    target = format_named(dtype)
    return LazyWeights(checkpoint.weights, cached_parameters(lambda name: target.round(checkpoint.weights[name])))


def cached_parameters(load: Callable[[str], Array]) -> Callable[[str], Array]:
    """Wrap a function from a name to a parameter so that it keeps as many parameters as `LAYERS_AT_ONCE` layers have."""
    return lru_cache(maxsize=LAYERS_AT_ONCE * LAYER_PARAMETERS)(load)


def check_parameters(expected: Mapping[str, tuple[int, ...]], found: Mapping[str, tuple[int, ...]]) -> None:
    """Check that every parameter is present with its shape and that there are no others.

    Raises:
        CheckpointError: some are missing, unexpected or of the wrong shape; the message lists all of them.
    """
    wrong = {n: (expected[n], found[n]) for n in expected.keys() & found.keys() if expected[n] != found[n]}
    lines = [f"missing: {n} {expected[n]}" for n in sorted(expected.keys() - found.keys())]
    lines += [f"unexpected: {n} {found[n]}" for n in sorted(found.keys() - expected.keys())]
    lines += [f"wrong shape: {n} is {is_}, should be {should}" for n, (should, is_) in sorted(wrong.items())]
    if lines:
        raise CheckpointError("parameters do not fit the architecture:\n  " + "\n  ".join(lines))
