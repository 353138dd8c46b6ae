"""The detection-power matrix: the expected z of each fault on each golden, in each dtype.

The expected z is computed on the oracle's own activations, under the `modular` arithmetic with parents as captured or under the
widest legal one, at each activation that the fault can act on. At exact activations (look-ups) any difference is detected: the
expected z is infinite.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from conformance.faults import CATALOGUE, training
from conformance.goldens.golden import Golden
from conformance.goldens.manifest import DEFAULT_GOLDENS
from conformance.judge.fault_directions import possible_directions
from conformance.judge.filters import expected_z
from conformance.judge.judged_elements import judged_elements
from conformance.judge.noise import of_segment
from conformance.judge.segment import Segment
from conformance.model.activations import dropouts, parameter_shapes, rate_of
from conformance.model.checkpoint import rounded_weights
from conformance.model.gradients import grad, is_gradient
from conformance.model.training import GIVEN, STEPPED, STEPS, Training, decays
from conformance.numerics.arithmetic import Hypothesis, as_captured, hypotheses, representative_hypothesis
from conformance.numerics.formats import Array
from conformance.numerics.thresholds import SEPARABLE_Z, max_threshold, sidak_share
from conformance.oracle import Network
from conformance.oracle.training_run import TrainingRun

# `modular`: every library call rounds once. `widest`: in half formats, every operation is rounded to storage.
Sigma = Literal["modular", "widest"]

# Goldens whose backward passes are in the matrix; none has relative positions, cross-attention or a pooling.
BACKWARD = (*DEFAULT_GOLDENS, "tanh", "regression", "multi-label")
_OF_TRAINING = {fault.name for fault in training.DROPOUT}


@dataclass(frozen=True)
class Power:
    """A cell of the matrix: the expected z of one fault on one golden in one dtype.

    Attributes:
        golden, dtype, fault: names of golden, format and fault.
        best: the largest expected z.
        weakest, weakest_at: the smallest expected z, and the activation.
        separable: number of activations at which the fault is separable.
        places: number of activations that the fault acts on.
    """

    golden: str
    dtype: str
    fault: str
    best: float
    weakest: float
    weakest_at: str
    separable: int
    places: int


def power(golden: Golden, dtype: str, *, sigma: Sigma = "modular") -> list[Power]:
    """Return a golden's row of the matrix in one dtype, one cell for each fault, in the order of the catalogue.

    Every batch of the golden counts. Goldens in `BACKWARD` include backward passes in both modes; the smallest golden includes
    optimizer steps.

    Args:
        golden: the golden.
        dtype: name of the format.
        sigma: the arithmetic from which sigma is derived.
    """
    legal = as_captured(hypotheses(dtype))
    hypothesis = representative_hypothesis(dtype) if sigma == "modular" else legal[-1]
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for label, network in _passes(golden, dtype):
        for fault, activation, expected in _expected(network, hypothesis):
            found[fault][activation + label] = expected
    return [_cell(golden.name, dtype, fault.name, found[fault.name]) for fault in CATALOGUE if found[fault.name]]


def _passes(golden: Golden, dtype: str) -> Iterator[tuple[str, Network]]:
    """Yield forward passes, backward passes and optimizer steps, each with a label that distinguishes it if there are several."""
    architecture, weights = golden.checkpoint.architecture, rounded_weights(golden.checkpoint, dtype)
    if golden.name == DEFAULT_GOLDENS[0]:
        for label, training in STEPPED.items():
            yield f" [{label}]", _run(golden, training, dtype)
    for name, batch in golden.batches.items():
        forward = Network(architecture, weights, batch)
        yield f" [{name}]" if len(golden.batches) > 1 else "", forward
        if golden.name in BACKWARD:
            for backward in forward.backward_passes():
                yield f" [from {backward.source}]", backward
                yield f" [from {backward.source}, training]", replace(backward, kept=_masks(forward))


def _run(golden: Golden, training: Training, dtype: str) -> TrainingRun:
    """Return optimizer steps of a matrix and of a bias; gradients are rolled by step, because clipping would make them equal."""
    architecture, weights = golden.checkpoint.architecture, rounded_weights(golden.checkpoint, dtype)
    batch = next(iter(golden.batches.values()))
    values = dict(replace(Network(architecture, weights, batch), source="cls.loss").walk())
    gradients = {name: values[grad(name)] for name in parameter_shapes(architecture) if grad(name) in values}
    judged = [next(name for name in gradients if decays(name) is which) for which in (True, False)]
    steps = tuple({name: t * np.roll(g, t, -1) for name, g in gradients.items()} for t in range(1, STEPS + 1))
    return TrainingRun(architecture, weights, batch, training=training, gradients=steps, judged=tuple(judged))


def _masks(network: Network) -> dict[str, Array]:
    """Return dropout masks drawn from a seed; the last layer keeps everything, as if its dropout were missing."""
    a, rng, masks = network.architecture, np.random.default_rng(0), dict[str, Array]()
    for name, row in dropouts(a).items():
        shape = row.shape(network.batch.size, network.batch.length, a.num_attention_heads, network.batch.states_length)
        rate = 0.0 if row.layer == a.num_hidden_layers - 1 else rate_of(name, a)
        masks[name] = (rng.random(shape) >= rate).astype(np.float64)
    return masks


def _expected(network: Network, hypothesis: Hypothesis) -> Iterator[tuple[str, str, float]]:
    """Yield (fault, place, expected z) over one batch.

    A backward pass counts at its gradients only; a pass in training mode counts for its own faults only.
    """
    values: dict[str, Array] = {}
    storage = hypothesis.arithmetic.storage
    for name, row in network.table.items():
        segment = Segment(network, name, values)
        values[name] = segment.value
        if network.table[name].kind in GIVEN or (network.source is not None and not network.kept and not is_gradient(name)):
            continue
        possible = [d for late in (False, True) for d in possible_directions(segment, storage, after_failure=late)]
        asked = [d for d in possible if not network.kept or d.fault.name in _OF_TRAINING]
        effective = [d for d in asked if d.effect is not None]
        if not effective:
            continue
        judged = judged_elements(row, network.batch, segment.value.shape)
        largest = max_threshold(int(judged.sum()), sidak_share(len(network.table)))
        noise = None if row.exact else of_segment(segment, hypothesis, judged)
        for direction in effective:
            if noise is None:
                z = float("inf") if np.where(judged, direction.known_effect, 0.0).any() else 0.0
            else:
                z = expected_z(direction.known_effect, noise, largest)
            yield direction.fault.name, name, z


def _cell(golden: str, dtype: str, fault: str, places: dict[str, float]) -> Power:
    weakest = min(places, key=lambda name: places[name])
    separable = sum(z >= SEPARABLE_Z for z in places.values())
    return Power(golden, dtype, fault, max(places.values()), places[weakest], weakest, separable, len(places))
