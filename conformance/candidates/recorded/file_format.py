r"""The file format of a recorded trace: safetensors with inputs, activations and, as metadata, their origin.

The following code writes such a file without this package, after a forward pass of one batch, named `mine` here:

    import hashlib
    from safetensors.numpy import save_file

    def digest(arrays):
        found = hashlib.sha256()
        for name in sorted(arrays):
            array = arrays[name]
            found.update(f"{name}\0{array.dtype.str.lstrip('<=|')}\0{array.shape}\0".encode() + array.tobytes())
        return found.hexdigest()

    inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
    activations = {"embeddings.LayerNorm": ..., "encoder.layer.0.output.LayerNorm": ...}
    metadata = {
        "name": "my-bert",
        "golden": "tiny",
        "checkpoint": digest(weights),
        "batch/mine": digest(inputs),
        "dtype": "float32",
        "device": "cpu",
        "library": "my-library 1.2",
    }
    tensors = {f"batch/mine/{name}": array for name, array in inputs.items()}
    tensors |= {f"activation/mine/{name}": array for name, array in activations.items()}
    save_file(tensors, "trace.safetensors", metadata)

`weights` are all parameters as little-endian float64 arrays by Hugging Face's names as in
BertForPreTraining; those of the golden `tiny` are in the file `conformance.load_golden("tiny").checkpoint.path`.
Inputs are int64 (`encoder_hidden_states`, `class_targets`: float64). Activations have the names and shapes
that `bert-conformance trace golden:tiny` prints, and are stored in `dtype` (F64, F32, BF16, F16), or in a
wider format that represents the same numbers. `device` is a torch device string; activations are judged under
the arithmetics of this device, on any machine. `golden` is the name or folder of a golden, or `checkpoint:DIR`;
`run --checkpoint DIR` names another folder with the same weights. A file may hold several batches.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from safetensors.numpy import save_file

from conformance.candidates.arrays import described
from conformance.errors import UsageError
from conformance.goldens.golden import nested, stored_arrays
from conformance.model.batch import Batch
from conformance.model.checkpoint import content_digest
from conformance.model.files import open_safetensors, reading
from conformance.names import printable
from conformance.numerics.formats import Array, Captured, Format, format_named

_BATCH = "batch/"  # prefix of the metadata keys of the batches' digests
_EXPLAINED = "`bert-conformance explain trace` shows how such a file is written"


class TraceOrigin(msgspec.Struct, frozen=True):
    """The origin of a trace, from its metadata.

    Attributes:
        name: name of the implementation in results.
        golden: the network, in a form accepted by `open_golden`.
        checkpoint: digest of the network's parameters.
        dtype: name of a format.
        device: torch device string.
        library: the library that computed the activations, and its version.
    """

    name: str
    golden: str
    checkpoint: str
    dtype: str
    device: str
    library: str


@dataclass(frozen=True)
class Recorded:
    """The content of a trace: `activations` by batch and name, in float64, or in float32 if that represents the format exactly."""

    source: TraceOrigin
    batches: Mapping[str, Batch] = field(repr=False)
    activations: Mapping[str, Mapping[str, Captured]] = field(repr=False)


def digest_of(batch: Batch) -> str:
    """Return the digest that identifies a batch."""
    return content_digest(batch.arrays())


def digests_of(batches: Mapping[str, Batch]) -> dict[str, str]:
    """Return the digest of each batch by its name."""
    return {name: digest_of(batch) for name, batch in batches.items()}


def write(source: TraceOrigin, batches: Mapping[str, Batch], activations: Mapping[str, Mapping[str, Array]], path: Path) -> None:
    """Write the file of a trace, with activations stored in the format `source.dtype`."""
    stored = format_named(source.dtype).stored
    values = {batch: {name: stored(value) for name, value in found.items()} for batch, found in activations.items()}
    metadata = msgspec.structs.asdict(source) | {f"{_BATCH}{name}": digest for name, digest in digests_of(batches).items()}
    arrays: dict[str, Any] = stored_arrays(batches, {}) | stored_arrays({}, values)  # type: ignore[arg-type]  # float32, too
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({key: np.array(array, order="C") for key, array in arrays.items()}, path, metadata)


def read(path: Path) -> Recorded:
    """Read the file of a trace.

    Raises:
        UsageError: the file is not a trace: metadata or tensors are missing, unexpected, or inconsistent with the metadata.
    """
    with reading(path, "a trace", UsageError):
        with open_safetensors(path, "pt") as file:
            metadata = file.metadata() or {}
            keys = list(file.keys())
            source = _source(path, metadata)
            foreign = [key for key in keys if key.count("/") < 2 or not key.startswith(("batch/", "activation/"))]
            if foreign:
                raise UsageError(f"{path}: {printable(foreign[0])!r}: expected batch/BATCH/INPUT or activation/BATCH/ACTIVATION")
            stored = {key: described(file.get_tensor(key)) for key in keys}
        inputs = nested({key: found.read() for key, found in stored.items() if key.startswith("batch/")}, "batch")
        batches = {name: Batch.of(arrays) for name, arrays in inputs.items()}
        _require_digests(path, batches, metadata)
        target = format_named(source.dtype)
        values = {key: _of_format(path, key, found, target) for key, found in stored.items() if key.startswith("activation/")}
        activations: Mapping[str, Mapping[str, Captured]] = nested(values, "activation")
        without = sorted(batches.keys() ^ activations.keys())
        if without or not batches:
            raise UsageError(
                f"{path}: expected inputs and activations of the same batches; {', '.join(without) or 'there are none'}"
            )
        return Recorded(source, batches, activations)


def _source(path: Path, metadata: Mapping[str, str]) -> TraceOrigin:
    lacking = [name for name in TraceOrigin.__struct_fields__ if not metadata.get(name)]
    if lacking:
        raise UsageError(f"{path} is no recorded trace: its metadata lack {', '.join(lacking)}; {_EXPLAINED}")
    return msgspec.convert(metadata, TraceOrigin)


def _require_digests(path: Path, batches: Mapping[str, Batch], metadata: Mapping[str, str]) -> None:
    """Raise `UsageError` if the digest of a batch is missing or differs from that of the inputs in the file."""
    for name, found in digests_of(batches).items():
        stated = metadata.get(f"{_BATCH}{name}")
        if stated is None:
            raise UsageError(f"{path}: its metadata lack {_BATCH}{name}, the digest of that batch's inputs; {_EXPLAINED}")
        if stated != found:
            raise UsageError(
                f"{path}: the inputs of batch {name} have the digest {found}, and the metadata say {printable(stated)}: they are "
                "not those that it was recorded on"
            )


def _of_format(path: Path, key: str, found: Any, target: Format) -> Captured:
    """Return the values of an activation; raise `UsageError` if a value is not representable in the format `target`."""
    values: Captured = found.read()
    if values.dtype.kind != "f":
        raise UsageError(f"{path}: {printable(key)} is of {found.dtype}, expected {target.name}")
    if found.dtype != target.name:
        wide = np.asarray(values, np.float64)
        other = np.argwhere((target.round(wide) != wide) & np.isfinite(wide))
        if other.size:
            index = tuple(map(int, other[0]))
            raise UsageError(
                f"{path}: {printable(key)}{list(index)} is {wide[index]:.17g}, stored in {found.dtype}, which is no number of "
                f"{target.name}, the dtype that the metadata name: store what was computed, in the format in which it was"
            )
    return values
