"""A checkpoint: an architecture and its parameters under Hugging Face's names; and how published checkpoints store them."""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

from conformance.errors import CheckpointError
from conformance.model.architecture import Architecture
from conformance.model.files import ALLOW_PICKLE, ARRAYS, open_safetensors, read_pickle, reading, scratch_folder
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


def content_digest(arrays: Mapping[str, npt.NDArray[Any]]) -> str:
    """Return the SHA-256 of the name, dtype, shape and little-endian bytes of every array, sorted by name.

    Files with the same tensors may differ in the order of their metadata, so tensors are digested rather than files.
    """
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.asarray(arrays[name])
        payload = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False)
        digest.update(f"{name}\0{array.dtype.str.lstrip('<=|')}\0{array.shape}\0".encode())
        digest.update(payload.reshape(-1).view(np.uint8).data)  # a view, not a copy
    return digest.hexdigest()


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


_Load = Callable[[str], Array]
_Cache = Callable[[_Load], _Load]


def cached_parameters(load: _Load) -> _Load:
    """Wrap a function from a name to a parameter so that it keeps as many parameters as `LAYERS_AT_ONCE` layers have."""
    return lru_cache(maxsize=LAYERS_AT_ONCE * LAYER_PARAMETERS)(load)


def rounded_weights(
    checkpoint: Checkpoint, dtype: str, cached: Callable[[_Load], _Load] = cached_parameters
) -> Mapping[str, Array]:
    """Return the parameters as a candidate of `dtype` holds them: each rounded to that format on access, held in float64.

    By default the parameters used last are cached, as many as `LAYERS_AT_ONCE` layers have, so that memory does not grow with
    depth; `cached` wraps the function that rounds one in another way.
    """
    target = format_named(dtype)
    return LazyWeights(checkpoint.weights, cached(lambda name: target.round(checkpoint.weights[name])))


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


SAFETENSORS, PICKLE = "model.safetensors", "pytorch_model.bin"

COPIES = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
"""Maps entries of published checkpoints that are copies of a parameter to the parameter that they must equal."""

BUFFERS = ("bert.embeddings.position_ids", "bert.embeddings.token_type_ids")
"""Entries of published checkpoints that are not parameters."""

ABSOLUTE_POSITIONS = "bert.embeddings.position_embeddings.weight"

_ROBERTA = {
    "roberta.": "bert.",
    "lm_head.dense.": "cls.predictions.transform.dense.",
    "lm_head.layer_norm.": "cls.predictions.transform.LayerNorm.",
    "lm_head.": "cls.predictions.",
}  # prefixes of a RoBERTa's parameter names

_PART = 2**15  # elements; torch uses one thread up to this size (at::internal::GRAIN_SIZE), which avoids synchronization

_FLOATS = ("F64", "F32", "F16", "BF16")


@dataclass(frozen=True)
class Stored:
    """One tensor of a file.

    Attributes:
        key: its name in the file.
        shape: its shape.
        kind: its format, by safetensors' name.
        load: function that reads the tensor.
    """

    key: str
    shape: tuple[int, ...]
    kind: str
    load: Callable[[], "torch.Tensor"]

    @property
    def array(self) -> Array:
        """The values in float64, converted by torch, since NumPy has no bfloat16."""
        return np.asarray(self.load().double().numpy())


def canonical_name(name: str) -> str:
    """Return Hugging Face's name as in `BertForPreTraining`: with the prefix `bert.` and LayerNorm parameters `weight` and `bias`.

    Example:
        >>> canonical_name("roberta.embeddings.LayerNorm.gamma"), canonical_name("lm_head.layer_norm.bias")
        ('bert.embeddings.LayerNorm.weight', 'cls.predictions.transform.LayerNorm.bias')
    """
    for own, name_of_bert in _ROBERTA.items():
        if name.startswith(own):
            name = name_of_bert + name.removeprefix(own)
    if name.endswith((".gamma", ".beta")):
        name = name.removesuffix(".gamma") + ".weight" if name.endswith("gamma") else name.removesuffix(".beta") + ".bias"
    return f"bert.{name}" if name.startswith(("embeddings.", "encoder.", "pooler.")) else name


