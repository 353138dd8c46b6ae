"""The diagnosis of a black box: first the correct network, then the sets of faults that explain a failure, in order.

Its conclusions are frozen values, with one sentence for each fault and its place.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from conformance.diagnosis.black_box import BlackBox, Outputs
from conformance.diagnosis.explanations import BlackBoxCase, JudgedCase
from conformance.diagnosis.inputs import other_inputs, other_order
from conformance.diagnosis.outputs import resolved
from conformance.diagnosis.pooling import EMBEDDING, POOLINGS, declared, in_question
from conformance.diagnosis.problem import NO_FAULTS, PrintedTrial
from conformance.diagnosis.tables import OutputTable
from conformance.errors import UsageError
from conformance.faults.fault import ignored
from conformance.goldens.custom_golden import golden_of
from conformance.judge.evidence import Estimate
from conformance.judge.filters import project
from conformance.judge.number_words import enumerated, figure, hard_coded
from conformance.judge.search.placements import FaultPlacement
from conformance.judge.step_phrases import phrases
from conformance.judge.threads import products_on_one_thread
from conformance.model.activation import SENTENCE
from conformance.model.activations import LAYER
from conformance.model.batch import Batch
from conformance.model.checkpoint import Checkpoint, rounded_weights
from conformance.numerics.formats import format_named

MOST_EXPLANATIONS = 8  # maximum number reported


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
        rms, max: RMS and maximum of the remaining error, in sigma.
        z: projection of the residual on the faults' effect, in standard deviations of the noise's projection; None if the faults
            have no effect.
        evidence: log-likelihood ratio to the correct network, in nats.
        tied: whether it cannot be distinguished from the best explanation on these numbers.
    """

    faults: tuple[FaultAttribution, ...]
    pooling: str
    pooling_differs: bool
    dtype: str
    rms: float
    max: float
    z: float | None
    evidence: float
    tied: bool


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """The conclusions from the outputs of a black box.

    Attributes:
        conforms: whether the correct network explains the outputs.
        outputs: the outputs, each with its number of judged elements.
        digits: decimals of the typical number; None if the numbers are exact.
        stored: the formats narrower than `dtype` in which numbers are stored.
        dtype, arithmetic: the promised format, and the arithmetic under which the correct network is most likely.
        poolings: poolings under which the correct network explains an embedding.
        pooling: pooling under which the correct network is most likely; empty if there is no embedding.
        sigma: median sigma of the numbers.
        rms, max: RMS and maximum of the error against the correct network, in sigma.
        rms_limit, max_limit: their limits, at the false-alarm probability of a run.
        expected_z: if it conforms, the z that each fault with a filter would have if it acted everywhere it can, 0 if it changes
            none of the numbers; they would have revealed those with a z of at least 12.
        detected_faults: faults whose effect a filter finds in the residual although RMS and maximum may pass.
        explanations: the explanations, best first.
        unconfirmed: description of the checkpoint's settings that its parameters do not confirm.
        features: number of features that embeddings are shortened to; None if they are whole.
        undeclared_pooling: whether any pooling of an embedding was allowed, since neither the checkpoint nor the user declares one.
    """

    conforms: bool
    outputs: tuple[tuple[str, int], ...]
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
    expected_z: Mapping[str, float]
    detected_faults: tuple[str, ...]
    explanations: tuple[RankedExplanation, ...]
    unconfirmed: str = ""
    undeclared_pooling: bool = False
    stored: tuple[str, ...] = ()
    features: int | None = None

    @property
    def tied(self) -> tuple[RankedExplanation, ...]:
        """The explanations that cannot be distinguished from the best one, including the best one."""
        return tuple(e for e in self.explanations if e.tied)


def diagnose(
    checkpoint: Checkpoint,
    batch: Batch,
    outputs: Mapping[str, Any],
    *,
    dtype: str = "float32",
    pooling: str | None = None,
    dimensions: int | None = None,
    words: Sequence[Sequence[str]] | None = None,
) -> Diagnosis:
    """Judge the outputs of a black box, and find the faults that explain them if the correct network does not.

    Args:
        checkpoint: the checkpoint that the system should have run.
        batch: the inputs.
        outputs: the outputs by name (`last_hidden_state`, `pooler_output`, `embedding`, `logits`, or any activation's): arrays,
            which are exact in their format; nested lists of numbers, as text if their digits count; or `OutputTable`s.
        dtype: the format that the system computes in.
        pooling: the pooling of an embedding; None: the pooling that the checkpoint declares, or any if it declares none.
        dimensions: number of features that embeddings are shortened to before they are normalised; None: all.
        words: the token of each id, used to report a missing prefix; ids are used if None.

    Returns:
        The diagnosis.

    Raises:
        UsageError: an output does not fit, or the pooling or format is unknown.
    """
    golden_of("outputs", checkpoint, {"outputs": batch})  # raises for inputs that do not fit the architecture
    given = {name: part if isinstance(part, OutputTable) else OutputTable(_plain(part)) for name, part in outputs.items()}
    numbers = resolved(given, checkpoint.architecture, batch, format_named(dtype), dimensions)
    network = _black_box(checkpoint, batch, numbers, pooling, dtype)
    of_sentences = all(name == EMBEDDING or network.table[name].axes == SENTENCE for name in numbers)
    inputs = tuple(other_inputs(batch, words)) if of_sentences else ()  # outputs with one row per token do not fit fewer tokens
    with products_on_one_thread():
        return _diagnosis(BlackBoxCase(checkpoint, network, dtype, inputs))


