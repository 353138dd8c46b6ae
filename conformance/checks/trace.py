"""Traces: all activations that one candidate computed on a golden's batches, stored in a file that can be judged again."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import torch

from conformance import __version__
from conformance.candidates import recorded_trace
from conformance.candidates.arrays import pairs
from conformance.candidates.recorded_trace import require_its_checkpoint
from conformance.candidates.registry import Runner, load_implementation, name_of
from conformance.candidates.torch_state import restored
from conformance.checks.candidate_device import inputs_device, require_place
from conformance.checks.contract import accepted, prepared, require_support
from conformance.errors import UsageError
from conformance.goldens.custom_golden import on_inputs, open_golden
from conformance.goldens.golden import Golden
from conformance.judge.requirements import row_of
from conformance.model.activations import table
from conformance.model.architecture import Architecture
from conformance.model.batch import Batch, TorchBatch
from conformance.numerics.formats import Array, format_named
from conformance.oracle import Network
from conformance.results.deferred_import import deferred
from conformance.results.termination import call_candidate

Activations = Mapping[str, Mapping[str, Array]]  # by batch, then by name
TRUTH = "golden:"  # prefix of a golden's name that requests the oracle's own values


@dataclass(frozen=True)
class Trace:
    """The activations of one candidate on a golden; a notebook displays how the input flowed through the network.

    Attributes:
        name: the name of the candidate.
        golden: the golden's name for `open_golden`.
        dtype, device: the format and the device of the run.
        batches: the inputs, by name.
        activations: float64 values by batch and activation, in the order of computation.
        architecture: the architecture of the network.
        checkpoint: the digest of the network's parameters.
        library: the libraries that computed the activations, with their versions.
        folder: the folder of the tokenizer that converts ids to tokens; None if there is none.

    Example:
        >>> values = trace("golden:tiny").activations["padded"]
        >>> values["embeddings.LayerNorm"].shape
        (6, 16, 32)
    """

    name: str
    golden: str
    dtype: str
    device: str
    batches: Mapping[str, Batch] = field(repr=False)
    activations: Activations = field(repr=False)
    architecture: Architecture = field(repr=False)
    checkpoint: str = field(default="", repr=False)
    library: str = field(default="", repr=False)
    folder: Path | None = field(default=None, repr=False)

    _repr_html_ = deferred("report.representations:displayed")


def trace(
    implementation: object, golden: str | Golden = "tiny", *, texts: Sequence[str] = (), device: str = "cpu", dtype: str = "float32"
) -> Trace:
    """Run an implementation and return every activation that it exposes; nothing is printed.

    Args:
        implementation: a registered name, `module:object`, an object with `prepare`, a function that serves as `prepare`, or
            `golden:NAME` for the oracle's own values.
        golden: the name of a golden, the folder of a golden, `checkpoint:DIR`, or a custom golden (see `golden_of`).
        texts: inputs that replace the golden's own; the golden's tokenizer converts them to ids.
        device: a torch device string.
        dtype: the name of a floating-point format.

    Raises:
        UsageError: if a name, format or text is not valid, or texts are given and the golden has no tokenizer.
        CandidateError, CandidateCrash, Unsupported, Unavailable: as raised by `record`.

    Example:
        >>> list(trace("hf-eager", "tiny").activations["padded"])[:2]
        ['embeddings.word_embeddings', 'embeddings.position_embeddings']
    """
    found = open_golden(golden) if isinstance(golden, str) else golden
    found = on_inputs(found, texts) if texts else found
    if isinstance(implementation, str) and implementation.startswith(TRUTH):
        return true_trace(found, implementation)
    return record(implementation, found, device, dtype)


def record(implementation: object, golden: Golden, device: str, dtype: str) -> Trace:
    """Run a candidate on all batches of a golden and return all activations that it exposes.

    Raises:
        CandidateError: if the candidate violates the contract.
        CandidateCrash: if the candidate raises.
        Unsupported: if the candidate does not support the case.
        Unavailable: if this machine has no such device.
    """
    candidate = load_implementation(implementation)
    checkpoint = golden.checkpoint
    format_named(dtype)
    require_place(candidate, device)
    require_support(candidate, golden, device, dtype)
    found: dict[str, dict[str, Array]] = {}
    with restored():
        runner = prepared(candidate, checkpoint, device, dtype)
        for batch_name, batch in golden.batches.items():
            network = Network(checkpoint.architecture, checkpoint.weights, batch)
            given = batch.on(inputs_device(candidate, device))
            made = call_candidate(partial(_collected, runner, given, network, dtype, device))
            found[batch_name] = {name: made[name] for name in network.table if name in made}
    network_of = golden.origin or golden.name
    about = (name_of(implementation), network_of, dtype, device)
    library = f"bert-conformance {__version__}, torch {torch.__version__}"
    return Trace(*about, golden.batches, found, checkpoint.architecture, checkpoint.digest, library, golden.folder)


def _collected(runner: Runner, batch: TorchBatch, network: Network, dtype: str, device: str) -> dict[str, Array]:
    return dict(accepted(pairs(runner(batch), network.table), network, dtype, device))


def true_trace(golden: Golden, name: str = "") -> Trace:
    """Return the oracle's own values in float64; raise `UsageError` if `name` is the name or folder of another golden."""
    name = name or f"{TRUTH}{golden.name}"
    asked = name.removeprefix(TRUTH)
    if asked != golden.name and str(Path(asked).resolve()) != golden.origin:
        raise UsageError(f"{name} is compared on its own inputs: add --golden {asked}")
    checkpoint = golden.checkpoint
    walks = {n: Network(checkpoint.architecture, checkpoint.weights, batch).walk() for n, batch in golden.batches.items()}
    found = {n: {a: np.array(value) for a, value in walk} for n, walk in walks.items()}
    about = (name, golden.origin or golden.name, "float64", "cpu")
    library = f"bert-conformance {__version__}"
    return Trace(*about, golden.batches, found, checkpoint.architecture, checkpoint.digest, library, golden.folder)


