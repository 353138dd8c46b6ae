"""Faults of whole layers: not run, run twice, or with another layer's parameters."""

from collections.abc import Callable, Iterator

import numpy as np

from conformance.faults.altered import Altered, Slack
from conformance.faults.earlier_layers import of_layer_before
from conformance.faults.fault import Change, Fault, FaultContext, Parameter, parameters_of, with_parameters
from conformance.faults.norms import LAYER_OUTPUT
from conformance.model.activations import layer_input
from conformance.model.gradients import is_gradient
from conformance.model.layer import STATES_NAME
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array
from conformance.oracle import Step
from conformance.oracle.propagation import propagated

PARAMETRISED = (".query", ".key", ".value", ".dense", ".LayerNorm")
_LAYERS = "Load layer i from the checkpoint's encoder.layer.i, and give each layer a module of its own."


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
def faults() -> Iterator[Fault]:
    """Yield the faults of whole layers."""
    norm, parametrised = frozenset({"norm"}), frozenset({"norm", "linear"})
    yield Fault("layer-skipped", norm, "the layer is not run", "constructed", _skipped, "a loop that ends early, or a pruned layer",
                LAYER_OUTPUT, replaces_layer=True, after_failure=True, combined_after_failure=True,
                equation="y = x",
                fix="Run all num_hidden_layers layers.")
    yield Fault("layer-repeated", norm, "the layer is run twice", "constructed", _repeated,
                "layers shared, or a list copied wrongly",
                LAYER_OUTPUT, replaces_layer=True, after_failure=True, combined_after_failure=True,
                equation="y = layer(layer(x))",
                fix="Run each layer once.")
    yield Fault(
        "hidden-clipped", norm, "the layer's output is clipped to ±{value}", "constructed", only=LAYER_OUTPUT,
        parameter=Parameter("limit", lambda step: float(np.abs(step.value).max()), lambda step: float(step.value.std()), _clipped),
        couples_rows=True,
        equation="y = min(max(y, −c), c)",
        fix="Leave the hidden state as it is.",
    )
    yield Fault("layer-before-kept", frozenset({"linear", "context", "scores", "probs"}), "it is the result of the previous layer",
                "constructed", of_layer_before, "a cache whose layer index is off by one, or that is not refilled",
                after_failure=True, combined_after_failure=True,
                equation="y of layer i − 1",
                fix="Compute it in every layer; index a cache by the layer.")
    yield Fault("heads-read-layer-before", frozenset({"linear", "first_token_linear"}),
                "the hidden state of the second-to-last layer is read", "constructed", _read_before,
                "hidden_states[-2]",
                fix="Feed the heads the last layer's output.")
    yield Fault("layer-neighbour", parametrised, "it has the parameters of the previous layer (the first layer: of the second)",
                "constructed",
                _with_layer(lambda i, _: i - 1 if i else 1), "names counted from one in a checkpoint's conversion",
                fix=_LAYERS)
    yield Fault("layers-shared", parametrised, "every layer has the parameters of the first layer", "constructed",
                _with_layer(lambda i, _: 0), "[layer] * n, which is n times the same object", PARAMETRISED, in_every_layer=True,
                fix=_LAYERS)
    yield Fault("layers-reversed", parametrised, "the layers' parameters are in reverse order", "constructed",
                _with_layer(lambda i, n: n - 1 - i), only=PARAMETRISED, in_every_layer=True, spared=lambda n: n % 2,
                fix=_LAYERS)
# fmt: on