def _plain(part: Any) -> Any:
    if isinstance(part, list | tuple):
        return part
    array = np.asarray(part)
    return array if array.dtype.kind == "f" else np.asarray(array, np.float64)


def _black_box(checkpoint: Checkpoint, batch: Batch, outputs: Outputs, asked: str | None, dtype: str) -> BlackBox:
    """Return the black box with the given outputs, and the pooling that is asked for, or else that the checkpoint declares.

    Raises:
        UsageError: the format is unknown; a pooling is asked for that is unknown, that the network does not have, or without an
            embedding; an output needs labels that the batch lacks; or no number can be judged.
    """
    architecture, weights = (
        checkpoint.architecture,
        rounded_weights(checkpoint, dtype, cache),
    )  # a search reads them in hundreds of passes
    network = BlackBox(architecture, weights, batch, outputs)
    if EMBEDDING in outputs:
        _require_pooling(asked, network)
        declaration = asked or declared(architecture)
        poolings = in_question(architecture, batch, declaration, network.features)
        network = BlackBox(architecture, weights, batch, outputs, poolings, is_declared=declaration is not None)
    elif asked is not None:
        raise UsageError("a pooling is asked for, and no output is an embedding")
    missing = [name for name in outputs if name != EMBEDDING and name not in network.table]
    if missing:
        raise UsageError(f"{', '.join(missing)} needs labels, which the inputs do not have")
    if not len(network.reading.actual):
        raise UsageError("no number of the outputs can be judged: all belong to padding")
    return network


def _require_pooling(asked: str | None, network: BlackBox) -> None:
    if asked is None:
        return
    if asked not in POOLINGS:
        raise UsageError(f"there is no pooling {asked!r}; known are {', '.join(POOLINGS)}")
    if POOLINGS[asked].base == "pooler" and not network.architecture.pooler:
        raise UsageError(f"the pooling {asked!r} is asked for, and the network has no pooler")
    if POOLINGS[asked].is_cut_last and network.features is None:
        raise UsageError(f"the pooling {asked!r} is of shortened embeddings, and these have all features; give their dimensions")


def _diagnosis(case: BlackBoxCase) -> Diagnosis:
    """Return the diagnosis: the judgement of the correct network and, if it fails, the explanations."""
    judged = case.judged()
    best, base, good = judged.best, judged.base, judged.good
    trials = [] if good else _reordered(judged) or judged.trials(case.right.placements)
    ranked = judged.ranked(trials)[:MOST_EXPLANATIONS]
    limits, reading = base.limits(best.pooling_index), case.network.reading
    printed = reading.units[reading.units > 0.0]
    return Diagnosis(
        conforms=bool(good),
        outputs=reading.names,
        digits=-math.log10(float(np.median(printed))) if len(printed) else None,
        stored=tuple(dict.fromkeys(numbers.stored for numbers in case.network.outputs.values() if numbers.stored)),
        dtype=case.dtype,
        arithmetic=base.hypothesis.arithmetic.name,
        poolings=tuple(case.pooling(index) for index in good if case.network.poolings),
        pooling=case.pooling(best.pooling_index),
        sigma=float(np.median(base.sigma[best.pooling_index])),
        rms=best.rms,
        max=best.max,
        rms_limit=limits.rms,
        max_limit=limits.max,
        expected_z={f.name: f.expected_z for f in judged.filters} if good else {},
        detected_faults=tuple(f.name for f in judged.filters if f.effect is not None),
        explanations=tuple(_explanation(judged, trial, tied=tied) for trial, tied in ranked),
        unconfirmed=case.network.architecture.unconfirmed,
        undeclared_pooling=bool(case.network.poolings) and len(case.network.right_poolings) > 1,
        features=case.network.features,
    )


def _reordered(judged: JudgedCase) -> list[PrintedTrial]:
    """Return the trial of the correct network with the rows in another order, if the outputs then conform; else none."""
    case = judged.case
    other = other_order(case.right)
    if other is None:
        return []
    texts, inputs = other
    outputs = {name: numbers.of_rows(np.argsort(texts)) for name, numbers in case.network.outputs.items()}
    restored = replace(case, network=replace(case.network, outputs=outputs), inputs=()).judged()
    orders = math.lgamma(case.network.batch.size + 1)  # ln of the number of orders, since the best of them is taken
    if not restored.good or restored.best.nll + orders >= judged.best.nll:
        return []
    return [PrintedTrial(NO_FAULTS, True, agreement=restored.best, dtype=case.dtype, inputs=inputs)]


def _explanation(judged: JudgedCase, trial: PrintedTrial, *, tied: bool) -> RankedExplanation:
    """Return a trial in words and numbers."""
    case, base, problem = judged.case, judged.base, judged.problem
    fit, agreement, index = trial.fit, trial.agreement, trial.agreement.pooling_index
    faults = []
    if trial.inputs:
        mistake = trial.inputs.mistake
        faults.append(FaultAttribution(mistake.name, (), mistake.where, trial.inputs.sentence, mistake.cause, None))
    faults += (_attribution(p, e, case.network) for p, e in zip(fit.placements, trial.numbers, strict=True))
    projection = None
    if fit.placements and np.isfinite(effect := (problem.value(fit.placements) - case.right.value)[index]).all():
        projection = project(base.residual[index], effect, base.noise(index))
    return RankedExplanation(
        tuple(faults),
        case.pooling(index),
        index not in case.network.right_poolings,
        trial.dtype,
        agreement.rms,
        agreement.max,
        projection.z if projection else None,
        judged.best.nll - agreement.nll,
        tied,
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
