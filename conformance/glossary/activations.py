"""Entries for activations, from the tables of all architectures; the activations of all layers are those of a layer N."""

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import product

from conformance.glossary.entry import Section, documentation, paragraphs
from conformance.model.activation import Activation
from conformance.model.activations import OPTIONAL, dropouts, in_training, output_of_transformers, parameter_shapes, table
from conformance.model.architecture import (
    ACTIVATION_FUNCTIONS,
    COMPATIBLE_HEADS,
    DENSE_ACTIVATIONS,
    POOLINGS,
    POSITIONS,
    PROBLEMS,
    Architecture,
    Dense,
)
from conformance.model.gradients import ends, sources, with_gradients
from conformance.model.training import run_table

# The sizes differ from each other, so that a length in the table identifies its setting.
_SIZES = {"vocab_size": 7, "hidden_size": 11, "intermediate_size": 13, "num_labels": 17}
_OUT_FEATURES = 23
_STEP = re.compile(r"^step\.\d+")
_LAYER = re.compile(r"\b(layer|dense)\.(\d+|\{layer\}|\*)")


def generic(name: str) -> str:
    """Return the name with N for the number of the layer or dense layer and T for the number of the step."""
    return _STEP.sub("step.T", _LAYER.sub(r"\1.N", name))


@lru_cache(maxsize=1)
def rows() -> Mapping[str, tuple[Activation, ...]]:
    """Return the rows of the table by generic name: one for each equation that an architecture may give the activation.

    They include forward passes and, for every loss, backward passes, in evaluation and training mode, and an optimizer step.
    """
    of_name: dict[str, dict[str, Activation]] = {}
    for row in _every_row():
        of_name.setdefault(generic(row.name), {}).setdefault(row.kind, row)
    return {name: tuple(kinds.values()) for name, kinds in of_name.items()}


def _every_row() -> Iterator[Activation]:
    """Yield the rows of forward passes, then of backward passes, then of an optimizer step."""
    every = list(_architectures())
    for architecture in every:
        yield from table(architecture).values()
    for architecture in every:
        dropping = architecture.with_(**dict.fromkeys(OPTIONAL, 0.1))
        for forward in (table(architecture), in_training(table(dropping), dropouts(dropping))):
            for source in sources(forward, ends(architecture)):
                backward = with_gradients(forward, source, parameter_shapes(architecture))
                yield from (row for row in backward.values() if not row.is_internal)
    shapes = parameter_shapes(every[0])
    yield from (row for row in run_table(shapes, 1, tuple(shapes)).values() if not row.is_internal)


def shape(row: Activation) -> str:
    """Return the axes by name, the last by the setting that determines its length: `batch × position × hidden_size`."""
    named = {length: setting for setting, length in _SIZES.items()} | {_OUT_FEATURES: "out_features"}
    last = [named.get(row.width, str(row.width))] if row.width else list(row.axes[-1:])
    first = [named.get(row.height, str(row.height)) if axis == "row" else axis for axis in row.axes[:-1]]
    return " × ".join([*first, *last]) or "a single number"


def step_equation(kind: str) -> tuple[str, ...]:
    """Return the equation of the step that computes activations of a kind: the paragraphs of the docstring of its class."""
    from conformance.oracle import EQUATIONS

    step = EQUATIONS[kind]
    return paragraphs(documentation(step.__module__, step.__name__))


def summaries() -> Mapping[str, str]:
    """Return the short equation of each activation, by generic name."""
    return {name: " | ".join(dict.fromkeys(row.equation for row in of_name)) for name, of_name in rows().items()}


def sections(name: str) -> Iterator[Section]:
    """Yield the equations, shape, parents, parameters and judgement of an activation."""
    of_name = rows()[name]
    for row in of_name:
        yield f"equation ({row.kind})" if len(of_name) > 1 else "equation", step_equation(row.kind)
    first = of_name[0]
    yield "shape", (shape(first),)
    yield "computed from", tuple(dict.fromkeys(generic(parent) for row in of_name for parent in row.parents))
    yield "parameters", tuple(dict.fromkeys(generic(parameter) for row in of_name for parameter in row.parameters.values()))
    rule = (
        "exact: any difference fails"
        if first.exact
        else "to within rounding errors, computed from the candidate's own inputs to it"
    )
    yield "how it is judged", (rule,)


def names(written: str) -> tuple[str, ...]:
    """Return the activation of this name, or those whose names end with it, as for `probs` or `attention.output.LayerNorm`.

    Transformers' names of outputs, such as `last_hidden_state`, are those of the activations that they are.
    """
    name = generic(output_of_transformers(written, next(_architectures())) or written)
    return (name,) if name in rows() else tuple(other for other in rows() if other.endswith(f".{name}"))


def _architectures() -> Iterator[Architecture]:
    """Yield architectures whose tables together contain every row."""
    least = Architecture(**_SIZES, num_hidden_layers=1, num_attention_heads=1, max_position_embeddings=19)  # type: ignore[arg-type]
    for function, positions, present, norm in product(ACTIVATION_FUNCTIONS, POSITIONS, COMPATIBLE_HEADS, (True, False)):
        yield least.with_(hidden_act=function, position_embedding_type=positions, heads=present, embedding_norm=norm)
    for problem in filter(None, PROBLEMS):
        yield least.with_(heads=("classification",), problem_type=problem)
    for pooling, normalize in product(filter(None, POOLINGS), (True, False)):
        yield least.with_(pooling=pooling, normalize=normalize)
    for function, normalize in product(DENSE_ACTIVATIONS, (True, False)):
        yield least.with_(pooling="mean", normalize=normalize, dense=(Dense(_OUT_FEATURES, activation=function),))
