"""Faults of whole layers: not run, run twice, or with another layer's parameters.

Faults in which a step of a later layer reads the embeddings, or keeps or accumulates the result of an earlier layer.
"""

from collections.abc import Callable, Mapping

import numpy as np

from conformance.faults.attention import PROBS, SCORES
from conformance.faults.changes import Altered, Slack, with_parent
from conformance.faults.fault import (
    ALONE,
    EVERY_LAYER,
    FAILED,
    ROWS,
    WHOLE_LAYER,
    Change,
    Fault,
    FaultContext,
    Parameter,
    parameters_of,
    with_parameters,
)
from conformance.faults.norms import LAYER_OUTPUT, NORMS
from conformance.model.activations import layer_input
from conformance.model.gradients import is_gradient
from conformance.model.layer import STATES_NAME
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array, as_array
from conformance.oracle import Step
from conformance.oracle.propagation import propagated

_SELF = "attention.self."


def _of_layer(step: Step, context: FaultContext, layer: int) -> tuple[Array, Slack | None] | None:
    """Return the same activation of another layer, and the variance of its errors if it is not known but computed.

    Scores and probabilities, which are not held, are computed from query and key.
    """
    own = step.site.activation
    path, table = f"encoder.layer.{layer}.", context.network.table
    name = own.name.replace(f"encoder.layer.{own.layer}.", path, 1)
    if name in context.values:
        found = context.values[name]
        return (found, None) if found.shape == step.value.shape else None
    if own.kind not in SCORES | PROBS or not own.name.endswith(("self.scores", "self.probs")):
        return None
    steps, values = dict[str, Step](), dict[str, Array]()
    for each in (f"{path}{_SELF}scores", f"{path}{_SELF}probs"):
        if each not in table or (each.endswith("probs") and own.kind in SCORES):
            continue
        parents = [values.get(p, context.values.get(p)) for p in table[each].parents]
        if any(p is None for p in parents):
            return None
        steps[each] = context.network.step(each, *(p for p in parents if p is not None))
        values[each] = steps[each].value
    return (values[name], _computed(context, steps)) if name in values and values[name].shape == step.value.shape else None


def _computed(context: FaultContext, steps: Mapping[str, Step]) -> Slack:
    """Return the variance of the rounding errors of steps that are computed again."""
    return lambda _, arithmetic: propagated(context.network.table, steps, {}, lambda name: steps[name].roundings(arithmetic))


def of_layer_before(step: Step, context: FaultContext) -> Step | None:
    """Return the step with the same activation of the previous layer as its result."""
    layer = step.site.activation.layer
    found = _of_layer(step, context, layer - 1) if layer else None
    return None if found is None else Altered(step, lambda _: found[0], found[1])


def _first(step: Step, context: FaultContext) -> Step | None:
    """Return the step with the result of the first layer; None in the second, where that is the previous one."""
    layer = step.site.activation.layer
    found = _of_layer(step, context, 0) if layer and layer > 1 else None
    return None if found is None else Altered(step, lambda _: found[0], found[1])


def _added(step: Step, context: FaultContext) -> Step | None:
    """Return the scores with those of the previous layer added."""
    layer = step.site.activation.layer
    found = _of_layer(step, context, layer - 1) if layer else None
    if found is None:
        return None
    other, computed = found

    def slack(altered: Altered, arithmetic: Arithmetic) -> Array:
        own = arithmetic.storage.rounding_variance(altered.inner.value) + arithmetic.storage.rounding_variance(other)
        return as_array(own + (0.0 if computed is None else computed(altered, arithmetic)))

    return Altered(step, lambda inner: inner.value + other, slack)


def _of_embeddings(step: Step, context: FaultContext) -> Step | None:
    """Return the step with the embeddings' output in place of the previous layer's; None if that is its input anyway.

    After a single layer, the embeddings' output is the input of the last layer, which `heads-read-layer-before` describes.
    """
    layer, layers = step.site.activation.layer, step.site.architecture.num_hidden_layers
    given = context.values.get(layer_input(0))
    if given is None or layers == 0 or layer == 0 or (layer is None and layers == 1):
        return None
    reads, own = layer_input(layers if layer is None else layer), step.site.activation.parents
    if reads not in own:
        return None
    parents = tuple(given if name == reads else p for name, p in zip(own, step.parents, strict=True))
    return step.replaced(parents=parents) if all(a.shape == b.shape for a, b in zip(parents, step.parents, strict=True)) else None


def _same_norm(step: Step) -> str:
    """Return the name of a step within its layer."""
    return step.site.activation.name.removeprefix(f"encoder.layer.{step.site.activation.layer}.")


def _earlier_residual(norm: Callable[[Step], str]) -> Change:
    """Return the change by which a norm has the residual of the norm named `norm(step)` in the previous layer."""

    def change(step: Step, context: FaultContext) -> Step | None:
        layer = step.site.activation.layer
        earlier = context.network.table.get(f"encoder.layer.{layer - 1}.{norm(step)}") if layer else None
        if earlier is None or len(step.parents) != 2 or len(earlier.parents) != 2:
            return None
        return with_parent(step, context, earlier.parents[1], parent=1)

    return change