def stored_parameters(folder: Path) -> dict[str, Stored]:
    """Return the tensors of `model.safetensors`, or otherwise of `pytorch_model.bin` if pickles are allowed, by canonical name.

    Raises:
        CheckpointError: there is no such file, or reading it is not allowed; a parameter occurs twice, is not floating-point, or is
            not finite.
    """
    file = _file(folder)
    with reading(file, "a file of parameters", CheckpointError):
        found = _pickled(file) if file.name == PICKLE else _safetensors(file)
    stored: dict[str, Stored] = {}
    for tensor in found:
        name = canonical_name(tensor.key)
        if name in stored:
            raise CheckpointError(f"{stored[name].key} and {tensor.key} are the same parameter, {name}; keep one")
        stored[name] = tensor
    _require_numbers(file, stored)
    return stored


def _file(folder: Path) -> Path:
    """Return the file of parameters in a directory; raises `CheckpointError` if there is none that may be read."""
    file, pickled = folder / SAFETENSORS, folder / PICKLE
    if file.is_file():
        return file
    if not pickled.is_file():
        raise CheckpointError(f"{file} does not exist; a checkpoint is a directory with config.json and {SAFETENSORS}")
    if os.environ.get(ALLOW_PICKLE) != "1":
        raise CheckpointError(
            f"{pickled} is a pickle, which may run any code when it is loaded, and there is no {SAFETENSORS} beside it; convert it "
            f"in Python:\n{conversion(pickled)}\nor say --allow-pickle, and its tensors alone are read (weights_only=True)"
        )
    return pickled


def conversion(pickled: Path) -> str:
    """Return two lines of Python that convert the parameters of a pickle to a safetensors file next to it."""
    return (
        "    from torch import load; from safetensors.torch import save_file\n"
        f"    save_file({{n: t.clone().contiguous() for n, t in load({str(pickled)!r}, 'cpu', weights_only=True).items()}}, "
        f"{str(pickled.with_name(SAFETENSORS))!r})"
    )


def _safetensors(file: Path) -> list[Stored]:
    reader = open_safetensors(file, "pt", ARRAYS)
    headers = {key: reader.get_slice(key) for key in reader.keys()}  # noqa: SIM118 -- no mapping
    return [Stored(k, tuple(h.get_shape()), h.get_dtype(), partial(reader.get_tensor, k)) for k, h in headers.items()]


def _pickled(file: Path) -> list[Stored]:
    import torch

    kinds = dict(zip((torch.float64, torch.float32, torch.float16, torch.bfloat16), _FLOATS, strict=True))

    return [Stored(k, tuple(t.shape), kinds.get(t.dtype, str(t.dtype)), t.detach) for k, t in read_pickle(file).items()]


def _is_finite(tensor: "torch.Tensor") -> bool:
    """Return whether all elements are finite, checked part by part to avoid temporaries several times the size of the tensor."""
    import torch

    return all(bool(part.isfinite().all()) for part in torch.split(tensor.reshape(-1), _PART))


def _require_numbers(file: Path, stored: Mapping[str, Stored]) -> None:
    """Raise `CheckpointError` that lists every parameter that is not floating-point or that contains NaN or infinity."""
    parameters = {name: tensor for name, tensor in stored.items() if name not in BUFFERS}
    wrong = [f"{tensor.key} is {tensor.kind}" for tensor in parameters.values() if tensor.kind not in _FLOATS]
    if wrong:
        raise CheckpointError(f"{file} has parameters that are no floating-point numbers: {', '.join(wrong)}")
    wrong = [name for name, tensor in parameters.items() if not _is_finite(tensor.load())]
    if wrong:
        raise CheckpointError(f"parameters that are not finite: {', '.join(wrong)}; repair the checkpoint")
