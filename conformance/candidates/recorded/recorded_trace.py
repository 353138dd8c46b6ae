"""A recorded trace as a candidate: it answers the batches that it holds, and no other."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from conformance.candidates.arrays import Described, held_in
from conformance.candidates.recorded.form import Recorded, digest_of, digests_of, read
from conformance.candidates.registry import Isolated
from conformance.errors import NotApplicable, RegistrationError, UsageError
from conformance.model.architecture import Architecture
from conformance.model.batch import TorchBatch
from conformance.model.checkpoint import Checkpoint
from conformance.model.features import FEATURES

SUFFIX = ".safetensors"


@dataclass(frozen=True)
class RecordedTrace(Isolated):
    """Activations that were recorded in a file, whose form `conformance.candidates.recorded.form` describes.

    It is judged on the weights and inputs that it was recorded on, under the arithmetics of the device that it names, which need
    not be here. What needs other inputs, or a backward pass, is a skip; other weights are a `RegistrationError`.

    Attributes:
        path: the file, as `bert-conformance trace NAME -o FILE.safetensors` writes it, or any other program.

    Raises:
        UsageError: of `recorded`, where the file is no recorded trace; of a method `RegistrationError`.

    Example:
        >>> RecordedTrace("trace.safetensors").name
        'trace.safetensors'
    """

    path: Path | str
    features = tuple(FEATURES)  # of whatever the network has, its activations are recorded

    @property
    def name(self) -> str:
        """What results call it."""
        return Path(self.path).name

    @cached_property
    def recorded(self) -> Recorded:
        """What the file holds."""
        return read(Path(self.path))

    @property
    def _registered(self) -> Recorded:
        """The same for who runs it, to whom a file that is no trace is an error of the registration."""
        try:
            return self.recorded
        except UsageError as error:
            raise RegistrationError(str(error)) from error

    def supports(self, architecture: Architecture, device: str, dtype: str) -> str | None:
        """Why not, where it was recorded in another format or on another kind of device."""
        source = self._registered.source
        if source.dtype != dtype:
            return f"it was recorded in {source.dtype}, not in {dtype}"
        if source.device.partition(":")[0] != device.partition(":")[0]:
            return f"it was recorded on {source.device}, not on {device}: ask for that device"
        return None

    def prepare(self, checkpoint: Checkpoint, device: str, dtype: str) -> Callable[[TorchBatch], Mapping[str, Described]]:
        """A function of a batch that gives what is recorded of it, and raises `NotApplicable` for another batch.

        Raises:
            RegistrationError: it was recorded on other weights.
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
    """The recorded trace that a candidate is, or whose file its name is; None for any other."""
    if isinstance(implementation, str):
        return RecordedTrace(implementation) if implementation.endswith(SUFFIX) and Path(implementation).is_file() else None
    return implementation if isinstance(implementation, RecordedTrace) else None
