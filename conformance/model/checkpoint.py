"""A checkpoint: an architecture and its parameters under Hugging Face's names."""

import atexit
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cached_property, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.numpy import save_file

from conformance.errors import CheckpointError, UnsupportedArchitectureError
from conformance.files import open_safetensors, read_json, reading
from conformance.model.activations import parameter_shapes
from conformance.model.architecture import HEADS, Architecture
from conformance.model.digest import content_digest
from conformance.numerics.formats import Array, format_named

if TYPE_CHECKING:
    import torch


LAYERS_AT_ONCE = 4  # a layer's own, and those that a mistake takes in their place: its neighbour's, the first's, the mirrored one's
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


def own_copies(checkpoint: "Checkpoint") -> "Checkpoint":
    """The checkpoint for a candidate: each parameter is a copy, so that nothing that is written into it reaches the oracle.

    A read-only array is no protection: `torch.from_numpy` ignores the flag.
    """

    def copy(name: str) -> Array:
        found = np.array(checkpoint.weights[name])
        found.flags.writeable = False
        return found

    return Checkpoint(checkpoint.architecture, LazyWeights(checkpoint.weights, copy))


def read_only(weights: Mapping[str, Array]) -> Mapping[str, Array]:
    """The same arrays, flagged as read-only."""
    for array in weights.values():
        array.flags.writeable = False
    return MappingProxyType(dict(weights))


@dataclass(frozen=True)
class Checkpoint:
    """What a candidate is given to prepare itself from.

    Attributes:
        architecture: sizes and switches under Hugging Face's config names.
        weights: float64 NumPy arrays by Hugging Face's names (`bert.…`, `cls.…`, `classifier.…`), loaded when asked for, read-only.

    Example:
        >>> checkpoint = load_golden("tiny").checkpoint
        >>> checkpoint.weights["bert.embeddings.word_embeddings.weight"].shape
        (96, 32)
        >>> checkpoint.state_dict("bfloat16")["bert.pooler.dense.bias"].dtype
        torch.bfloat16
    """

    architecture: Architecture
    weights: Mapping[str, Array] = field(repr=False)

    def state_dict(self, dtype: str = "float32", device: str = "cpu") -> "dict[str, torch.Tensor]":
        """The parameters in torch, rounded to `dtype`, on `device`."""
        import torch

        kind = getattr(torch, dtype)
        return {name: torch.from_numpy(np.array(value)).to(device=device, dtype=kind) for name, value in self.weights.items()}

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the parameters."""
        return content_digest(self.weights)

    @cached_property
    def path(self) -> Path:
        """A safetensors file with the parameters, float64, under the names of `weights`.

        It lies in a temporary folder, is written when asked for, and is removed when the process ends.
        """
        folder = tempfile.mkdtemp(prefix="bert-conformance-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        path = Path(folder) / "model.safetensors"
        save_file({k: np.ascontiguousarray(v) for k, v in self.weights.items()}, path)
        return path


def rounded_weights(checkpoint: Checkpoint, dtype: str) -> Mapping[str, Array]:
    """The parameters as a candidate of `dtype` holds them: each rounded to that format when asked for, exact in float64.

    Those used last are kept, `LAYERS_AT_ONCE` layers' worth, so that memory does not grow with depth.
    """
    target, size = format_named(dtype), LAYERS_AT_ONCE * LAYER_PARAMETERS
    return LazyWeights(checkpoint.weights, lru_cache(maxsize=size)(lambda name: target.round(checkpoint.weights[name])))


def canonical_name(name: str) -> str:
    """Hugging Face's name as in `BertForPreTraining`: with the `bert.` prefix, LayerNorms with `weight` and `bias`."""
    if name.endswith((".gamma", ".beta")):
        name = name.removesuffix(".gamma") + ".weight" if name.endswith("gamma") else name.removesuffix(".beta") + ".bias"
    return f"bert.{name}" if name.startswith(("embeddings.", "encoder.", "pooler.")) else name


# Entries of published checkpoints that are no parameters, or copies of one, and the parameter that they must be equal to.
COPIES = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
_FLOATS = ("F64", "F32", "F16", "BF16")
_BUFFERS = ("bert.embeddings.position_ids", "bert.embeddings.token_type_ids")

_HEAD_MARKS = {
    "masked_lm": "cls.predictions.transform.dense.weight",
    "next_sentence": "cls.seq_relationship.weight",
    "classification": "classifier.weight",
}


def load_directory(folder: Path | str) -> Checkpoint:
    """A local Hugging Face BERT directory: `config.json` and `model.safetensors`, with or without prefix, heads, old norm names.

    Raises:
        CheckpointError: a file is missing or cannot be read; or parameters are missing, unexpected, of the wrong shape, given
            twice, or copies that differ; all are listed.
        UnsupportedArchitectureError: there are no equations for it.

    Example:
        >>> load_directory("no-such-folder")
        Traceback (most recent call last):
        ...
        conformance.errors.CheckpointError: no-such-folder is not a local folder
    """
    folder = Path(folder)
    with reading(folder, "a checkpoint", CheckpointError):
        return _loaded(folder)


