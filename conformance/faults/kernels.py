"""Faults of a fused kernel that computes the context from query, key and values, beside scores and probabilities that are right.

Code that exposes scores and probabilities often computes them apart from the context, which comes of one call such as
`scaled_dot_product_attention`. A mistake in that call is one of the context alone: the context of the scores, or probabilities,
with a fault of theirs. Where they are not exposed, it is no other function than that fault, which is reported.
"""

from collections.abc import Callable, Iterator

import numpy as np

from conformance.faults.attention import CONTEXT, keys_of, softmax
from conformance.faults.changes import Altered
from conformance.faults.fault import Change, Fault, FaultContext
from conformance.faults.heads import recomputed
from conformance.faults.masks import added_raw, causal, ignored, inverted
from conformance.oracle import Step

_CALL = "Call the kernel with the mask, the scale and the heads of the scores: attn_mask of the keys, scale=None, is_causal=False."

_TILES = (32, 64, 128)  # The usual numbers of keys in a tile of a fused kernel.

Scale = Callable[[Step], float]


def _scaled(scale: Scale) -> Change:
    """Return the change of scores to another factor in place of 1/√d; None if it is that one."""

    def change(step: Step, _: FaultContext) -> Step | None:
        by = scale(step) * step.site.architecture.head_size**0.5
        return None if by == 1.0 else step.replaced(parents=(step.parents[0] * by, *step.parents[1:]))

    return change


def _of_kernel(kind: str, change: Change) -> Change:
    """Return the change of the context to that of the scores, or of the probabilities, with a fault."""

    def of_context(step: Step, context: FaultContext) -> Step | None:
        network, attention = context.network, step.site.activation.name.removesuffix("context")
        scores = network.table.get(f"{attention}scores")
        if scores is None or scores.kind != "scores" or scores.causal:
            return None

        def changed(inner: Step) -> Step:
            return (change(inner, context) if inner.site.activation.kind == kind else None) or inner

        right = recomputed(step, context, network)
        if right is None or np.array_equal(right.probabilities, step.parents[0]):
            return None  # The probabilities are not exposed, but computed from the query and the key.
        # Whether the change is possible depends on the batch and the sizes alone, not on the parents.
        name, parents = ("scores", step.parents[1:] * 2) if kind == "scores" else (kind, step.parents[:1])
        is_possible = change(network.step(f"{attention}{name}", *parents), context) is not None
        return recomputed(step, context, network, changed) if is_possible else None

    return of_context


def _tile(size: int) -> Change:
    """Return the change of the softmax to one over the keys and the zeros that fill up a tile of `size` keys; None if none do."""

    def change(step: Step, _: FaultContext) -> Step | None:
        more = -step.parents[0].shape[-1] % size
        return Altered(step, lambda inner: softmax(inner.parents[0], keys_of(step), more=float(more))) if more else None

    return change


# fmt: off
def faults() -> Iterator[Fault]:
    """Yield the faults of a kernel that computes the context."""
    for name, kind, change, sentence, equation in (
        ("kernel-scale-missing", "scores", _scaled(lambda step: 1.0), "does not divide the scores by √d", "c = softmax(q kᵀ) v"),
        ("kernel-scale-of-width", "scores", _scaled(lambda step: float(step.site.architecture.hidden_size**-0.5)),
         "divides the scores by √H, not by √d", "c = softmax(q kᵀ / √H) v"),
        ("kernel-mask-ignored", "probs", ignored, "attends to padded keys", "c = softmax(q kᵀ / √d) v over all keys"),
        ("kernel-mask-inverted", "probs", inverted, "attends to padded keys only",
         "c = softmax(q kᵀ / √d) v over the keys with mask 0"),
        ("kernel-mask-added-raw", "probs", added_raw, "adds the ones and zeros of the mask to the scores",
         "c = softmax(q kᵀ / √d + mask) v"),
        *((f"kernel-tile-{size}", "probs", _tile(size), f"attends to the zeros that fill up a tile of {size} keys",
           f"c = Σ_j exp(s_j) v_j / (n + Σ_j exp(s_j)), n = −S mod {size}") for size in _TILES),
        ("kernel-causal", "probs", causal, "masks later keys", "c = softmax(q kᵀ / √d) v over the keys j ≤ i"),
    ):
        yield Fault(name, CONTEXT, f"the context is not that of the exposed probabilities: the kernel that computes it {sentence}",
                    "constructed", _of_kernel(kind, change), "a wrong call of scaled_dot_product_attention, or of another kernel",
                    (".self.context",), after_failure=True, equation=equation, fix=_CALL)
# fmt: on
