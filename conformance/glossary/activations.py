"""Activations, from the table: those of every architecture, the layers' as those of layer N."""

import inspect
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import product

from conformance.glossary.entry import Section, paragraphs
from conformance.model.activation import Activation
from conformance.model.activations import parameter_shapes, table
from conformance.model.architecture import ACTIVATIONS, COMPATIBLE_HEADS, POOLINGS, POSITIONS, PROBLEMS, Architecture
from conformance.model.dense import DENSE_ACTIVATIONS, Dense
from conformance.model.dropout import OPTIONAL, dropouts, in_training
from conformance.model.gradients import ends, sources, with_gradients
from conformance.model.training import run_table

# Sizes that differ from each other, so that each length in the table has one name.
_SIZES = {"vocab_size": 7, "hidden_size": 11, "intermediate_size": 13, "num_labels": 17}
_OUT_FEATURES = 23
_STEP = re.compile(r"^step\.\d+")
_LAYER = re.compile(r"\b(layer|dense)\.(\d+|\{layer\}|\*)")


def generic(name: str) -> str:
    """The name with N for the number of the layer, or of the dense layer, and T for that of a step."""
    return _STEP.sub("step.T", _LAYER.sub(r"\1.N", name))


@lru_cache(maxsize=1)
def rows() -> Mapping[str, tuple[Activation, ...]]:
    """The rows of the table by generic name: one for each equation that an architecture may give the activation.

    Then those of the backward passes from its losses, both in training mode, and those of an optimizer step.
    """
    found: dict[str, dict[str, Activation]] = {}
    for row in _every_row():
        found.setdefault(generic(row.name), {}).setdefault(row.kind, row)
    return {name: tuple(kinds.values()) for name, kinds in found.items()}


def _every_row() -> Iterator[Activation]:
    """The rows of forward passes, then of backward passes, then of an optimizer step."""
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
    """Its axes by name, the last by the setting that fixes its length: `batch × position × hidden_size`."""
    named = {length: setting for setting, length in _SIZES.items()} | {_OUT_FEATURES: "out_features"}
    last = [named.get(row.width, str(row.width))] if row.width else list(row.axes[-1:])
    first = [named.get(row.height, str(row.height)) if axis == "row" else axis for axis in row.axes[:-1]]
    return " × ".join([*first, *last]) or "a single number"


def step_equation(kind: str) -> tuple[str, ...]:
    """The equation of the step that computes activations of a kind: the docstring of its class."""
    from conformance.oracle import EQUATIONS

    return paragraphs(inspect.getdoc(EQUATIONS[kind]) or "")


def summaries() -> Mapping[str, str]:
    """The short equation of each activation."""
    return {name: " | ".join(dict.fromkeys(row.equation for row in found)) for name, found in rows().items()}


def sections(name: str) -> Iterator[Section]:
    """Its equation, shape, parents and parameters, how it is judged, and which faults act there."""
    from conformance.glossary.known_faults import acting_at

    found = rows()[name]
    for row in found:
        yield f"equation ({row.kind})" if len(found) > 1 else "equation", step_equation(row.kind)
    first = found[0]
    yield "shape", (shape(first),)
    yield "computed from", tuple(dict.fromkeys(generic(parent) for row in found for parent in row.parents))
    yield "parameters", tuple(dict.fromkeys(generic(parameter) for row in found for parameter in row.parameters.values()))
    rule = "exact: any difference fails" if first.exact else "within what rounding explains, from the candidate's own inputs to it"
    yield "how it is judged", (rule,)
    yield "faults that act here", (", ".join(acting_at(found)),)


def names(written: str) -> tuple[str, ...]:
    """The activation of that name, or those whose names end with it: `probs`, `attention.output.LayerNorm`."""
    name = generic(written)
    return (name,) if name in rows() else tuple(other for other in rows() if other.endswith(f".{name}"))


def _architectures() -> Iterator[Architecture]:
    """As many as it takes to have every row of the table."""
    least = Architecture(**_SIZES, num_hidden_layers=1, num_attention_heads=1, max_position_embeddings=19)  # type: ignore[arg-type]
    for function, positions, present, norm in product(ACTIVATIONS, POSITIONS, COMPATIBLE_HEADS, (True, False)):
        yield least.with_(hidden_act=function, position_embedding_type=positions, heads=present, embedding_norm=norm)
    for problem in filter(None, PROBLEMS):
        yield least.with_(heads=("classification",), problem_type=problem)
    for pooling, normalize in product(filter(None, POOLINGS), (True, False)):
        yield least.with_(pooling=pooling, normalize=normalize)
    for function, normalize in product(DENSE_ACTIVATIONS, (True, False)):
        yield least.with_(pooling="mean", normalize=normalize, dense=(Dense(_OUT_FEATURES, activation=function),))