# fmt: off
EARLIER_LAYER_FAULTS: tuple[Fault, ...] = (
    Fault("layer-kept", frozenset({"linear", "context"}) | SCORES | PROBS, "it is the result of the first layer", _first,
          tried=ALONE),
    Fault("layer-before-added", SCORES, "the scores of the previous layer are added", _added, tried=ALONE),
    Fault("input-embeddings", frozenset({"linear", "first_token_linear", "norm"}),
          "the output of the embeddings is read, not that of the previous layer", _of_embeddings, tried=ALONE),
    Fault("residual-of-layer-before", NORMS, "the residual is that of the same sub-layer in the previous layer",
          _earlier_residual(_same_norm), only=(".output.LayerNorm",), tried=ALONE),
    Fault("residual-not-updated", NORMS, "the residual is the previous layer's attention output, not its final output",
          _earlier_residual(lambda _: "output.LayerNorm"), only=(".attention.output.LayerNorm",), tried=ALONE),
)
# fmt: on


PARAMETRISED = (".query", ".key", ".value", ".dense", ".LayerNorm")


def _skipped(step: Step, context: FaultContext) -> Step | None:
    layer = step.site.activation.layer
    entry = None if layer is None else context.values.get(layer_input(layer))
    return None if entry is None else Altered(step, lambda _: entry)


def _read_before(step: Step, context: FaultContext) -> Step | None:
    """Return a step of a head that reads the input of the last layer in place of its output."""
    layers, reads = step.site.architecture.num_hidden_layers, step.site.activation.parents
    entry = context.values.get(layer_input(layers - 1)) if layers else None
    last = f"encoder.layer.{layers - 1}.output.LayerNorm"
    return None if entry is None or step.site.activation.layer is not None or last not in reads else step.replaced(parents=(entry,))


def _repeated(step: Step, context: FaultContext) -> Step | None:
    layer = step.site.activation.layer
    if layer is None:
        return None
    again = _run(context, layer, step.value)
    return Altered(step, lambda _: again[step.site.activation.name].value, slack=_rounding_of(context, again))


def _run(context: FaultContext, layer: int, hidden: Array) -> dict[str, Step]:
    """Return the steps of a layer for the input `hidden`, by name."""
    values, steps = {layer_input(layer): hidden}, {}
    for name, row in context.network.table.items():
        if row.layer == layer and not is_gradient(name):
            given = {parent: context.network.step(parent).value for parent in row.parents if parent == STATES_NAME}
            steps[name] = context.network.step(name, *({**values, **given}[parent] for parent in row.parents))
            values[name] = steps[name].value
    return steps


def _rounding_of(context: FaultContext, steps: dict[str, Step]) -> Slack:
    """Return the variance of the rounding errors of the second run of a layer, including the rounding of its input."""
    first = next(iter(steps.values()))

    def slack(_: Altered, arithmetic: Arithmetic) -> Array:
        entry = {
            p: arithmetic.storage.rounding_variance(v) for p, v in zip(first.site.activation.parents, first.parents, strict=True)
        }
        return propagated(context.network.table, steps, entry, lambda name: steps[name].roundings(arithmetic))

    return slack


def _clipped(step: Step, limit: float) -> Step:
    return Altered(step, lambda inner: np.clip(inner.value, -limit, limit))


def _with_layer(which: Callable[[int, int], int]) -> Change:
    """Return the change to the parameters of layer `which(layer, number of layers)`; None if these are the same."""

    def change(step: Step, context: FaultContext) -> Step | None:
        layer, layers = step.site.activation.layer, step.site.architecture.num_hidden_layers
        if layer is None or which(layer, layers) == layer or layers == 1:
            return None
        other = step.site.activation.name.replace(f"encoder.layer.{layer}.", f"encoder.layer.{which(layer, layers)}.")
        parameters = parameters_of(context, other, step)
        same = parameters is not None and all(np.array_equal(parameters[n], p) for n, p in step.site.parameters.items())
        return None if parameters is None or same else with_parameters(step, **parameters)

    return change


# fmt: off
FAULTS: tuple[Fault, ...] = (
    Fault("layer-skipped", NORMS, "the layer is not run", _skipped, only=LAYER_OUTPUT, extent=WHOLE_LAYER, tried=FAILED),
    Fault("layer-repeated", NORMS, "the layer is run twice", _repeated, only=LAYER_OUTPUT, extent=WHOLE_LAYER, tried=FAILED),
    Fault("hidden-clipped", NORMS, "the layer's output is clipped to ±{value}",
          parameter=Parameter("limit", lambda step: float(np.abs(step.value).max()), lambda step: float(step.value.std()),
                              _clipped), only=LAYER_OUTPUT, extent=ROWS),
    Fault("layer-before-kept", frozenset({"linear", "context", "scores", "probs"}), "it is the result of the previous layer",
          of_layer_before, tried=FAILED),
    Fault("heads-read-layer-before", frozenset({"linear", "first_token_linear"}),
          "the hidden state of the second-to-last layer is read", _read_before),
    Fault("layer-neighbour", NORMS | {"linear"}, "it has the parameters of the previous layer (the first layer: of the second)",
          _with_layer(lambda i, _: i - 1 if i else 1)),
    Fault("layers-shared", NORMS | {"linear"}, "every layer has the parameters of the first layer", _with_layer(lambda i, _: 0),
          only=PARAMETRISED, extent=EVERY_LAYER),
    Fault("layers-reversed", NORMS | {"linear"}, "the layers' parameters are in reverse order",
          _with_layer(lambda i, n: n - 1 - i if n > 2 else i), only=PARAMETRISED, extent=EVERY_LAYER),
)
# fmt: on
