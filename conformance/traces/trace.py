"""Traces: every activation that one candidate made of a golden's batches, kept in a file of the fixtures' own form."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from conformance.batch import Batch
from conformance.candidates.registry import Runner, as_implementation, load, name_of
from conformance.candidates.shelter import restored
from conformance.candidates.stream import pairs
from conformance.ending import by_candidate
from conformance.errors import CandidateError, UsageError
from conformance.goldens.golden import Golden, nested, stored_arrays
from conformance.judge.precheck import accepted_array, known
from conformance.numerics.formats import Array, format_named
from conformance.oracle import Network
from conformance.run import require_device, require_support

Activations = Mapping[str, Mapping[str, Array]]  # by batch, then by name


@dataclass(frozen=True)
class Trace:
    """What one candidate made of a golden.

    Attributes:
        name, golden, dtype, device: who ran on what, and how.
        batches: the inputs.
        activations: float64 values by batch and activation, in the order of computation.
    """

    name: str
    golden: str
    dtype: str
    device: str
    batches: Mapping[str, Batch] = field(repr=False)
    activations: Activations = field(repr=False)


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
    require_support(candidate, checkpoint, device, dtype)
    found: dict[str, dict[str, Array]] = {}
    with restored():
        runner = by_candidate(lambda: candidate.prepare(checkpoint, device, dtype))
        for batch_name, batch in golden.batches.items():
            network = Network(checkpoint.architecture, checkpoint.weights, batch)
            found[batch_name] = _ordered(by_candidate(partial(_collected, runner, batch, network, dtype, device)), network)
    return Trace(name_of(implementation), golden.origin or golden.name, dtype, device, golden.batches, found)


def _collected(runner: Runner, batch: Batch, network: Network, dtype: str, device: str) -> dict[str, Array]:
    output = runner(batch.on(device))
    accepted = {}
    for name, value in pairs(output, {n: i for i, n in enumerate(network.table)}):
        try:
            row = known(name, network.table)
            accepted[name] = accepted_array(row, value, network.architecture, network.batch, dtype, device)
        except CandidateError as error:
            raise CandidateError(f"{name}: {error}") from error
    return accepted


def _ordered(found: dict[str, Array], network: Network) -> dict[str, Array]:
    return {name: found[name] for name in network.table if name in found}


def true_trace(golden: Golden) -> Trace:
    """The oracle's own values, float64."""
    checkpoint = golden.checkpoint
    walks = {n: Network(checkpoint.architecture, checkpoint.weights, batch).walk() for n, batch in golden.batches.items()}
    found = {n: {a: np.array(value) for a, value in walk} for n, walk in walks.items()}
    return Trace(f"golden:{golden.name}", golden.origin or golden.name, "float64", "cpu", golden.batches, found)


def save(trace: Trace, path: Path) -> None:
    """Write a trace as safetensors."""
    about = {"name": trace.name, "golden": trace.golden, "dtype": trace.dtype, "device": trace.device}
    order = {n: list(found) for n, found in trace.activations.items()}
    arrays = stored_arrays(trace.batches, trace.activations)
    metadata = {"trace": json.dumps({**about, "order": order})}
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({k: np.ascontiguousarray(v) for k, v in arrays.items()}, path, metadata)


def read(path: Path) -> Trace:
    """A trace that `save` wrote; `UsageError` where it is none."""
    try:
        with safe_open(path, "np") as file:
            about = json.loads((file.metadata() or {})["trace"])
            arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 -- no mapping
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        raise UsageError(f"{path} is no trace: {error!r}") from error
    batches = {n: Batch.of(found) for n, found in nested(arrays, "batch").items()}
    activations = nested(arrays, "activation")
    ordered = {n: {a: np.asarray(activations[n][a], np.float64) for a in names} for n, names in about["order"].items()}
    return Trace(about["name"], about["golden"], about["dtype"], about["device"], {n: batches[n] for n in ordered}, ordered)
