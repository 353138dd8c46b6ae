"""The command `trace`: print the activations of an input step by step, or write them to files in the format of their suffixes.

The network, its inputs, and the activations of each side are those of `diff`, too.
"""

from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path

from conformance.candidates.lookup import TRACE as TRACE_SUFFIX
from conformance.candidates.recorded_trace import read as read_recorded
from conformance.candidates.recorded_trace import recorded_on
from conformance.checks.trace import TRUTH, Trace, read, record, save, true_trace
from conformance.cli.output import emit
from conformance.errors import Unavailable, Unsupported, UsageError
from conformance.goldens.custom_golden import from_directory, on_inputs, open_golden
from conformance.goldens.golden import Golden
from conformance.isolation.candidate_work import CandidateWork
from conformance.isolation.remote import RemoteCandidate
from conformance.isolation.worker_process import WorkerProcess
from conformance.report.trace_report import document

USUAL, TOKENIZED = "tiny", "minilm"  # the default goldens: without texts, and with texts


def run(arguments: Namespace) -> int:
    """Run `trace`; return 0 if there is an activation to show, else 1."""
    trace = traced(arguments.name, subject(arguments, [arguments.name]), arguments)
    for path in arguments.output:
        if path.suffix.lower() == TRACE_SUFFIX:
            save(trace, path)
    report = document(trace)
    emit(report, arguments)
    return 0 if report.data else 1


def subject(arguments: Namespace, sides: Sequence[str]) -> Golden:
    """Return the requested network with its inputs: a checkpoint, that of a saved trace, or a golden on its own or given inputs.

    Raises:
        UsageError: two networks are named, or texts for a golden without a tokenizer.
        DependencyMissingError: the golden comes from a package that is not installed.
    """
    if arguments.checkpoint and arguments.golden:
        raise UsageError(f"--checkpoint {arguments.checkpoint} and --golden {arguments.golden} are two networks; give only one")
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
    """Return the network of a saved trace, with the inputs of the trace."""
    if arguments.text or arguments.batch:
        raise UsageError(f"{path} was saved with its own inputs; omit --text and --batch")
    return recorded_on(read_recorded(path))


def _is_saved(side: str) -> bool:
    """Return whether a side is the file of a recorded trace; other files are exported programs."""
    return Path(side).suffix == TRACE_SUFFIX


def traced(side: str, golden: Golden, arguments: Namespace, recorded: Callable[[str, Golden, str, str], Trace] = record) -> Trace:
    """Return the activations of a side: read from a file, those of the oracle for `golden:NAME`, or those of an implementation.

    `recorded` runs an implementation, by default in this process.

    Raises:
        UsageError: the implementation cannot run on the golden.
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
    """Return the activations of a candidate that is run in a worker.

    Raises:
        CandidateCrash: the candidate ended the worker; it cannot end this process with an exit code that looks like a verdict.
    """
    with WorkerProcess(CandidateWork) as worker:
        return record(RemoteCandidate(worker, name), golden, device, dtype)
