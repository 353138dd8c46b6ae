"""A recorded trace as a candidate, and the golden on which it is judged: the network that it names, with the inputs in its file."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from conformance.candidates.arrays import Described, held_in
from conformance.candidates.lookup import TRACE
from conformance.candidates.recorded.file_format import Recorded, digest_of, digests_of, read
from conformance.candidates.registry import Isolated
from conformance.errors import NotApplicable, RegistrationError, UsageError
from conformance.goldens.custom_golden import golden_of, open_golden
from conformance.goldens.golden import Golden
from conformance.model.architecture import FEATURES, Architecture
from conformance.model.batch import TorchBatch
from conformance.model.checkpoint import Checkpoint


@dataclass(frozen=True)
class RecordedTrace(Isolated):
    """A candidate whose activations were recorded in a file; `conformance.candidates.recorded.file_format` describes the format.

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
        source, activations = self._registered.source, self._registered.activations
        if source.checkpoint != checkpoint.digest:
            raise RegistrationError(
                f"it was recorded on {source.golden}, on weights with the digest {source.checkpoint}, and these have "
                f"{checkpoint.digest}: name the network that it was recorded on"
            )
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
    require_its_checkpoint(recorded, golden)
    if digests_of(recorded.batches) == digests_of(golden.batches):
        return golden
    fitting = golden_of(golden.name, golden.checkpoint, recorded.batches)
    return replace(fitting, origin=golden.origin or golden.name, folder=golden.folder, files=golden.files)


def require_its_checkpoint(recorded: Recorded, golden: Golden) -> None:
    """Raise `UsageError` if the weights of a golden differ from those that the trace was recorded on."""
    source, found = recorded.source, golden.checkpoint.digest
    if source.checkpoint != found:
        raise UsageError(
            f"{source.name} was recorded on weights with the digest {source.checkpoint} ({source.golden}), and those of "
            f"{golden.name} have {found}: judge it on the weights that it was recorded on"
        )
