"""Traces: every activation that one candidate made of a golden's batches, kept in a file of the fixtures' own form."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from safetensors.numpy import save_file

from conformance.candidates.registry import Runner, as_implementation, load, name_of
from conformance.candidates.stream import pairs
from conformance.candidates.torch_state import restored
from conformance.checks.session import accepted, prepared, require_support
from conformance.errors import UsageError
from conformance.files import parsed_json, read_safetensors, reading
from conformance.goldens.custom_golden import on_inputs, open_golden
from conformance.goldens.golden import Golden, nested, stored_arrays
from conformance.model.architecture import Architecture
from conformance.model.batch import Batch
from conformance.numerics.devices import require_device
from conformance.numerics.formats import Array, format_named
from conformance.oracle import Network
from conformance.results.late import late
from conformance.results.termination import call_candidate

Activations = Mapping[str, Mapping[str, Array]]  # by batch, then by name
TRUTH = "golden:"  # before a golden's name: the oracle's own values


@dataclass(frozen=True)
class Trace:
    """What one candidate made of a golden; in a notebook it shows how the input flowed through the network.

    Attributes:
        name, golden, dtype, device: who ran on what, and how.
        batches: the inputs.
        activations: float64 values by batch and activation, in the order of computation.
        architecture: the network's.
        folder: where the tokenizer lies that converts ids to tokens; None where there is none.

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
    folder: Path | None = field(default=None, repr=False)

    _repr_html_ = late("report.walk.walk_page:trace_fragment")


class _About(msgspec.Struct, frozen=True):
    """What stands in a trace's metadata: `order` are the activations of each batch, in the order of computation."""

    name: str
    golden: str
    dtype: str
    device: str
    architecture: dict[str, Any]
    folder: str | None
    order: dict[str, list[str]]


def trace(
    implementation: object,
    golden: str | Golden = "tiny",
    *,
    texts: Sequence[str] = (),
    device: str = "cpu",
    dtype: str = "float32",
) -> Trace:
    """Run an implementation and keep every activation that it exposes; nothing is printed.

    Args:
        implementation: a registered name, `module:object`, an object with `prepare`, a function that serves as `prepare`, or
            `golden:NAME` for the oracle's own values.
        golden: a name, the folder of a golden, `checkpoint:DIR`, or a golden of one's own (`golden_of`).
        texts: inputs to run on instead of the golden's own; its tokenizer reads them.
        device: a torch device string.
        dtype: a format's name.

    Raises:
        UsageError: a name, format or text that cannot be used, or a golden without a tokenizer where texts are given.
        CandidateError, CandidateCrash, Unsupported, Unavailable: as `record`.

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
    """Run a candidate and keep all that it exposes.

    Raises:
        CandidateError: what breaks the contract.
        CandidateCrash: what the candidate raised.
        Unsupported: the candidate does not support it, and says why.
        Unavailable: there is no such device here.
    """
    candidate = load(implementation) if isinstance(implementation, str) else as_implementation(implementation)
    checkpoint = golden.checkpoint
    format_named(dtype)
    require_device(device)
    require_support(candidate, golden, device, dtype)
    found: dict[str, dict[str, Array]] = {}
    with restored():
        runner = prepared(candidate, checkpoint, device, dtype)
        for batch_name, batch in golden.batches.items():
            network = Network(checkpoint.architecture, checkpoint.weights, batch)
            found[batch_name] = _ordered(call_candidate(partial(_collected, runner, batch, network, dtype, device)), network)
    network_of = golden.origin or golden.name
    return Trace(name_of(implementation), network_of, dtype, device, golden.batches, found, checkpoint.architecture, golden.folder)


def _collected(runner: Runner, batch: Batch, network: Network, dtype: str, device: str) -> dict[str, Array]:
    order = {name: i for i, name in enumerate(network.table)}
    return dict(accepted(pairs(runner(batch.on(device)), order), network, dtype, device))


def _ordered(found: dict[str, Array], network: Network) -> dict[str, Array]:
    return {name: found[name] for name in network.table if name in found}


def true_trace(golden: Golden, name: str = "") -> Trace:
    """The oracle's own values, float64; `UsageError` where `name` is that of another golden, or of another golden's folder."""
    name = name or f"{TRUTH}{golden.name}"
    asked = name.removeprefix(TRUTH)
    if asked != golden.name and str(Path(asked).resolve()) != golden.origin:
        raise UsageError(f"{name} is compared on its own inputs: add --golden {asked}")
    checkpoint = golden.checkpoint
    walks = {n: Network(checkpoint.architecture, checkpoint.weights, batch).walk() for n, batch in golden.batches.items()}
    found = {n: {a: np.array(value) for a, value in walk} for n, walk in walks.items()}
    network_of = golden.origin or golden.name
    return Trace(name, network_of, "float64", "cpu", golden.batches, found, checkpoint.architecture, golden.folder)


def require_same_inputs(a: Trace, b: Trace) -> None:
    """Raise `UsageError` where two traces are of other networks or other inputs."""
    ours, theirs = ({n: batch.arrays() for n, batch in t.batches.items()} for t in (a, b))
    same = ours.keys() == theirs.keys() and all(
        ours[n].keys() == theirs[n].keys() and all(np.array_equal(ours[n][k], theirs[n][k]) for k in ours[n]) for n in ours
    )
    if a.golden != b.golden or not same:
        raise UsageError(f"{a.name} ran on {a.golden}, {b.name} on {b.golden} or on other inputs: run both on the same")


def save(trace: Trace, path: Path) -> None:
    """Write a trace as safetensors."""
    order = {n: list(found) for n, found in trace.activations.items()}
    folder = str(trace.folder) if trace.folder else None
    about = _About(trace.name, trace.golden, trace.dtype, trace.device, trace.architecture.as_dict(), folder, order)
    arrays = stored_arrays(trace.batches, trace.activations)
    metadata = {"trace": msgspec.json.encode(about).decode()}
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({k: np.array(v, order="C") for k, v in arrays.items()}, path, metadata)


def read(path: Path) -> Trace:
    """A trace that `save` wrote; `UsageError` where it is none."""
    with reading(path, "a trace", UsageError):
        arrays, metadata = read_safetensors(path)
        about = parsed_json(metadata.get("trace"), _About)
        batches, activations = (nested(arrays, what) for what in ("batch", "activation"))
        return Trace(
            about.name,
            about.golden,
            about.dtype,
            about.device,
            {n: Batch.of(batches[n]) for n in about.order},
            {n: {a: np.asarray(activations[n][a], np.float64) for a in names} for n, names in about.order.items()},
            Architecture.from_config(about.architecture),
            Path(about.folder) if about.folder else None,
        )
