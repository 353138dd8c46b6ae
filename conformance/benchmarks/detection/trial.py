"""A trial: mistakes planted in a network, their effects, and the suite's findings."""

from dataclasses import dataclass

import numpy as np

from conformance.benchmarks.detection.bert import Candidate
from conformance.benchmarks.detection.networks import network
from conformance.benchmarks.detection.planted import PLANTS
from conformance.checks.check_values import check_values
from conformance.judge.filters import project
from conformance.judge.judged_elements import elements_to_explain
from conformance.judge.noise import of_segment
from conformance.judge.segment import Segment
from conformance.model.checkpoint import Checkpoint, rounded_weights
from conformance.numerics.arithmetic import Hypothesis, hypotheses, representative_hypothesis
from conformance.numerics.formats import Format
from conformance.numerics.thresholds import FALSE_ALARM, SEPARABLE_Z, projection_threshold
from conformance.oracle import Network
from conformance.report.findings import Finding, findings
from conformance.results.records import ActivationRecord, FaultRecord
from conformance.results.to_records import activation_records

Place = tuple[str, int]  # The name of a mistake, and its layer.


@dataclass(frozen=True)
class Trial:
    """Mistakes planted together in the network of an architecture and a seed, judged in a dtype."""

    plants: tuple[Place, ...]
    architecture: str
    seed: int
    dtype: str


@dataclass(frozen=True)
class Score:
    """The result of a trial.

    Attributes:
        trial: the trial.
        expected_z: expected z of the mistake that is hardest to detect.
        detected: whether the candidate was found not to conform.
        placed: whether every mistake fails at a step where it begins, and no other activation fails.
        named: whether every mistake is reported first at its place, and no other name is reported.
        alone: whether no alternative to these names is reported.
        estimates, within: number of estimated parameters, and of those within their error bars, at the false-alarm
            probability of a run.
        judged: number of judged activations.
        rendered: names of the findings, in order.
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
        """Whether every mistake of the trial is distinguishable from rounding."""
        return self.expected_z >= SEPARABLE_Z


def scored(trial: Trial) -> Score:
    """Plant the mistakes of a trial, judge the candidate, and compare the findings with the mistakes.

    Raises:
        RuntimeError: the candidate could not be judged.
    """
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
    """Return whether each planted mistake, and nothing else, is reported by name, alone or with indistinguishable mistakes."""
    wanted = {_known_as(name) for name, _ in trial.plants}
    rendered = [{_known_as(name) for name in (f.fault.name, *f.others)} if f.fault else set() for f in found]
    return all(any(name in names for names in rendered) for name in wanted) and all(names & wanted for names in rendered)


def _known_as(name: str) -> str:
    """Return the suite's name of a mistake.

    For a product of operands that already are in the format, rounding operands and result is the same as rounding the result.
    """
    plant = PLANTS.get(name)
    return (plant.reported_as if plant and plant.reported_as else name).replace("result-", "precision-")


def _estimates(trial: Trial, found: list[Finding]) -> list[bool]:
    """Return whether each planted parameter lies within its error bar."""
    values = {name: value for name, _ in trial.plants if (value := PLANTS[name].value) is not None}
    rendered = [f.fault for f in found if f.fault and f.fault.name in values]
    accumulate = hypotheses(trial.dtype)[0].arithmetic.accumulate
    return [
        _is_within(fault, values[fault.name], accumulate)
        for fault in rendered
        if fault.estimate is not None and fault.deviation is not None
    ]


def _is_within(fault: FaultRecord, value: float, accumulate: Format) -> bool:
    """Return whether the planted value lies within the error bar, rounded to the accumulation format as torch does with scalars."""
    assert fault.estimate is not None
    assert fault.deviation is not None
    planted = float(accumulate.round(np.asarray(value)))
    return abs(fault.estimate - planted) <= projection_threshold(FALSE_ALARM) * fault.deviation


def least_expected_z(trial: Trial) -> float:
    """Return the expected z under the widest legal arithmetic, of the mistake of the trial that is hardest to detect."""
    return min(expected_z(place, trial, hypotheses(trial.dtype)[-1]) for place in trial.plants)


def expected_z(place: Place, trial: Trial, hypothesis: Hypothesis | None = None) -> float:
    """Return the z that a filter made for this mistake would have at the best of its steps, from its effect in float64.

    The trial's other mistakes are planted as well, since they may change the input that this mistake acts on.

    Args:
        place: the mistake, and its layer.
        trial: the trial.
        hypothesis: the legal arithmetic; default: the representative one.
    """
    golden = network(trial.architecture, trial.seed)
    checkpoint = Checkpoint(golden.checkpoint.architecture, rounded_weights(golden.checkpoint, trial.dtype))
    ((_, batch),) = golden.batches.items()
    plants = [PLANTS[name].at(layer) for name, layer in trial.plants]
    made = Candidate(plants).prepare(checkpoint, "cpu", "float64")(batch.on("cpu"))
    values = {name: np.asarray(value.numpy(), np.float64) for name, value in made.items()}
    net = Network(checkpoint.architecture, checkpoint.weights, batch)
    hypothesis = hypothesis or representative_hypothesis(trial.dtype)
    best = 0.0
    for origin in _origins(place, trial):
        if origin not in values or origin not in net.table:
            continue
        order = list(net.table)
        segment = Segment(net, origin, {n: v for n, v in values.items() if order.index(n) < order.index(origin)})
        effect = values[origin] - segment.value
        judged = elements_to_explain(net.table[origin], batch, effect.shape)
        if net.table[origin].exact and np.where(judged, effect, 0.0).any():
            return float("inf")
        if not net.table[origin].exact and np.isfinite(effect[judged]).all():
            found = project(effect, effect, of_segment(segment, hypothesis, judged))
            best = max(best, found.expected_z if found else 0.0)
    return best
