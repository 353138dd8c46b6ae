"""Faults of whole layers: not run, run twice, or with another layer's parameters.

Faults in which a step of a later layer reads the embeddings, or keeps or accumulates the result of an earlier layer.
"""

from collections.abc import Callable

import numpy as np

from conformance.faults.attention import PROBS, SCORES
from conformance.faults.changes import Altered, Slack, errors_of, run
from conformance.faults.edits import has_parameters_of, in_layer, reads
from conformance.faults.fault import ALONE, EVERY_LAYER, FAILED, ROWS, WHOLE_LAYER, Change, Fault, FaultContext, Parameter
from conformance.faults.norms import LAYER_OUTPUT, NORMS
from conformance.model.activations import layer_input
from conformance.model.gradients import is_gradient
from conformance.numerics.formats import Array
from conformance.oracle import Step

_SELF = "attention.self."


def _of_layer(step: Step, context: FaultContext, layer: int) -> tuple[Array, Slack | None] | None:
    """Return the same activation of another layer, and the variance of its errors if it is not known but computed.

    Scores and probabilities, which are not held, are computed from query and key.
    """
    own, table = step.site.activation, context.network.table
    name = own.name.replace(f"encoder.layer.{own.layer}.", f"encoder.layer.{layer}.", 1)
    if name in context.values:
        return context.values[name], None
    if own.kind not in SCORES | PROBS or not own.name.endswith(("self.scores", "self.probs")):
        return None
    scores = f"encoder.layer.{layer}.attention.self.scores"
    steps = run(context.network, dict.fromkeys(n for n in (scores, name) if n in table), context.values)
    return (steps[name].value, errors_of(context.network, steps)) if steps and name in steps else None


def of_layer(which: Callable[[int], int | None]) -> Change:
    """Return the change by which a step has the result of the same step in layer `which(its layer)`, if there is one."""

    def change(step: Step, context: FaultContext) -> Step | None:
        own = step.site.activation.layer
        layer = None if own is None else which(own)
        result = None if layer is None or layer < 0 else _of_layer(step, context, layer)
        return None if result is None else Altered(step, lambda _: result[0], result[1])

    return change


def _of_embeddings(step: Step, context: FaultContext) -> Step | None:
    """Return the step with the embeddings' output in place of the previous layer's; None if that is its input anyway.

    After a single layer, the embeddings' output is the input of the last layer, which `heads-read-layer-before` describes.
    """
    layer, layers = step.site.activation.layer, step.site.architecture.num_hidden_layers
    read, parents = layer_input(layers if layer is None else layer), step.site.activation.parents
    if layers == 0 or layer == 0 or (layer is None and layers == 1) or read not in parents:
        return None
    return reads(lambda _: layer_input(0), parents.index(read))(step, context)


def _earlier_residual(norm: str = "") -> Change:
    """Return the change by which a norm has the residual of the norm of this name, or else of its own, in the previous layer."""

    def change(step: Step, context: FaultContext) -> Step | None:
        layer, own = step.site.activation.layer, step.site.activation.name
        name = norm or own.removeprefix(f"encoder.layer.{layer}.")
        earlier = context.network.table.get(f"encoder.layer.{layer - 1}.{name}") if layer else None
        if earlier is None or len(earlier.parents) != 2:
            return None
        return reads(lambda _: earlier.parents[1], 1)(step, context)

    return change


# fmt: off
EARLIER_LAYER_FAULTS: tuple[Fault, ...] = (
    Fault("layer-kept", frozenset({"linear", "context"}) | SCORES | PROBS, "it is the result of the first layer",
          of_layer(lambda layer: 0 if layer > 1 else None), tried=ALONE),
    Fault("input-embeddings", frozenset({"linear", "first_token_linear", "norm"}),
          "the output of the embeddings is read, not that of the previous layer", _of_embeddings, tried=ALONE),
    Fault("residual-of-layer-before", NORMS, "the residual is that of the same sub-layer in the previous layer",
          _earlier_residual(), only=(".output.LayerNorm",), tried=ALONE),
    Fault("residual-not-updated", NORMS, "the residual is the previous layer's attention output, not its final output",
          _earlier_residual("output.LayerNorm"), only=(".attention.output.LayerNorm",), tried=ALONE),
)
# fmt: on


PARAMETRISED = (".query", ".key", ".value", ".dense", ".LayerNorm")


def _skipped(step: Step, context: FaultContext) -> Step | None:
    entry = context.values.get(in_layer("")(step) or "")
    return None if entry is None else Altered(step, lambda _: entry)


def _read_before(step: Step, context: FaultContext) -> Step | None:
    """Return a step of a head that reads the input of the last layer in place of its output."""
    layers, parents = step.site.architecture.num_hidden_layers, step.site.activation.parents
    if not layers or step.site.activation.layer is not None or f"encoder.layer.{layers - 1}.output.LayerNorm" not in parents:
        return None
    return reads(lambda _: layer_input(layers - 1))(step, context)


def _repeated(step: Step, context: FaultContext) -> Step | None:
    network, layer, hidden = context.network, step.site.activation.layer, step.value
    if layer is None:
        return None
    names = [name for name, row in network.table.items() if row.layer == layer and not is_gradient(name)]
    steps = run(network, names, {layer_input(layer): hidden})
    if steps is None:
        return None
    again = steps[step.site.activation.name].value
    return Altered(step, lambda _: again, errors_of(network, steps, {layer_input(layer): hidden}))


def _with_layer(which: Callable[[int, int], int]) -> Change:
    """Return the change to the parameters of layer `which(layer, number of layers)`; None if these are the same."""

    def where(step: Step) -> str | None:
        name, layer, layers = step.site.activation.name, step.site.activation.layer, step.site.architecture.num_hidden_layers
        if layer is None or layers == 1:
            return None
        return name.replace(f"encoder.layer.{layer}.", f"encoder.layer.{which(layer, layers)}.")

    return has_parameters_of(where)


# fmt: off
FAULTS: tuple[Fault, ...] = (
    Fault("layer-skipped", NORMS, "the layer is not run", _skipped, only=LAYER_OUTPUT, extent=WHOLE_LAYER, tried=FAILED),
    Fault("layer-repeated", NORMS, "the layer is run twice", _repeated, only=LAYER_OUTPUT, extent=WHOLE_LAYER, tried=FAILED),
    Fault("hidden-clipped", NORMS, "the layer's output is clipped to ±{value}",
          parameter=Parameter("limit", lambda step: float(np.abs(step.value).max()), lambda step: float(step.value.std()),
                              lambda step, limit: Altered(step, lambda inner: np.clip(inner.value, -limit, limit))),
          only=LAYER_OUTPUT, extent=ROWS),
    Fault("layer-before-kept", frozenset({"linear", "context", "scores", "probs"}), "it is the result of the previous layer",
          of_layer(lambda layer: layer - 1), tried=FAILED),
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
