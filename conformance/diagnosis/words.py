"""A diagnosis in words: one sentence for each fault and its place."""

from collections.abc import Sequence

from conformance.diagnosis.closed import BlackBox
from conformance.diagnosis.evidence import FaultAttribution
from conformance.diagnosis.hypotheses import FaultPlacement, layers_of
from conformance.diagnosis.inputs import OtherInputs
from conformance.faults.fault import ignored
from conformance.judge.evidence import Estimate
from conformance.judge.words import figure, hard_coded


def blamed(placement: FaultPlacement, estimate: Estimate | None, network: BlackBox) -> FaultAttribution:
    """Return a fault in words, with the estimate of its parameter."""
    fault = placement.fault
    sentence = fault.sentence
    if estimate is not None:
        value = f"{figure(estimate.value, estimate.deviation)} ± {estimate.deviation:.1g}"
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
    return (FaultAttribution(inputs.mistake.name, (), "in the inputs", inputs.sentence, inputs.mistake.cause, None),)


def where(places: Sequence[str], layers: int) -> str:
    """Return places in words: `in every layer, attention.output.LayerNorm and output.LayerNorm; in embeddings.LayerNorm`."""
    by_layers: dict[tuple[int, ...], list[str]] = {}
    for kind, applied in layers_of(places).items():
        by_layers.setdefault(applied, []).append(kind)
    rendered = []
    for applied, kinds in sorted(by_layers.items(), key=lambda pair: not pair[0]):
        names = _listed(kinds)
        if not applied:
            rendered.append(f"in {names}")
        elif len(applied) == layers and layers > 1:
            rendered.append(f"in every layer, {names}")
        elif len(applied) == 1:
            rendered.append(f"in layer {applied[0]}, {names}")
        else:
            rendered.append(f"in layers {_listed([str(i) for i in applied])}, {names}")
    return "; ".join(rendered)


def _listed(texts: Sequence[str]) -> str:
    return " and ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)
