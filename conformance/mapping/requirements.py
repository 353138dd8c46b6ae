"""Requirements of a module on a checkpoint: its sizes, and its heads."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from conformance.candidates.layouts import expanded
from conformance.model.activations import parameters_of_head
from conformance.model.architecture import Architecture


@dataclass(frozen=True)
class Requirement:
    """A condition on the architecture `a`.

    Attributes:
        lacking: Python expression in terms of `a` that is true if the condition is violated.
        reason: reason for skipping a case that violates the condition.
    """

    lacking: str
    reason: str


FOUR_TIMES = Requirement("a.intermediate_size != 4 * a.hidden_size", "it needs intermediate_size == 4 * hidden_size")
_POOLER = Requirement("not a.pooler", "it has a pooler, which this architecture has not")


def head_requirements(used: Sequence[str], a: Architecture) -> Iterator[Requirement]:
    """Yield the requirements for the pooler and the heads of which the module has a parameter.

    Args:
        used: Hugging Face's names of the parameters that the module holds, with `{layer}`.
        a: the architecture with which the module was examined.
    """
    names = {name for pattern in used for name in expanded(pattern, a.num_hidden_layers)}
    if any(name.startswith("bert.pooler.") for name in names):
        yield _POOLER
    for head in a.heads:
        if not names.isdisjoint(parameters_of_head(head, a)):
            yield Requirement(f'"{head}" not in a.heads', f"it has the head {head}, which this architecture has not")
