"""The conclusions of a diagnosis, as frozen values: one sentence for each fault and its place."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from conformance.diagnosis.black_box import BlackBox
from conformance.diagnosis.explanations import JudgedCase
from conformance.diagnosis.problem import PrintedTrial
from conformance.faults.fault import ignored
from conformance.judge.evidence import Estimate
from conformance.judge.filters import project
from conformance.judge.number_words import enumerated, figure, hard_coded
from conformance.judge.search.placements import FaultPlacement
from conformance.judge.step_phrases import phrases
from conformance.model.activations import LAYER


@dataclass(frozen=True)
class FaultAttribution:
    """A fault of an explanation.

    Attributes:
        name: name of the fault in the catalogue.
        places: activations on whose steps the fault acts.
        where: the places in words.
        sentence: description of the fault, with its parameter's value.
        cause: usual cause of the fault.
        estimate: estimate of the fault's parameter; None for a fault without a parameter.
    """

    name: str
    places: tuple[str, ...]
    where: str
    sentence: str
    cause: str
    estimate: Estimate | None


@dataclass(frozen=True)
class RankedExplanation:
    """A set of faults, a pooling and a format under which the oracle reproduces the numbers.

    Attributes:
        faults: the faults; empty if the pooling or the format alone explains the numbers.
        pooling: name of the pooling; empty if there is no embedding.
        pooling_differs: whether it differs from the pooling that was asked for.
        dtype: the format in which the system computes.
        explains: whether the remaining error passes as rounding.
        rms, max: RMS and maximum of the remaining error, in sigma.
        z: projection of the residual on the faults' effect, in standard deviations of the noise's projection; None if the faults
            have no effect.
        evidence: log-likelihood ratio to the correct network, in nats.
        accounted: fraction of Σ r²/σ² that the explanation accounts for.
        free: number of fitted parameters.
        tied: whether it cannot be distinguished from the best explanation on these numbers.
        nll: −ln of the numbers' likelihood, up to a constant.
    """

    faults: tuple[FaultAttribution, ...]
    pooling: str
    pooling_differs: bool
    dtype: str
    explains: bool
    rms: float
    max: float
    z: float | None
    evidence: float
    accounted: float
    free: int
    tied: bool
    nll: float


@dataclass(frozen=True)
class Unseen:
    """A fault that the numbers could not have revealed.

    Attributes:
        name: name of the fault.
        expected_z: the z that the fault would have if it were present; 0 if it changes none of the numbers.
    """

    name: str
    expected_z: float


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """The conclusions from the outputs of a black box.

    Attributes:
        conforms: whether the correct network explains the outputs.
        outputs: the outputs, each with its number of judged elements.
        elements: total number of judged elements.
        digits: decimals of the typical number; None if the numbers are exact.
        stored: the formats narrower than `dtype` in which numbers are stored.
        dtype, arithmetic: the promised format, and the arithmetic under which the correct network is most likely.
        poolings: poolings under which the correct network explains an embedding.
        pooling: pooling under which the correct network is most likely; empty if there is no embedding.
        sigma: median sigma of the numbers.
        rms, max: RMS and maximum of the error against the correct network, in sigma.
        rms_limit, max_limit: their limits, at the false-alarm probability of a run.
        shown: if it conforms, the faults that the numbers would have revealed, at an expected z of at least 12, if they acted
            everywhere they can.
        unseen: the faults that the numbers would not have revealed.
        detected_faults: faults whose effect a filter finds in the residual although RMS and maximum may pass.
        explanations: the explanations, best first.
        cut_short: description of what the search left out when its time ran out; else empty.
        unconfirmed: description of the checkpoint's settings that its parameters do not confirm.
        features: number of features that embeddings are shortened to; None if they are whole.
        undeclared_pooling: whether any pooling of an embedding was allowed, since neither the checkpoint nor the user declares one.
    """

    conforms: bool
    outputs: tuple[tuple[str, int], ...]
    elements: int
    digits: float | None
    dtype: str
    arithmetic: str
    poolings: tuple[str, ...]
    pooling: str
    sigma: float
    rms: float
    max: float
    rms_limit: float
    max_limit: float
    shown: tuple[str, ...]
    unseen: tuple[Unseen, ...]
    detected_faults: tuple[str, ...]
    explanations: tuple[RankedExplanation, ...]
    cut_short: str = ""
    unconfirmed: str = ""
    undeclared_pooling: bool = False
    stored: tuple[str, ...] = ()
    features: int | None = None

    @property
    def tied(self) -> tuple[RankedExplanation, ...]:
        """The explanations that cannot be distinguished from the best one, including the best one."""
        return tuple(e for e in self.explanations if e.tied)


def explanation_of(judged: JudgedCase, trial: PrintedTrial, *, tied: bool) -> RankedExplanation:
    """Return a trial in words and numbers."""
    case, base, problem = judged.case, judged.base, judged.problem
    fit, agreement, index = trial.fit, trial.agreement, trial.agreement.pooling_index
    faults = []
    if trial.inputs:
        mistake = trial.inputs.mistake
        faults.append(FaultAttribution(mistake.name, (), mistake.where, trial.inputs.sentence, mistake.cause, None))
    faults += (_attribution(p, e, case.network) for p, e in zip(fit.placements, problem.estimates(fit), strict=True))
    projection = None
    if fit.placements and np.isfinite(effect := (problem.value(fit.placements) - case.right.value)[index]).all():
        projection = project(base.residual[index], effect, base.noise(index))
    before = float(base.squares[judged.best.pooling_index])
    return RankedExplanation(
        tuple(faults),
        case.pooling(index),
        index not in case.network.right_poolings,
        trial.dtype,
        trial.explains,
        agreement.rms,
        agreement.max,
        projection.z if projection else None,
        judged.best.nll - agreement.nll,
        1.0 - float(fit.squares[index]) / before if before else 0.0,
        trial.free,
        tied,
        agreement.nll,
    )


def _attribution(placement: FaultPlacement, estimate: Estimate | None, network: BlackBox) -> FaultAttribution:
    """Return a fault in words, with the estimate of its parameter."""
    fault = placement.fault
    sentence = fault.sentence_at(network.table[placement.places[0]].kind)
    if estimate is not None:
        value = f"{figure(estimate.value, estimate.deviation)} ± {estimate.deviation:.1g}"
        value = f"{value} = {estimate.closed_form}" if estimate.closed_form else value
        sentence = sentence.replace("{value}", value).replace("{right}", f"{estimate.right:.7g}")
        if fault.parameter and hard_coded(fault.parameter, estimate.value, estimate.deviation, estimate.right):
            sentence += ignored(fault.parameter.setting)
    return FaultAttribution(
        fault.name,
        placement.places,
        _where(placement.places, network.architecture.num_hidden_layers),
        sentence,
        fault.cause,
        estimate,
    )


def _where(places: Sequence[str], layers: int) -> str:
    """Return places in words: `in every layer, attention.output.LayerNorm and output.LayerNorm; in embeddings.LayerNorm`."""
    inside_first = sorted(places, key=lambda place: LAYER.fullmatch(place) is None)
    return "; ".join(f"in {phrase}" for phrase in phrases(inside_first, layers, lambda found: enumerated([*map(str, found)])))