def require_same_inputs(a: Trace, b: Trace) -> None:
    """Raise `UsageError` if two traces are not of the same network and inputs."""
    ours, theirs = ({n: batch.arrays() for n, batch in t.batches.items()} for t in (a, b))
    same = ours.keys() == theirs.keys() and all(
        ours[n].keys() == theirs[n].keys() and all(np.array_equal(ours[n][k], theirs[n][k]) for k in ours[n]) for n in ours
    )
    if a.golden != b.golden or not same:
        raise UsageError(f"{a.name} ran on {a.golden}, {b.name} on {b.golden} or on other inputs: run both on the same")


def save(trace: Trace, path: Path) -> None:
    """Write a trace to a file in the format defined in `candidates.recorded_trace`."""
    source = recorded_trace.TraceOrigin(trace.name, trace.golden, trace.checkpoint, trace.dtype, trace.device, trace.library)
    recorded_trace.write(source, trace.batches, trace.activations, path)


def read(path: Path, golden: Golden) -> Trace:
    """Read a trace from a file.

    Raises:
        UsageError: if the file is not a trace, or a trace of weights other than the golden's.
        CandidateError: if the trace contains an unknown activation.
    """
    recorded = recorded_trace.read(path)
    require_its_checkpoint(recorded, golden.checkpoint)
    source, checkpoint, a = recorded.source, golden.checkpoint, golden.checkpoint.architecture
    rows = table(a)
    found = {
        batch: {row_of(name, rows, a).name: np.asarray(value, np.float64) for name, value in pairs(values, rows)}
        for batch, values in recorded.activations.items()
    }
    about = (source.name, source.golden, source.dtype, source.device)
    return Trace(*about, recorded.batches, found, checkpoint.architecture, source.checkpoint, source.library, golden.folder)
