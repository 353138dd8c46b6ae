"""Gradients of a loss with respect to every activation and parameter, in float64, by reverse accumulation.

∂L/∂x = Σ_children Jᵀ ∂L/∂child (Griewank and Walther 2008, section 3.2), with the Jacobians J that errors travel along. That of a
parameter is the sum over its uses, as where the decoder is the word embeddings.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from conformance.errors import UsageError
from conformance.model.activations import SCALAR
from conformance.numerics.formats import Array
from conformance.oracle.network import Network
from conformance.oracle.step import Step


@dataclass(frozen=True)
class Gradients:
    """Of one loss.

    Attributes:
        activations: ∂L/∂activation by name, shaped as the activation; those that the loss depends on.
        parameters: ∂L/∂parameter by Hugging Face's name, shaped as the parameter; those of steps that the loss depends on.
    """

    activations: Mapping[str, Array] = field(repr=False)
    parameters: Mapping[str, Array] = field(repr=False)


def gradients(network: Network, loss: str, padding_id: int | None = None) -> Gradients:
    """The gradients of one of the network's losses, or of any other activation that is one number.

    Args:
        network: whose batch has the labels.
        loss: its name, as `cls.loss`.
        padding_id: the word whose look-up has no gradient (`padding_idx` of `torch.nn.Embedding`); None: every one has.

    Raises:
        UsageError: the batch defines no such loss, as where every label is ignored; or that is an array.

    Example:
        >>> from conformance import load_golden
        >>> golden = load_golden("tiny")
        >>> network = Network(golden.checkpoint.architecture, golden.checkpoint.weights, golden.batches["padded"])
        >>> found = gradients(network, "cls.loss")
        >>> found.activations["cls.loss"], found.parameters["bert.pooler.dense.bias"].shape
        (array(1.), (32,))
    """
    if loss not in network.table or network.table[loss].axes != SCALAR:
        losses = ", ".join(name for name, row in network.table.items() if row.axes == SCALAR) or "none: it has no labels"
        raise UsageError(f"{loss} is no loss of this batch; it defines {losses}")
    steps = _steps(network)
    activations: dict[str, Array] = {loss: np.ones(())}
    parameters: dict[str, Array] = {}
    for name in reversed(steps):
        if name not in activations:
            continue
        step, row, upstream = steps[name], network.table[name], activations[name]
        for parent, jacobian in zip(row.parents, step.jacobians(), strict=True):
            _add(activations, parent, jacobian.adjoint(upstream))
        for role, gradient in step.parameter_gradients(upstream).items():
            if row.kind == "word_lookup" and padding_id is not None:
                gradient[padding_id] = 0.0
            _add(parameters, row.parameters[role], gradient)
    return Gradients(activations, parameters)


def _steps(network: Network) -> dict[str, Step]:
    """Every step in order, on the values of its parents."""
    steps: dict[str, Step] = {}
    for name, row in network.table.items():
        steps[name] = network.step(name, *(steps[parent].value for parent in row.parents))
    return steps


def _add(total: dict[str, Array], name: str, gradient: Array) -> None:
    total[name] = total[name] + gradient if name in total else gradient