def _loaded(folder: Path) -> Checkpoint:
    config, reader = _config(folder / "config.json"), _reader(folder / "model.safetensors")
    stored = _canonical(reader.keys())
    heads = _heads(stored)
    labels = reader.get_slice(stored["classifier.weight"]).get_shape()[0] if "classification" in heads else 2
    switches = {"heads": heads, "pooler": "bert.pooler.dense.weight" in stored, "num_labels": labels}
    architecture = Architecture.from_config(config, **switches)
    found = {name: tuple(reader.get_slice(key).get_shape()) for name, key in stored.items()}
    copies = {n: of for n, of in COPIES.items() if n in stored and of in stored} if "masked_lm" in heads else {}
    shapes = parameter_shapes(architecture)
    check_parameters(shapes, {n: s for n, s in found.items() if n not in _BUFFERS and n not in copies})

    _require_finite(reader, stored)

    def load(name: str) -> Array:
        return np.asarray(_float64(reader, stored[name]))

    untied = [f"{n} differs from {of}" for n, of in copies.items() if not np.array_equal(load(n), load(of))]
    if untied:
        raise CheckpointError(f"the decoder is not tied, and the equations tie it: {', '.join(untied)}")
    return Checkpoint(architecture, LazyWeights(shapes, load))


def _heads(stored: Collection[str]) -> tuple[str, ...]:
    """The heads whose parameters are stored: a decoder without a transform, and a pair's logits without a pooler, are plain."""
    found = {head for head, mark in _HEAD_MARKS.items() if mark in stored}
    if "masked_lm" not in found and "cls.predictions.decoder.weight" in stored:
        found.add("plain_masked_lm")
    if "next_sentence" in found and "bert.pooler.dense.weight" not in stored:
        found = found - {"next_sentence"} | {"plain_next_sentence"}
    return tuple(head for head in HEADS if head in found)


def _config(file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise CheckpointError(f"{file} does not exist; a checkpoint is a directory with config.json and model.safetensors")
    with reading(file, "a configuration", CheckpointError):
        config = read_json(file, dict[str, Any])
    required = [f.name for f in fields(Architecture) if f.default is MISSING]
    missing = [name for name in required if name not in config]
    if missing:
        raise CheckpointError(f"{file} lacks {', '.join(missing)}")
    kind = config.get("model_type", "bert")
    if kind != "bert":
        raise UnsupportedArchitectureError(f"{file} is of a {kind!r:.40}, and the equations are those of 'bert'")
    if config.get("is_decoder"):
        raise UnsupportedArchitectureError(f"{file} is of a decoder, and the equations are those of an encoder")
    return config


def _reader(file: Path) -> Any:
    if not file.is_file():
        raise CheckpointError(f"{file} does not exist; a checkpoint is a directory with config.json and model.safetensors")
    with reading(file, "a file of parameters", CheckpointError):
        reader = open_safetensors(file, "pt")
        kinds = {key: reader.get_slice(key).get_dtype() for key in reader.keys()}  # noqa: SIM118 -- no mapping
    wrong = [f"{key} is {kind}" for key, kind in kinds.items() if kind not in _FLOATS and canonical_name(key) not in _BUFFERS]
    if wrong:
        raise CheckpointError(f"{file} has parameters that are no floating-point numbers: {', '.join(wrong)}")
    return reader


def _require_finite(reader: Any, stored: Mapping[str, str]) -> None:
    """Raise `CheckpointError` with every parameter that holds NaN or an infinity: no result of it could be judged."""
    wrong = [name for name, key in stored.items() if not bool(reader.get_tensor(key).isfinite().all())]
    if wrong:
        raise CheckpointError(f"parameters that are not finite: {', '.join(wrong)}; repair the checkpoint")


def _float64(reader: Any, key: str) -> Array:
    """Through torch, since NumPy has no bfloat16."""
    return np.asarray(reader.get_tensor(key).double().numpy())


def _canonical(keys: Iterable[str]) -> dict[str, str]:
    """Stored names by canonical ones; raises `CheckpointError` where two are brought to the same."""
    stored: dict[str, str] = {}
    for key in keys:
        name = canonical_name(key)
        if name in stored:
            raise CheckpointError(f"{stored[name]} and {key} are the same parameter, {name}; keep one")
        stored[name] = key
    return stored


def check_parameters(expected: Mapping[str, tuple[int, ...]], found: Mapping[str, tuple[int, ...]]) -> None:
    """Every parameter exactly once and of its shape; raises one `CheckpointError` that lists all that is wrong."""
    wrong = {n: (expected[n], found[n]) for n in expected.keys() & found.keys() if expected[n] != found[n]}
    lines = [f"missing: {n} {expected[n]}" for n in sorted(expected.keys() - found.keys())]
    lines += [f"unexpected: {n} {found[n]}" for n in sorted(found.keys() - expected.keys())]
    lines += [f"wrong shape: {n} is {is_}, should be {should}" for n, (should, is_) in sorted(wrong.items())]
    if lines:
        raise CheckpointError("parameters do not fit the architecture:\n  " + "\n  ".join(lines))
