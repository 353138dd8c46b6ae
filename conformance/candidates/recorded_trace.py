r"""Recorded traces as candidates. Their files are safetensors with inputs, activations and, as metadata, their origin.

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

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from safetensors.numpy import save_file

from conformance.candidates.arrays import Described, described, held_in
from conformance.candidates.lookup import TRACE
from conformance.candidates.registry import Isolated
from conformance.errors import ConformanceError, NotApplicable, RegistrationError, UsageError
from conformance.goldens.custom_golden import golden_of, open_golden
from conformance.goldens.golden import Golden, nested, stored_arrays
from conformance.model.architecture import FEATURES, Architecture
from conformance.model.batch import Batch, TorchBatch
from conformance.model.checkpoint import Checkpoint, content_digest
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


@dataclass(frozen=True)
class RecordedTrace(Isolated):
    """A candidate whose activations were recorded in a file; the module describes the format.

    It is judged on the weights and inputs that it was recorded on, under the arithmetics of the device named in its metadata, which
    need not exist on this machine. Checks that need other inputs or a backward pass are skipped.

    Attributes:
        path: the file, written by `bert-conformance trace NAME -o FILE.safetensors` or by any other program.

    Raises:
        UsageError: raised by the property `recorded` if the file is not a recorded trace.
        RegistrationError: raised by the methods if the file is not a recorded trace, or was recorded on other weights.

    Example:
        >>> RecordedTrace("trace.safetensors").name
        'trace.safetensors'
    """

    path: Path | str
    features = tuple(FEATURES)  # the recorded network may have any of them

    @property
    def name(self) -> str:
        """The name used in results."""
        return Path(self.path).name

    @cached_property
    def recorded(self) -> Recorded:
        """The content of the file."""
        return read(Path(self.path))

    @property
    def _registered(self) -> Recorded:
        """The content of the file; raises `RegistrationError` instead of `UsageError`."""
        try:
            return self.recorded
        except UsageError as error:
            raise RegistrationError(str(error)) from error

    def supports(self, architecture: Architecture, device: str, dtype: str) -> str | None:
        """Return the reason why a case is not supported: another format or kind of device than recorded; else None."""
        source = self._registered.source
        if source.dtype != dtype:
            return f"it was recorded in {source.dtype}, not in {dtype}"
        if source.device.partition(":")[0] != device.partition(":")[0]:
            return f"it was recorded on {source.device}, not on {device}: ask for that device"
        return None

    def prepare(self, checkpoint: Checkpoint, device: str, dtype: str) -> Callable[[TorchBatch], Mapping[str, Described]]:
        """Return a function that maps a batch to its recorded activations, and raises `NotApplicable` for a batch not in the file.

        Raises:
            RegistrationError: the trace was recorded on other weights.
        """
        require_its_checkpoint(self._registered, checkpoint, RegistrationError)
        activations = self.recorded.activations
        by_digest = {digest: activations[name] for name, digest in digests_of(self.recorded.batches).items()}

        def recorded_of(batch: Any) -> dict[str, Described]:
            found = by_digest.get(digest_of(batch.numpy()))
            if found is None:
                raise NotApplicable(f"it is a recorded trace, which holds {', '.join(activations)} and no other batch")
            return {name: held_in(dtype, values) for name, values in found.items()}

        return recorded_of


def trace_of(implementation: object) -> RecordedTrace | None:
    """Return the candidate as a recorded trace if it is one, or the path of one; None for any other candidate."""
    if isinstance(implementation, str):
        return RecordedTrace(implementation) if implementation.endswith(TRACE) and Path(implementation).is_file() else None
    return implementation if isinstance(implementation, RecordedTrace) else None


def recorded_on(recorded: Recorded, network: Golden | None = None) -> Golden:
    """Return the golden of a trace.

    The network is the golden named in the metadata, unless one with the checkpoint of the trace is given.

    Raises:
        UsageError: the trace was recorded on another checkpoint, or its inputs do not match the checkpoint.
        DependencyMissingError: the network comes from a package that is not installed.
    """
    golden = network or open_golden(recorded.source.golden)
    require_its_checkpoint(recorded, golden.checkpoint)
    if digests_of(recorded.batches) == digests_of(golden.batches):
        return golden
    fitting = golden_of(golden.name, golden.checkpoint, recorded.batches)
    return replace(fitting, origin=golden.origin or golden.name, folder=golden.folder, files=golden.files)


def require_its_checkpoint(recorded: Recorded, checkpoint: Checkpoint, error: type[ConformanceError] = UsageError) -> None:
    """Raise `error` if the weights of a checkpoint differ from those that the trace was recorded on."""
    source = recorded.source
    if source.checkpoint != checkpoint.digest:
        raise error(
            f"{source.name} was recorded on {source.golden}, on weights with the digest {source.checkpoint}, and these have "
            f"{checkpoint.digest}: name the network that it was recorded on"
        )
