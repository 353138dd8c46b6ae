"""Requirements of a module on a checkpoint: its sizes, its settings, and its heads."""

from collections.abc import Container, Iterator, Sequence
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
# The fields that change what a module of the same tensors computes, with the parameter on whose shape a size depends, if any.
_SETTINGS = {
    "hidden_act": "",
    "layer_norm_eps": "",
    "position_embedding_type": "",
    "position_offset": "",
    "max_position_embeddings": "bert.embeddings.position_embeddings.weight",
    "type_vocab_size": "bert.embeddings.token_type_embeddings.weight",
}
_SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "max_position_embeddings")
_SAME_FUNCTION = ("gelu_new", "gelu_pytorch_tanh")  # two names of GELU in its tanh form
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


def settings_requirements(
    given: Container[str], used: Sequence[str], a: Architecture, *, is_instance: bool, computes: str = ""
) -> Iterator[Requirement]:
    """Yield the requirement on each field of an architecture that the module cannot be given: the value that it was examined with.

    A module with another constant than that value is wrong on the networks that have the value, and is judged there; `run` names
    the mistake.

    Args:
        given: names of the fields that are given to the module when it is built.
        used: Hugging Face's names of the parameters that the module holds.
        a: the architecture with which the module was examined.
        is_instance: whether the module was built before, with sizes of its own.
        computes: another activation function that the module was seen to compute, which is accepted as well.
    """
    fixed = [name for name, table in _SETTINGS.items() if not table or table in used]
    for name in dict.fromkeys((*(_SIZES if is_instance else ()), *fixed)):
        if name not in given:
            yield _fixed_to(name, _alternatives(getattr(a, name), computes if name == "hidden_act" else ""))


def _alternatives(value: object, other: str) -> list[object]:
    """Return the accepted values of a field: its value and, of an activation function, another one, by all their names."""
    found = [value, *([other] if other else [])]
    return found + [name for name in _SAME_FUNCTION if name not in found and not set(_SAME_FUNCTION).isdisjoint(found)]


def _fixed_to(name: str, values: Sequence[object]) -> Requirement:
    written = [f'"{v}"' if isinstance(v, str) else repr(v) for v in values]
    lacking = f"a.{name} != {written[0]}" if len(written) == 1 else f"a.{name} not in ({', '.join(written)})"
    return Requirement(lacking, f"it takes no {name}, and is judged with {' or '.join(map(str, values))} alone")
