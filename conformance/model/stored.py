"""The parameters stored in a local directory, under the names and in the file formats in which checkpoints are published."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from conformance.errors import CheckpointError
from conformance.model.files import ALLOW_PICKLE, ARRAYS, open_safetensors, read_pickle, reading
from conformance.numerics.formats import Array

if TYPE_CHECKING:
    import torch

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
