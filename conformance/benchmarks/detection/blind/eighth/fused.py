"""Attention as one step, as a library's fused operation computes it, in place of scores, softmax and weighted sum."""

from collections.abc import Callable, Mapping

from torch import Tensor

from conformance.benchmarks.detection.blind.port import Operation, Port, probs, scores

_QUERY, _KEY, _MASK = "query of the fused step", "key of the fused step", "mask of the fused step"


def fused(attend: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]) -> Mapping[str, Operation]:
    """The steps with which `attend` gives the context; scores and probabilities remain those of the right network.

    Args:
        attend: of query, key and value, (B, h, S, d) each, and mask, (B, S); returns (B, h, S, d).
    """

    def kept_scores(port: Port, layer: int, query: Tensor, key: Tensor) -> Tensor:
        port.found[_QUERY], port.found[_KEY] = query, key
        return scores(port, layer, query, key)

    def kept_mask(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
        port.found[_MASK] = mask
        return probs(port, layer, x, mask)

    def context(port: Port, layer: int, _: Tensor, value: Tensor) -> Tensor:
        query, key = (port.split(port.found.pop(name)) for name in (_QUERY, _KEY))
        return attend(query, key, port.split(value), port.found.pop(_MASK)).transpose(1, 2).flatten(2)

    return {"scores": kept_scores, "probs": kept_mask, "context": context}
