"""A diagnosis in words: one sentence for each fault and its place."""

from collections.abc import Sequence

from conformance.diagnosis.black_box import BlackBox
from conformance.diagnosis.conclusions import FaultAttribution
from conformance.diagnosis.input_mistakes import OtherInputs
from conformance.faults.fault import ignored
from conformance.judge.evidence import Estimate
from conformance.judge.number_words import enumerated, figure, hard_coded
from conformance.judge.search.placements import FaultPlacement
from conformance.judge.step_phrases import phrases
from conformance.model.activations import LAYER


def attribution_of(placement: FaultPlacement, estimate: Estimate | None, network: BlackBox) -> FaultAttribution:
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
        where(placement.places, network.architecture.num_hidden_layers),
        sentence,
        fault.cause,
        estimate,
    )


def faults_of_inputs(inputs: OtherInputs | None) -> tuple[FaultAttribution, ...]:
    """Return the mistake in the inputs in words; empty if there is none."""
    if inputs is None:
        return ()
    return (FaultAttribution(inputs.mistake.name, (), inputs.mistake.where, inputs.sentence, inputs.mistake.cause, None),)


def where(places: Sequence[str], layers: int) -> str:
    """Return places in words: `in every layer, attention.output.LayerNorm and output.LayerNorm; in embeddings.LayerNorm`."""
    inside_first = sorted(places, key=lambda place: LAYER.fullmatch(place) is None)
    return "; ".join(f"in {phrase}" for phrase in phrases(inside_first, layers, lambda found: enumerated([*map(str, found)])))
