"""One trial: mistakes planted in a network, what they do there, and what the suite says of them."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from conformance.benchmarks.detection.bert import Candidate
from conformance.benchmarks.detection.networks import network
from conformance.benchmarks.detection.planted import PLANTS
from conformance.checks.run import check_values
from conformance.judge.filters import project
from conformance.judge.noise import of_segment
from conformance.judge.segment import Segment
from conformance.judge.selection import explained_elements
from conformance.judge.statistics import FALSE_ALARM, SEPARABLE_Z, projection_threshold
from conformance.model.checkpoint import Checkpoint, rounded_weights
from conformance.numerics.arithmetic import hypotheses, modular
from conformance.numerics.formats import Format
from conformance.oracle import Network
from conformance.report.findings import Finding, findings
from conformance.results.records import ActivationRecord, FaultRecord
from conformance.results.to_records import activation_records

ALIASES: Mapping[str, str] = {
    "bias-negated": "bias-other",
    "decoder-untied": "parameters-other",
    "first-token-zeroed": "tokens-zero",
    "mask-diagonal": "mask-by-query",
    "mask-of-first-row": "mask-ignored",
    "norm-by-variance": "norm-statistics-other",
    "parameters-default": "norm-affine-missing",
    "residual-subtracted": "residual-scaled",
    "sublayer-doubled": "sublayer-scaled",
}
"""Planted under one name, named by another, since they are the same to what is computed."""

ESTIMATES: Mapping[str, float] = {
    "epsilon": 1e-5, "scale-missing": 1.0, "softmax-temperature": 2.0, "gelu-argument": 1.0, "gelu-tanh-constant": 0.44715,
    "residual-scaled": 0.5**0.5, "mask-constant": float(np.exp(-1.0)), "epsilon-outside-root": 1e-5,
    "norm-unbiased-deviation": 1e-3, "sublayer-scaled": 0.9,
}  # fmt: skip
"""The number that was planted, as it is written."""

Place = tuple[str, int]  # a mistake's name, and the layer


@dataclass(frozen=True)
class Trial:
    """Mistakes planted together in the network of an architecture and a seed, judged in a dtype."""

    plants: tuple[Place, ...]
    architecture: str
    seed: int
    dtype: str


@dataclass(frozen=True)
class Score:
    """What came of a trial.

    Attributes:
        expected_z: of the mistake that is hardest to see.
        detected: the candidate does not conform.
        placed: every mistake fails at a step where it begins, and no activation fails where none does.
        named: every mistake's name is reported first at its place, and no name that is not there.
        alone: and none but it is reported there.
        estimates, within: numbers that were estimated, and those within their error bars at a false-alarm probability of 1e-6.
        judged: activations that were judged.
    """

    trial: Trial
    expected_z: float
    detected: bool
    placed: bool
    named: bool
    alone: bool
    estimates: int
    within: int
    judged: int
    rendered: tuple[str, ...]

    @property
    def counted(self) -> bool:
        """Whether all of it could be distinguished from rounding."""
        return self.expected_z >= SEPARABLE_Z


def scored(trial: Trial) -> Score:
    """Plant, judge, compare."""
    golden = network(trial.architecture, trial.seed)
    plants = [PLANTS[name].at(layer) for name, layer in trial.plants]
    result = check_values(Candidate(plants), golden, dtype=trial.dtype)
    if result.outcome not in ("pass", "fail"):
        raise RuntimeError(f"{trial}: {result.outcome}: {result.reason}")
    records = activation_records(result)
    found = findings(records)
    estimates = _estimates(trial, found)
    return Score(
        trial,
        min(expected_z(place, trial) for place in trial.plants),
        result.outcome == "fail",
        _is_placed(trial, records),
        _is_named(trial, found),
        not any(f.others for f in found),
        len(estimates),
        sum(estimates),
        result.coverage[0],
        tuple(f.fault.name if f.fault else "no name" for f in found),
    )


def _origins(place: Place, trial: Trial) -> frozenset[str]:
    return PLANTS[place[0]].origins(network(trial.architecture, trial.seed).checkpoint.architecture, place[1])


def _is_placed(trial: Trial, records: list[ActivationRecord]) -> bool:
    failed = {r.activation for r in records if r.outcome == "fail"}
    origins = [_origins(place, trial) for place in trial.plants]
    return bool(failed) and failed <= frozenset().union(*origins) and all(failed & o for o in origins)


def _is_named(trial: Trial, found: list[Finding]) -> bool:
    """Each planted mistake is reported by name, alone or with what it cannot be distinguished from, and nothing else is."""
    wanted = {_known_as(name) for name, _ in trial.plants}
    rendered = [{_known_as(name) for name in (f.fault.name, *f.others)} if f.fault else set() for f in found]
    return all(any(name in names for names in rendered) for name in wanted) and all(names & wanted for names in rendered)


def _known_as(name: str) -> str:
    """The name that the suite has for it; a product of operands that are of the format already only has its result rounded."""
    return ALIASES.get(name, name).replace("result-", "precision-")


def _estimates(trial: Trial, found: list[Finding]) -> list[bool]:
    """Whether each number that was planted lies within its error bar."""
    names = {name for name, _ in trial.plants}
    rendered = [f.fault for f in found if f.fault and f.fault.name in names & ESTIMATES.keys()]
    accumulate = hypotheses(trial.dtype)[0].arithmetic.accumulate
    return [_is_within(fault, accumulate) for fault in rendered if fault.estimate is not None and fault.deviation is not None]


def _is_within(fault: FaultRecord, accumulate: Format) -> bool:
    """Of the number that was planted as torch computes with it: a scalar is rounded to the format of accumulation."""
    assert fault.estimate is not None
    assert fault.deviation is not None
    planted = float(accumulate.round(np.asarray(ESTIMATES[fault.name])))
    return abs(fault.estimate - planted) <= projection_threshold(FALSE_ALARM) * fault.deviation


def expected_z(place: Place, trial: Trial) -> float:
    """The z that a filter made for just this mistake would see at the best of its steps, from its effect in float64.

    In the company of the trial's other mistakes, which may take from it what it would act upon.
    """
    golden = network(trial.architecture, trial.seed)
    checkpoint = Checkpoint(golden.checkpoint.architecture, rounded_weights(golden.checkpoint, trial.dtype))
    ((_, batch),) = golden.batches.items()
    plants = [PLANTS[name].at(layer) for name, layer in trial.plants]
    made = Candidate(plants).prepare(checkpoint, "cpu", "float64")(batch.on("cpu"))
    values = {name: np.asarray(value.numpy(), np.float64) for name, value in made.items()}
    net = Network(checkpoint.architecture, checkpoint.weights, batch)
    hypothesis = modular(trial.dtype)
    best = 0.0
    for origin in _origins(place, trial):
        if origin not in values or origin not in net.table:
            continue
        order = list(net.table)
        segment = Segment(net, origin, {n: v for n, v in values.items() if order.index(n) < order.index(origin)})
        moved = values[origin] - segment.value
        judged = explained_elements(net.table[origin], batch, moved.shape)
        if net.table[origin].exact and np.where(judged, moved, 0.0).any():
            return float("inf")
        if not net.table[origin].exact and np.isfinite(moved[judged]).all():
            found = project(moved, moved, of_segment(segment, hypothesis, judged))
            best = max(best, found.expected_z if found else 0.0)
    return best
