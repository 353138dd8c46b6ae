"""The correct variants of the detection benchmark, with a backward pass by autograd."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from conformance import CandidateError, Checkpoint, ModuleRunner, TorchBatch, load_golden
from conformance.benchmarks.detection.variant import Variant, as_given
from conformance.benchmarks.detection.variants import VARIANTS
from conformance.model.activations import parameter_shapes

GOLDEN = "tiny"
# Variants whose parameters are derived from those of the checkpoint.
OTHERWISE_STORED = ("query, key and value in one product", "scale in the query's parameters")

WITHOUT_GRADIENT = ("GELU by a table of every number",)  # Autograd has no gradient for a table look-up.

# Formats in which the gradient of a correct variant has a larger error than a correct gradient, or is not finite.
EXCEPT = {
    # torch's gradient of rsqrt has the factor r³, up to 2.3e5 here for r = 1/√(σ² + ε); float16 ends at 65504.
    "norm with one factor, every operation rounded": ("float16",),
    # The gradient with respect to 16 x is a sixteenth of that with respect to x, which loses bits below float16's normal numbers.
    "products of operands scaled by powers of two": ("float16",),
}


@dataclass(frozen=True)
class Differentiated:
    """A variant whose runner has a backward pass."""

    variant: Variant

    def supports(self, *case: Any) -> str | None:
        """Return why the variant does not support a case, or None."""
        return self.variant.supports(*case)

    def prepare(self, checkpoint: Checkpoint, device: str, dtype: str) -> ModuleRunner:
        """Return a runner of the network that yields activations and gradients."""
        bert, requested = self.variant.build(checkpoint, device, dtype), getattr(torch, dtype)
        parameters = parameter_shapes(checkpoint.architecture)

        def gradients(batch: TorchBatch, source: str, gradient: Tensor) -> Iterator[tuple[str, Tensor]]:
            weights = {name: weight.detach().clone().requires_grad_() for name, weight in bert.weights.items()}
            results = {n: value for n, value in replace(bert, weights=weights)(batch).items() if self.variant.exposes(n)}
            if source not in results:
                raise CandidateError(f"{source} is not exposed")
            yield from ((name, value.detach().to(requested)) for name, value in results.items())
            wanted = {name: value for name, value in (results | weights).items() if name in results or name in parameters}
            start = gradient.to(results[source].dtype)
            reached = torch.autograd.grad(results[source], list(wanted.values()), start, allow_unused=True)
            for (name, value), result in zip(wanted.items(), reached, strict=True):
                yield f"{name}.grad", (torch.zeros_like(value) if result is None else result).to(requested)

        return ModuleRunner(nn.Identity(), self.variant.runner(bert, dtype), gradients)


def _has_a_backward_pass(variant: Variant) -> bool:
    """Return whether the variant runs its batch at once, including losses, and shows more than one output."""
    return variant.arranged is as_given and not variant.last_only


CORRECT: Mapping[str, Differentiated] = {
    name: Differentiated(replace(variant, dtypes=tuple(d for d in variant.dtypes if d not in EXCEPT.get(name, ()))))
    for name, variant in VARIANTS.items()
    if _has_a_backward_pass(variant)
    and name not in (*OTHERWISE_STORED, *WITHOUT_GRADIENT)
    and variant.fits(load_golden(GOLDEN).checkpoint.architecture)
}
"""The variants of the golden's architecture, by name."""

__all__ = ["CORRECT", "GOLDEN", "Differentiated"]
