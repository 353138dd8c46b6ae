"""The fault of a dense layer after the pooling of a sentence embedding."""

from collections.abc import Iterator

from conformance.faults.altered import Altered
from conformance.faults.fault import Fault, FaultContext
from conformance.model.dense import DENSE_ACTIVATIONS
from conformance.oracle import Step

_ENDS = (".linear", ".activation_function", "sentence_embedding")


def _handed_on(step: Step, context: FaultContext) -> Step | None:
    """Return the step with the layer's input in place of its linear product or of its result, if both have the same width."""
    row = step.site.activation
    if row.kind == "linear":
        return Altered(step, lambda inner: inner.parents[0]) if step.parents[0].shape == step.value.shape else None
    (inputs,) = context.network.table[row.parents[0]].parents
    entry = context.values.get(inputs)
    return None if entry is None or entry.shape != step.value.shape else Altered(step, lambda _: entry)


# fmt: off
def faults() -> Iterator[Fault]:
    """Yield the fault of dense layers."""
    yield Fault("dense-missing", frozenset({"linear", *filter(None, DENSE_ACTIVATIONS)}),
                "the dense layer after the pooling returns its input unchanged", "constructed", _handed_on,
                "2_Dense, or its linear layer, left out", _ENDS, equation="y = x",
                fix="Apply the modules that modules.json lists, each with the parameters in its own folder.")
# fmt: on
