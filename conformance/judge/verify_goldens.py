"""Verification of the stored goldens, part by part.

Files must match their digests, weights and batches must regenerate exactly, and activations, and gradients where they are stored,
must regenerate within what float64 rounding explains, because BLAS kernels sum in different orders. For a golden made from a
checkpoint, the weights must be those that it was made from; its batches cannot be regenerated, so only their digest is checked.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from conformance.errors import ConformanceError, DependencyMissingError, FixtureError
from conformance.goldens.golden import Golden, load_golden, stored_arrays
from conformance.goldens.manifest import located
from conformance.goldens.recipe import keeps_gradient
from conformance.goldens.shipped_goldens import RECIPES
from conformance.judge.segment import Segment
from conformance.model.checkpoint import content_digest
from conformance.numerics.arithmetic import hypotheses
from conformance.numerics.formats import Array
from conformance.numerics.thresholds import max_threshold, sidak_share
from conformance.oracle import Network


@dataclass(frozen=True)
class Verification:
    """The outcome of one part of a golden's verification."""

    golden: str
    part: str
    outcome: str
    reason: str = ""


def verify(name: str | Path, folder: Path | None = None) -> list[Verification]:
    """Verify a golden and return the outcome of each part: `pass`, `fail`, or `skip` with its reason.

    Raises:
        UsageError: there is no such golden.
    """
    name, folder = located(name, folder)
    checks: dict[str, Callable[[Golden], None]] = {"weights and batches": _inputs, "activations": _activations}
    try:
        golden = load_golden(name, folder)
    except ConformanceError as error:
        unread = [Verification(name, part, "skip", "the stored files could not be read") for part in checks]
        return [Verification(name, "stored files", "fail", str(error)), *unread]
    if golden.read_gradients:
        checks["gradients"] = _gradients
    return [Verification(name, "stored files", "pass"), *(_verified(name, golden, part, check) for part, check in checks.items())]


def _verified(name: str, golden: Golden, part: str, check: Callable[[Golden], None]) -> Verification:
    try:
        check(golden)
    except DependencyMissingError as error:
        return Verification(name, part, "skip", str(error))
    except ConformanceError as error:
        return Verification(name, part, "fail", str(error))
    return Verification(name, part, "pass")


def _inputs(golden: Golden) -> None:
    _ = golden.checkpoint  # raises where the weights are not the manifest's
    if golden.recorded:
        return
    again = stored_arrays(RECIPES[golden.name].batches(), {})
    if content_digest(again) != content_digest(stored_arrays(golden.batches, {})):
        raise FixtureError(f"golden {golden.name}: the batches regenerate differently")


def _activations(golden: Golden) -> None:
    """Compare the stored activations of every batch with regenerated ones."""
    recorded = golden.recorded or golden.activations
    if not recorded:
        raise DependencyMissingError("nothing to compare: this golden stores no activations, the oracle computes them on the spot")
    for batch, network in _networks(golden).items():
        kept = {name for name in network.table if golden.recorded or RECIPES[golden.name].keeps(name)}
        _regenerate(f"golden {golden.name}: {{}} of {batch}", network, recorded[batch], kept)


def _gradients(golden: Golden) -> None:
    """Compare the stored gradients of every batch, from every source, with regenerated ones."""
    for batch, network in _networks(golden).items():
        stored = golden.gradients.get(batch, {})
        passes = {str(one.source): one for one in network.backward_passes()}
        if set(passes) != set(stored):
            raise FixtureError(f"golden {golden.name}: the stored gradients of {batch} start from {', '.join(stored)}")
        for source, one in passes.items():
            kept = {name for name in one.table if keeps_gradient(name)}
            _regenerate(f"golden {golden.name}: {{}} of {batch}, from {source},", one, stored[source], kept)


def _networks(golden: Golden) -> dict[str, Network]:
    checkpoint = golden.checkpoint
    return {n: Network(checkpoint.architecture, checkpoint.weights, batch) for n, batch in golden.batches.items()}


def _regenerate(said: str, network: Network, stored: Mapping[str, Array], kept: set[str]) -> None:
    """Compare stored with regenerated arrays, each computed from its nearest stored ancestors.

    Raises:
        FixtureError: the names differ, or a difference exceeds the threshold for two float64 computations.
    """
    if kept != set(stored):
        raise FixtureError(f"{said.format('what is stored')} is not what is kept of the table")
    alpha, hypothesis, before = sidak_share(len(stored)), hypotheses("float64")[0], dict[str, Array]()
    for name in (n for n in network.table if n in stored):
        segment = Segment(network, name, before)
        sigma = np.sqrt(segment.propagate({}, hypothesis))  # of two computations, in float64
        room = max_threshold(stored[name].size, alpha) * sigma + segment.bound(hypothesis)
        if (np.abs(segment.value - stored[name]) > room).any():
            raise FixtureError(f"{said.format(name)} regenerates differently")
        before[name] = stored[name]
