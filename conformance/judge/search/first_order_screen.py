"""First-order screening: an estimate, from a few backward sweeps, of how well each fault would account for the residual.

With r the residual, W = 1/σ² and δ the change that a fault makes at a step, the fault moves the outputs by J δ to first order. One
sweep Jᵀ W r serves all faults: <r, J δ> is its product with δ. The length |J δ| is estimated from sweeps of random signs:
E (z · W^½ J δ)² = |J δ|². Faults are ranked for exact evaluation by the cosine of r and J δ. For gross faults the first order gives
little more than the direction, which is often enough.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from conformance.faults import Fault, FaultContext
from conformance.judge.search.placements import FaultPlacement
from conformance.judge.search.problem import FittedFaults, Problem
from conformance.judge.segment import Segment
from conformance.judge.threads import on_all_cores
from conformance.numerics.formats import Array, Format

PROBES = 8  # each estimates |J δ|² with a relative deviation of √2; eight estimate |J δ| with one of a quarter


def ranked(problem: Problem[Any], fit: FittedFaults, placements: Sequence[FaultPlacement]) -> list[FaultPlacement]:
    """Return the placements to add to a fit, by descending cosine with the residual; those with a negative score are left out."""
    segment, index = problem.faulty(fit.placements).segment, fit.pooling_index
    weights = problem.weights[index]
    rng = np.random.default_rng(0)
    left = problem.residual(fit.placements)[index] * weights
    directions = np.array([left, *rng.choice((-1.0, 1.0), (PROBES, len(left)))])
    products = _products(segment, problem.storage, index, directions * weights, placements)
    found = []
    for placement in placements:
        total = sum(
            (p for name in placement.places if (p := products[placement.fault.name, name]) is not None),
            start=np.zeros(len(directions)),
        )
        length = float(np.sqrt((total[1:] ** 2).mean()))
        if length > 0.0 and np.isfinite(total).all():
            cosine = float(total[0] / (length * np.sqrt((left**2).sum())))
            score = abs(cosine) if placement.fault.parameter else cosine
            if score > 0.0:
                found.append((score, placement))
    return [placement for _, placement in sorted(found, key=lambda pair: -pair[0])]


def _products(
    segment: Segment, storage: Format, pooling_index: int, directions: Array, placements: Sequence[FaultPlacement]
) -> Mapping[tuple[str, str], Array | None]:
    """Return, by fault and place, the product of δ with each direction's adjoint there; None if the fault is not applicable."""

    def adjoint(direction: Array) -> Mapping[str, Array]:
        wide = np.zeros((segment.value.size // len(direction), len(direction)))
        wide[pooling_index] = direction
        return segment.adjoints(wide.reshape(segment.value.shape))

    adjoints = on_all_cores(adjoint, list(directions))
    place = FaultContext(segment.network, segment.values, storage)
    wanted = {(placement.fault.name, name): placement.fault for placement in placements for name in placement.places}

    def product(pair: tuple[tuple[str, str], Fault]) -> Array | None:
        (_, name), fault = pair
        step = segment.steps[name]
        with np.errstate(all="ignore"):
            faulty = fault.applied(step, place)
            return None if faulty is None else np.array([float((a[name] * (faulty.value - step.value)).sum()) for a in adjoints])

    return dict(zip(wanted, on_all_cores(product, list(wanted.items())), strict=True))
