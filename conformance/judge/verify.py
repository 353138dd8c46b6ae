"""Verifying the goldens that are stored, in three parts.

Files match their digests; weights and batches regenerate exactly; activations regenerate within what float64 rounding explains,
since BLAS kernels sum in different orders. Of a golden that was made from a checkpoint the weights are those that it was made from,
and the batches have nothing to be regenerated from: their digest is all.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from conformance.errors import ConformanceError, DependencyMissingError, FixtureError
from conformance.goldens.golden import Golden, load_golden, stored_arrays
from conformance.goldens.manifest import located
from conformance.goldens.recipes import RECIPES
from conformance.judge.segment import Segment
from conformance.judge.statistics import max_threshold, share
from conformance.model.digest import content_digest
from conformance.numerics.arithmetic import hypotheses
from conformance.numerics.formats import Array
from conformance.oracle import Network


@dataclass(frozen=True)
class Verification:
    """One part of one golden's verification."""

    golden: str
    part: str
    outcome: str
    reason: str = ""


def verify(name: str | Path, folder: Path | None = None) -> list[Verification]:
    """The three parts' outcomes: `pass`, `fail`, or `skip` with its reason; of what `load_golden` takes.

    Raises:
        UsageError: there is no such golden.
    """
    name, folder = located(name, folder)
    golden: Golden | None = None
    try:
        golden = load_golden(name, folder)
        results = [Verification(name, "stored files", "pass")]
    except ConformanceError as error:
        results = [Verification(name, "stored files", "fail", str(error))]
    for part, check in (("weights and batches", _inputs), ("activations", _activations)):
        if golden is None:
            results.append(Verification(name, part, "skip", "the stored files could not be read"))
            continue
        try:
            check(golden)
            results.append(Verification(name, part, "pass"))
        except DependencyMissingError as error:
            results.append(Verification(name, part, "skip", str(error)))
        except ConformanceError as error:
            results.append(Verification(name, part, "fail", str(error)))
    return results


def _inputs(golden: Golden) -> None:
    assert golden.checkpoint  # raises where the weights are not the manifest's
    if golden.recorded:
        return
    again = stored_arrays(RECIPES[golden.name].batches(), {})
    if content_digest(again) != content_digest(stored_arrays(golden.batches, {})):
        raise FixtureError(f"golden {golden.name}: the batches regenerate differently")


def _activations(golden: Golden) -> None:
    """Stored against regenerated, each from its nearest stored ancestors, within the threshold of two float64 computations."""
    recorded = golden.recorded or golden.activations
    if not recorded:
        raise DependencyMissingError("nothing to compare: this golden stores no activations, the oracle computes them on the spot")
    checkpoint = golden.checkpoint
    networks = {n: Network(checkpoint.architecture, checkpoint.weights, batch) for n, batch in golden.batches.items()}
    alpha = share(sum(len(network.table) for network in networks.values()))
    for batch, network in networks.items():
        stored = recorded[batch]
        if {n for n in network.table if golden.recorded or RECIPES[golden.name].keeps(n)} != set(stored):
            raise FixtureError(f"golden {golden.name}: the stored activations of {batch} are not those of the table")
        before: dict[str, Array] = {}
        for name in (n for n in network.table if n in stored):
            if _differs(Segment(network, name, before), stored[name], alpha):
                raise FixtureError(f"golden {golden.name}: {name} of {batch} regenerates differently")
            before[name] = stored[name]


def _differs(segment: Segment, stored: Array, alpha: float) -> bool:
    """For float64 a segment's sigma is that of two computations (`Segment.propagate`)."""
    hypothesis = hypotheses("float64")[0]
    sigma = np.sqrt(segment.propagate({}, hypothesis))
    room = max_threshold(stored.size, alpha) * sigma + segment.bound(hypothesis)
    return bool((np.abs(segment.value - stored) > room).any())
