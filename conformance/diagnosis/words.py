"""A diagnosis in words: what is wrong and where, a sentence each."""

from collections.abc import Sequence

from conformance.diagnosis.closed import Closed
from conformance.diagnosis.evidence import Blamed
from conformance.diagnosis.hypotheses import Strike, layers_of
from conformance.faults.fault import ignored
from conformance.judge.evidence import Estimate
from conformance.judge.words import figure, hard_coded


def blamed(strike: Strike, estimate: Estimate | None, network: Closed) -> Blamed:
    """A fault in words."""
    fault = strike.fault
    sentence = fault.sentence
    if estimate is not None:
        value = f"{figure(estimate.value, estimate.deviation)} ± {estimate.deviation:.1g}"
        sentence = sentence.replace("{value}", value).replace("{right}", f"{estimate.right:.7g}")
        if fault.parameter and hard_coded(fault.parameter, estimate.value, estimate.deviation, estimate.right):
            sentence += ignored(fault.parameter.setting)
    return Blamed(
        fault.name, strike.places, where(strike.places, network.architecture.num_hidden_layers), sentence, fault.cause, estimate
    )


def where(places: Sequence[str], layers: int) -> str:
    """`in every layer, attention.output.LayerNorm and output.LayerNorm; in embeddings.LayerNorm`."""
    by_layers: dict[tuple[int, ...], list[str]] = {}
    for kind, struck in layers_of(places).items():
        by_layers.setdefault(struck, []).append(kind)
    told = []
    for struck, kinds in sorted(by_layers.items(), key=lambda pair: not pair[0]):
        names = _listed(kinds)
        if not struck:
            told.append(f"in {names}")
        elif len(struck) == layers and layers > 1:
            told.append(f"in every layer, {names}")
        elif len(struck) == 1:
            told.append(f"in layer {struck[0]}, {names}")
        else:
            told.append(f"in layers {_listed([str(i) for i in struck])}, {names}")
    return "; ".join(told)


def _listed(texts: Sequence[str]) -> str:
    return " and ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)
