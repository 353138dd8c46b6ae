"""The golden on which a recorded trace is judged: the network named in its metadata, with the inputs in its file."""

from dataclasses import replace

from conformance.candidates.recorded.file_format import Recorded, digests_of
from conformance.errors import UsageError
from conformance.goldens.custom_golden import golden_of, open_golden
from conformance.goldens.golden import Golden


def recorded_on(recorded: Recorded, network: Golden | None = None) -> Golden:
    """Return the golden of a trace.

    Args:
        recorded: the trace.
        network: golden with the checkpoint of the trace; None: the golden named in the metadata.

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
