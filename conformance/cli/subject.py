"""What `trace`, `diff` and `similarity` are about: the network and its inputs, and each side's activations."""

from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path

from conformance.candidates.recorded.form import read as read_recorded
from conformance.candidates.recorded.network import recorded_on
from conformance.candidates.recorded.recorded_trace import SUFFIX
from conformance.checks.trace import TRUTH, Trace, read, record, true_trace
from conformance.errors import Unavailable, Unsupported, UsageError
from conformance.goldens.custom_golden import from_directory, on_inputs, open_golden
from conformance.goldens.golden import Golden
from conformance.goldens.minilm import RECIPE
from conformance.isolation.process import WorkerProcess
from conformance.isolation.remote import RemoteCandidate
from conformance.isolation.serve import CandidateWork

USUAL, TOKENIZED = "tiny", RECIPE.name  # the golden where none is named; the one that reads texts


def subject(arguments: Namespace, sides: Sequence[str]) -> Golden:
    """The network and inputs that are asked for: a checkpoint, those of a saved trace, or a golden, on its own inputs or others.

    Raises:
        UsageError: two networks are named, or texts for a golden without a tokenizer.
        DependencyMissingError: the golden comes from a package that is not installed.
    """
    if arguments.checkpoint and arguments.golden:
        raise UsageError(f"--checkpoint {arguments.checkpoint} and --golden {arguments.golden} are two networks; name one")
    if arguments.checkpoint:
        return from_directory(arguments.checkpoint, arguments.text or (), arguments.batch)
    saved = [Path(side) for side in sides if _is_saved(side)]
    if saved:
        return _of_saved(saved[0], arguments)
    true = next((side.removeprefix(TRUTH) for side in sides if side.startswith(TRUTH)), None)
    golden = open_golden(arguments.golden or true or (TOKENIZED if arguments.text else USUAL))
    own = arguments.text or arguments.batch
    return on_inputs(golden, arguments.text or (), arguments.batch) if own else golden


def _of_saved(path: Path, arguments: Namespace) -> Golden:
    """The network of a saved trace, on what it ran on."""
    if arguments.text or arguments.batch:
        raise UsageError(f"{path} was saved with inputs of its own; leave --text and --batch away")
    return recorded_on(read_recorded(path))


def _is_saved(side: str) -> bool:
    """Whether it is a recorded trace; other files are exported programs."""
    return Path(side).suffix == SUFFIX


def traced(side: str, golden: Golden, arguments: Namespace, recorded: Callable[[str, Golden, str, str], Trace] = record) -> Trace:
    """One side's activations: read from a file, the oracle's own for `golden:NAME`, or those of an implementation that is run.

    `recorded` runs it: in this process unless another function is given.
    """
    if _is_saved(side):
        return read(Path(side), golden)
    if side.startswith(TRUTH):
        return true_trace(golden, side)
    try:
        return recorded(side, golden, arguments.device, arguments.dtype)
    except (Unsupported, Unavailable) as why:
        raise UsageError(f"{side} cannot run on {golden.name}: {why}") from why


def in_a_worker(name: str, golden: Golden, device: str, dtype: str) -> Trace:
    """A candidate's activations; `CandidateCrash` where it ends the worker, so that it cannot end this process with a verdict."""
    with WorkerProcess(CandidateWork) as worker:
        return record(RemoteCandidate(worker, name), golden, device, dtype)
