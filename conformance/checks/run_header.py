"""The header of a run: what was run, on which machine, and with which versions."""

import hashlib
import math
import os
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from types import MappingProxyType

import msgspec

from conformance import __version__
from conformance.candidates.lookup import registered
from conformance.candidates.source_imports import source_digest
from conformance.checks.check import Plan
from conformance.goldens.golden import Golden, stored_arrays
from conformance.goldens.manifest import manifest
from conformance.model.checkpoint import content_digest
from conformance.numerics.devices import description, is_whole
from conformance.numerics.machine import this_machine
from conformance.numerics.thresholds import FALSE_ALARM
from conformance.results.records import SCHEMA_VERSION, FunctionRecord, GoldenRecord, Header, ImplementationRecord, MachineRecord

_DIGITS = 12  # of a digest that is compared with another and shown


def header_of(
    device: str,
    goldens: Mapping[str, Golden | None],
    plan: Plan,
    run: str = "",
    implementations: Sequence[str] = (),
    cases: int = 0,
    settings: Mapping[str, str] = MappingProxyType({}),
    limits: Mapping[str, str] = MappingProxyType({}),
) -> Header:
    """Return the header of a run on this machine.

    `goldens` has for each name a custom golden, or None for the stored golden of that name; `run` identifies a
    run whose results may be in several files of one folder. All registered candidates are recorded if `implementations` is empty.
    `settings` has what else decides a verdict, `limits` the limits of candidates; `cases` is 0 if not known.
    """
    import torch

    return Header(
        schema=SCHEMA_VERSION,
        suite=__version__,
        python=platform.python_version(),
        torch=str(torch.__version__),
        transformers=_version("transformers"),
        platform=platform.platform(),
        processor=f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.backends.cpu.get_cpu_capability()}",
        gpu=description(device),
        threads=torch.get_num_threads(),
        goldens=_golden_records(goldens),
        checkpoint=next((g.name for g in goldens.values() if g is not None), None),
        false_alarm=FALSE_ALARM,
        seed=plan.seed,
        examples=plan.examples,
        depth=plan.depth,
        settings={**settings, **_architectures(goldens), **_code(implementations)},
        limits=dict(limits),
        run=run,
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        implementations=_implementation_records(implementations),
        numpy=metadata.version("numpy"),
        onnxruntime=_version("onnxruntime") or _version("onnxruntime-gpu"),
        cases=cases,
        machine=_machine(device) if is_whole(device) else None,
    )


def _golden_records(goldens: Mapping[str, Golden | None]) -> dict[str, GoldenRecord]:
    """Return the record of each golden: from the manifest for a stored one, computed for a custom one."""
    stored = {
        name: GoldenRecord(entry.version, entry.stored_digest, entry.weights_digest, entry.source)
        for name, entry in manifest().items()
        if name in goldens and goldens[name] is None
    }
    return stored | {name: _custom_golden_record(golden) for name, golden in goldens.items() if golden}


def _custom_golden_record(golden: Golden) -> GoldenRecord:
    """Return the record of a custom golden; the digests of inputs and weights distinguish it from others of the same name."""
    weights = content_digest(golden.checkpoint.weights)
    unconfirmed = golden.checkpoint.architecture.unconfirmed if golden.folder else ""
    return GoldenRecord(golden.version, content_digest(stored_arrays(golden.batches, {})), weights, golden.origin, unconfirmed)


def _architectures(goldens: Mapping[str, Golden | None]) -> dict[str, str]:
    """Return a digest of the architecture of each custom golden, whose configuration may be edited while its weights stay."""
    own = {name: golden.checkpoint.architecture.as_dict() for name, golden in goldens.items() if golden}
    return {f"the architecture of {name}": short_digest(settings) for name, settings in own.items()}


def _code(names: Sequence[str]) -> dict[str, str]:
    """Return a digest of the source of each candidate of these names that has one."""
    return {f"the code of {name}": found[:_DIGITS] for name in names if (found := source_digest(name))}


def short_digest(content: object) -> str:
    """Return the first digits of the digest of what JSON can hold."""
    return hashlib.sha256(msgspec.json.encode(content, order="deterministic")).hexdigest()[:_DIGITS]


def _implementation_records(names: Sequence[str]) -> dict[str, ImplementationRecord]:
    """Return the distribution and version of each registered implementation of these names; of all if there is none."""
    return {
        found.name: ImplementationRecord(found.distribution, found.version, found.origin)
        for found in registered()
        if not names or found.name in names
    }


def _machine(device: str) -> MachineRecord:
    """Return the measurements of this machine, with None for an error that is not finite."""
    machine = this_machine(device)
    return MachineRecord(
        machine.instruction_set,
        {n: FunctionRecord(*map(_finite, (e.absolute.value, e.ulp.value))) for n, e in machine.functions.items()},
        {name: _finite(round(bits, 1)) for name, bits in machine.products.items()},
        dict(machine.settings),
        list(machine.notes),
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _version(distribution: str) -> str | None:
    """Return the version of an installed distribution without importing it; None if it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
