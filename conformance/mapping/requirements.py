"""What a checkpoint must have for a module to be loaded with it: the sizes that the module takes, and its heads."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from conformance.candidates.layouts import expanded
from conformance.model.activations import parameters_of_head
from conformance.model.architecture import Architecture


@dataclass(frozen=True)
class Requirement:
    """One condition on the architecture `a`.

    Attributes:
        lacking: an expression of `a` that holds where the condition does not.
        reason: the reason of a skipped case.
    """

    lacking: str
    reason: str


FOUR_TIMES = Requirement("a.intermediate_size != 4 * a.hidden_size", "it needs intermediate_size == 4 * hidden_size")
_POOLER = Requirement("not a.pooler", "it has a pooler, which this architecture has not")


def head_requirements(used: Sequence[str], a: Architecture) -> Iterator[Requirement]:
    """The pooler and the heads of `a` of which the module has a parameter: it cannot be built without them.

    Args:
        used: Hugging Face's names of the parameters that lie in the module, with `{layer}`.
        a: the architecture that the module was looked at with.
    """
    names = {name for pattern in used for name in expanded(pattern, a.num_hidden_layers)}
    if any(name.startswith("bert.pooler.") for name in names):
        yield _POOLER
    for head in a.heads:
        if not names.isdisjoint(parameters_of_head(head, a)):
            yield Requirement(f'"{head}" not in a.heads', f"it has the head {head}, which this architecture has not")
