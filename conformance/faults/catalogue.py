"""The catalogue: every fault that has a name, in the order in which equally good explanations are reported."""

from collections.abc import Mapping

from conformance.faults import attention, embeddings, functions, heads, layers, losses, norms, precision, projections
from conformance.faults.fault import Fault

CATALOGUE: tuple[Fault, ...] = tuple(
    fault
    for theme in (functions, norms, attention, heads, projections, embeddings, losses, layers, precision)
    for fault in theme.faults()
)
BY_NAME: Mapping[str, Fault] = {fault.name: fault for fault in CATALOGUE}
