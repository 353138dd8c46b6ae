"""A complete training loop: a parameter vector, Adam's moving averages, and one step of both (equations in `model.training`).

A `TrainingRun` contains the steps of a candidate, each computed from the candidate's own gradients. Here the gradients are those
of the network at the parameters reached by the preceding steps, and the arithmetic may round.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from conformance.model.gradients import grad
from conformance.model.training import Training, decays
from conformance.numerics.arrays import as_array
from conformance.numerics.formats import Array

Rounded = Callable[[Array], Array]


def _exact(x: Array) -> Array:
    return x


@dataclass(frozen=True)
class StepRoundings:
    """The roundings of a step.

    Attributes:
        operation: applied to the result of every operation.
        call: applied to the result of every library call.
        store: applied to a stored parameter or moving average.
    """

    operation: Rounded = _exact
    call: Rounded = _exact
    store: Rounded = _exact


@dataclass(frozen=True)
class VectorLayout:
    """The layout of named parameters in a single vector."""

    shapes: Mapping[str, tuple[int, ...]]

    def vector(self, parameters: Mapping[str, Array]) -> Array:
        """Return the parameters, concatenated."""
        return np.concatenate([as_array(parameters[name], np.float64).ravel() for name in self.shapes])

    def parameters(self, vector: Array) -> dict[str, Array]:
        """Return the parameters in a vector, as views of it."""
        found, start = {}, 0
        for name, shape in self.shapes.items():
            size = int(np.prod(shape))
            found[name] = vector[start : start + size].reshape(shape)
            start += size
        return found

    def gradient(self, values: Mapping[str, Array]) -> Array:
        """Return the gradients of the parameters from the values of a backward pass; 0 for parameters that it does not reach."""
        return self.vector({name: values.get(grad(name), np.zeros(shape)) for name, shape in self.shapes.items()})

    def decayed(self) -> Array:
        """Return 1 for elements that weight decay applies to, else 0."""
        return self.vector({name: np.full(shape, float(decays(name))) for name, shape in self.shapes.items()})


@dataclass(frozen=True)
class State:
    """The state of a training loop after some steps.

    Attributes:
        parameters: θ, a vector.
        first: m, the moving average of the gradients.
        second: v, the moving average of their squares.
        steps: number of steps.
    """

    parameters: Array
    first: Array
    second: Array
    steps: int = 0

    @classmethod
    def initial(cls, parameters: Array) -> "State":
        """Return the state before the first step."""
        return cls(parameters, np.zeros_like(parameters), np.zeros_like(parameters))


@dataclass(frozen=True)
class Constants:
    """The settings that are constant throughout a training loop.

    Attributes:
        training: the settings.
        clip_epsilon: added to the norm of the gradient before c is divided by it; 0 in the equation.
    """

    training: Training
    clip_epsilon: float = 0.0


def stepped(state: State, gradient: Array, decayed: Array, constants: Constants, rounded: StepRoundings = StepRoundings()) -> State:
    """Return the state after one more step; operations are in torch's order.

    The gradient is clipped, θ is decayed, m and v are updated, √v̂ + ε is computed, and θ is updated.

    Args:
        state: the state before the step.
        gradient: the gradient at the parameters of the state.
        decayed: 1 for elements that weight decay applies to, else 0 (`Layout.decayed`).
        constants: settings of the loop.
        rounded: the roundings of the step.
    """
    op, call, store, training, t = rounded.operation, rounded.call, rounded.store, constants.training, state.steps + 1
    b1, b2, rate = training.adam_beta1, training.adam_beta2, training.rate(t)
    norm = float(np.sqrt(np.square(gradient).sum())) + constants.clip_epsilon
    g = call(gradient * min(1.0, training.max_grad_norm / norm)) if norm > 0.0 else gradient
    kept = call(state.parameters * (1.0 - rate * training.weight_decay * decayed))
    m = store(op(b1 * state.first) + op((1.0 - b1) * g))
    v = store(call(b2 * state.second) + op((1.0 - b2) * op(g * g)))
    first, second = (1.0 - b1**t, 1.0 - b2**t) if training.bias_correction else (1.0, 1.0)
    denominator = call(call(call(np.sqrt(v)) / np.sqrt(second)) + training.adam_epsilon)
    update = op(op(rate / first * m) / denominator)
    return replace(state, parameters=store(kept - update), first=m, second=v, steps=t)
