"""The correct variants of the detection benchmark, with a backward pass by autograd."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from conformance import Checkpoint, ModuleRunner, Tap, TorchBatch, captured_with_gradients, load_golden
from conformance.benchmarks.detection.batching import as_given
from conformance.benchmarks.detection.bert import stored_name
from conformance.benchmarks.detection.variant import Variant
from conformance.benchmarks.detection.variants import VARIANTS
from conformance.model.activations import parameter_shapes, table

GOLDEN = "tiny"
# Variants whose parameters are derived from those of the checkpoint.
OTHERWISE_STORED = ("query, key and value in one product", "scale in the query's parameters")

WITHOUT_GRADIENT = ("GELU by a table of every number",)  # Autograd has no gradient for a table look-up.

# Formats in which the gradient of a correct variant has a larger error than a correct gradient.
EXCEPT = {
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
        """Return a runner of the module that yields activations and gradients."""
        model = self.variant.build(checkpoint, device, dtype)
        computes, shown = (getattr(torch, d) for d in (self.variant.computes or dtype, dtype))
        modules = dict(model.named_modules(remove_duplicate=False))
        taps = {name: Tap(name) for name in table(checkpoint.architecture) if name in modules and self.variant.exposes(name)}
        parameters = parameter_shapes(checkpoint.architecture)

        def named(found: Any) -> Iterator[tuple[str, Tensor]]:
            yield from ((stored_name(name), gradient) for name, gradient in found if stored_name(name) in parameters)

        def gradients(batch: TorchBatch, source: str, gradient: Tensor) -> Iterator[tuple[str, Tensor]]:
            def forward() -> None:
                model.requires_grad_(True)
                model(batch)

            start = gradient.to(computes)
            for name, value in captured_with_gradients(model, taps, forward, source, start, parameters=named):
                yield name, value.to(shown)

        return ModuleRunner(model, self.variant.runner(model, dtype), gradients)


def _has_a_backward_pass(variant: Variant) -> bool:
    """Return whether the variant runs its batch at once, including losses, and shows more than one output."""
    return variant.arranged is as_given and not variant.last_only


CORRECT: Mapping[str, Differentiated] = {
    name: Differentiated(replace(variant, dtypes=tuple(d for d in variant.dtypes if d not in EXCEPT.get(name, ()))))
    for name, variant in VARIANTS.items()
    if _has_a_backward_pass(variant)
    and name not in (*OTHERWISE_STORED, *WITHOUT_GRADIENT)
    and variant.suits(load_golden(GOLDEN).checkpoint.architecture)
}
"""The variants of the golden's architecture, by name."""

__all__ = ["CORRECT", "GOLDEN", "Differentiated"]
