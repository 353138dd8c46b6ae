"""A fused attention in place of the port's context, which it computes from query, key, value and mask."""

from collections.abc import Callable

from torch import Tensor

from conformance.benchmarks.detection.blind.port import Operation, Port, probs, scores

Kernel = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""Of query, key and value, (B, h, S, d), and the mask, (B, S), the context, (B, h, S, d)."""


def fused(kernel: Kernel) -> dict[str, Operation]:
    """The steps of an attention that shows right scores and probabilities and does not use them."""
    kept: dict[str, Tensor] = {}

    def keep_inputs(port: Port, layer: int, query: Tensor, key: Tensor) -> Tensor:
        kept.update(query=port.split(query), key=port.split(key))
        return scores(port, layer, query, key)

    def keep_mask(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
        kept.update(mask=mask)
        return probs(port, layer, x, mask)

    def of_kernel(port: Port, layer: int, weights: Tensor, value: Tensor) -> Tensor:
        return kernel(kept["query"], kept["key"], port.split(value), kept["mask"]).transpose(1, 2).flatten(2)

    return {"scores": keep_inputs, "probs": keep_mask, "context": of_kernel}
