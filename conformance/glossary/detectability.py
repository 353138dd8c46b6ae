"""The detectability of a fault on a small golden, and the faults easily confused with it, computed in a fraction of a second."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from statistics import median

import numpy as np

from conformance.faults import Fault
from conformance.glossary.activations import generic
from conformance.goldens.golden import Golden, load_golden
from conformance.judge.detection_power import Power, power
from conformance.judge.fault_directions import effective_directions
from conformance.judge.judged_elements import elements_to_explain
from conformance.judge.number_words import enumerated
from conformance.judge.segment import Segment
from conformance.numerics.formats import FORMATS, Array
from conformance.oracle import Network

GOLDENS = ("tiny", "tanh", "sinusoidal", "position-offset", "odd-width")  # Small ones, of every kind of architecture.
DTYPES = ("float32", "bfloat16", "float16")
ALIKE = 0.9  # The least correlation of two effects that is reported; it is not used in any judgement.
MOST_PLACES = 3  # The largest number of activations that are listed for a similar effect.
SAME = 1e-9  # The largest relative difference, in float64, of effects that are reported as the same.


@dataclass(frozen=True)
class Detectability:
    """The detectability of a fault on the first golden on which it has an effect.

    Attributes:
        power: the expected z of the fault's matched filter at all its places, one entry per dtype.
        confused: faults with similar effects by name, each with a description of the similarity.
    """

    golden: str
    power: tuple[Power, ...]
    confused: Mapping[str, str]


@cache
def detectability(fault: Fault) -> Detectability | None:
    """Return the detectability of a fault of the catalogue; None if it has no effect on any of `GOLDENS`."""
    for name in GOLDENS:
        golden = load_golden(name)
        found = tuple(cell for dtype in DTYPES for cell in power(golden, dtype, only=fault.name, filtered=True))
        if found:
            return Detectability(name, found, _confused(fault, golden))
    return None


def _confused(fault: Fault, golden: Golden) -> dict[str, str]:
    """Return the faults that have the same or a similar effect at the same steps, the most similar first."""
    correlations: dict[str, list[float]] = defaultdict(list)
    same: dict[str, dict[str, int]] = defaultdict(dict)
    places: dict[str, dict[str, None]] = defaultdict(dict)
    every: dict[str, None] = {}
    for step, effects in _effects(fault, golden):
        own = effects.pop(fault.name)
        every[step] = None
        for name, other in effects.items():
            scale = max(np.linalg.norm(own), np.linalg.norm(other))
            places[name][step] = None
            if np.linalg.norm(own - other) <= SAME * scale:
                same[name][step] = same[name].get(step, 0) + 1
            if own.size > 1:
                correlations[name].append(abs(float(own @ other) / float(np.linalg.norm(own) * np.linalg.norm(other))))
    found = {}
    for name in sorted(places, key=lambda name: (-sum(same[name].values()), -median(correlations[name] or [0.0]))):
        alike = median(correlations[name] or [0.0])
        if same[name]:
            found[name] = f"the same effect {_at(same[name], every)}"
        elif alike >= ALIKE:
            found[name] = f"correlation of the effects {alike:.2f} {_at(places[name], every)}"
    return found


def _at(steps: Iterable[str], every: Iterable[str]) -> str:
    """Return the activations, with N for the number of a layer; `at all of these activations` for all at which a fault acts."""
    found, known = (list(dict.fromkeys(generic(step) for step in of)) for of in (steps, every))
    if set(found) == set(known) and len(known) > 1:
        return "at all of these activations"
    more = [f"{len(found) - MOST_PLACES} more"] if len(found) > MOST_PLACES else []
    return f"at {enumerated([*found[:MOST_PLACES], *more])}"


def _effects(fault: Fault, golden: Golden) -> list[tuple[str, dict[str, Array]]]:
    """Return the name of each step where the fault changes judged elements, and the changes that all faults make there, by name."""
    found = []
    for batch in golden.batches.values():
        network = Network(golden.checkpoint.architecture, golden.checkpoint.weights, batch)
        values: dict[str, Array] = {}
        for name, row in network.table.items():
            segment = Segment(network, name, values)
            values[name] = segment.value
            if fault.applies_to(row):
                judged = elements_to_explain(row, batch, segment.value.shape)
                near = [d for late in (False, True) for d in effective_directions(segment, FORMATS["float32"], after_failure=late)]
                effects = {d.fault.name: d.known_effect[judged] for d in near if d.known_effect[judged].any()}
                found += [(name, effects)] if fault.name in effects else []
    return found
