"""One origin for layers that are run in the wrong order.

A layer whose activations arrive after the output of a later layer was run after it, if the candidate yields activations in the
order of computation. The steps of the layers in between were judged as if that layer were not exposed, and fail in consequence:
they are reported as not judged, since the order has to be corrected before anything can be said about them.
"""

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace

from conformance.errors import CandidateError
from conformance.judge.evidence import Verdict
from conformance.model.activations import LAYER, is_layer_output

_IF_IN_ORDER = "if the adaptor yields activations in the order of computation, the layers are run in the wrong order"
_CONSEQUENCE = "not judged: the layers are run in the wrong order"


class ComputedAfterError(CandidateError):
    """An activation of a layer arrives after the output of a later layer.

    Attributes:
        layer: index of the later layer.
    """

    def __init__(self, layer: int) -> None:
        """Initialize the error with the index of the later layer."""
        super().__init__(f"computed after layer {layer}'s output; {_IF_IN_ORDER}")
        self.layer = layer


def require_before(name: str, last: str) -> None:
    """Raise `CandidateError` for an activation that arrives after the output `last`, up to which everything is judged."""
    place, ahead = LAYER.fullmatch(name), LAYER.fullmatch(last)
    if place and ahead and int(place[1]) < int(ahead[1]):
        raise ComputedAfterError(int(ahead[1]))
    raise CandidateError("arrived after the output of its layer; yield activations in the order of computation")


def with_one_origin(verdicts: Sequence[Verdict], layers: int) -> list[Verdict]:
    """Return the verdicts of one pass, with one origin for all layers that were computed after a later one.

    Args:
        verdicts: verdicts in the order in which they were made.
        layers: number of layers of the network.
    """
    after = dict(_late(verdicts))
    if not after:
        return list(verdicts)
    origin = next((name for name in after if is_layer_output(name)), next(iter(after)))
    behind = {layer: last for name, (layer, last) in after.items() if is_layer_output(name)}
    reason = _order(behind, layers) if behind else str(ComputedAfterError(after[origin][1]))
    # The steps that read the output of the last of these layers fail as well.
    disordered = range(min(layer for layer, _ in after.values()), max(last for _, last in after.values()) + 2)
    made: list[Verdict] = []
    for verdict in verdicts:
        if verdict.activation == origin and verdict.computed_after is not None:
            made.append(replace(verdict, reason=reason))
        else:
            made.append(_as_consequence(verdict) if _is_consequence(verdict, after, disordered, layers) else verdict)
    return made


def _late(verdicts: Sequence[Verdict]) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield each activation that arrived after the output of a later layer, with its layer and that one."""
    for verdict in verdicts:
        place = LAYER.fullmatch(verdict.activation)
        if place and verdict.computed_after is not None:
            yield verdict.activation, (int(place[1]), verdict.computed_after)


def _is_consequence(verdict: Verdict, late: Container[str], disordered: Container[int], layers: int) -> bool:
    """Return whether a verdict fails because its layer, or the one before, is run out of order."""
    place = LAYER.fullmatch(verdict.activation)
    # Outside the layers, an activation is in the embeddings, before all layers, or is computed from the last layer's output.
    stage = int(place[1]) if place else -1 if verdict.activation.startswith("embeddings.") else layers
    return verdict.outcome == "fail" and stage in disordered and (not verdict.reason or verdict.activation in late)


def _as_consequence(verdict: Verdict) -> Verdict:
    return Verdict(verdict.activation, verdict.kind, "not_observed", reason=_CONSEQUENCE, batch=verdict.batch)


def _order(behind: Mapping[int, int], layers: int) -> str:
    """Return the sentence about the order in which layers are run.

    Example:
        >>> _order({1: 2}, 4)
        'layers 1 and 2 are run in the order 2, 1'
    """
    order = [each for n in range(layers) if n not in behind for each in (n, *(b for b, last in behind.items() if last == n))]
    moved = [(n, each) for n, each in enumerate(order) if n != each]
    first, last = moved[0][0], moved[-1][0]
    which = f"{first} and {last}" if last == first + 1 else f"{first} to {last}"
    return f"layers {which} are run in the order {', '.join(str(each) for each in order[first : last + 1])}"
