"""A training loop as a whole: a parameter vector, Adam's averages of it, and one step of either; equations in `model.training`.

`TrainingRun` has the steps of a candidate, each from that candidate's own gradients. Here the gradients are the network's at the
parameters that the steps before have led to, and the arithmetic may round.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from conformance.model.gradients import grad
from conformance.model.training import Training, decays
from conformance.numerics.formats import Array

Rounded = Callable[[Array], Array]


def _exact(x: Array) -> Array:
    return x


@dataclass(frozen=True)
class Roundings:
    """Where a step rounds: after every operation, every library call, and where it stores a parameter or an average."""

    operation: Rounded = _exact
    call: Rounded = _exact
    store: Rounded = _exact


@dataclass(frozen=True)
class Layout:
    """Parameters, by name, as one vector."""

    shapes: Mapping[str, tuple[int, ...]]

    def vector(self, parameters: Mapping[str, Array]) -> Array:
        """Theirs, one after the other."""
        return np.concatenate([np.asarray(parameters[name], np.float64).ravel() for name in self.shapes])

    def parameters(self, vector: Array) -> dict[str, Array]:
        """Those of a vector, as views of it."""
        found, start = {}, 0
        for name, shape in self.shapes.items():
            size = int(np.prod(shape))
            found[name] = vector[start : start + size].reshape(shape)
            start += size
        return found

    def gradient(self, values: Mapping[str, Array]) -> Array:
        """Their gradients among the values of a backward pass; 0 of what it does not reach."""
        return self.vector({name: values.get(grad(name), np.zeros(shape)) for name, shape in self.shapes.items()})

    def decayed(self) -> Array:
        """1 where weight decay is for an element, else 0."""
        return self.vector({name: np.full(shape, float(decays(name))) for name, shape in self.shapes.items()})


@dataclass(frozen=True)
class State:
    """Where a loop stands after some steps: θ, m, v, each a vector."""

    parameters: Array
    first: Array
    second: Array
    steps: int = 0

    @classmethod
    def initial(cls, parameters: Array) -> "State":
        """Before the first step."""
        return cls(parameters, np.zeros_like(parameters), np.zeros_like(parameters))


@dataclass(frozen=True)
class Constants:
    """The numbers that a loop holds from beginning to end.

    Attributes:
        training: the settings.
        clip_epsilon: what is added to the norm of the gradient before c is divided by it; 0 in the equation.
    """

    training: Training
    clip_epsilon: float = 0.0


def stepped(state: State, gradient: Array, decayed: Array, constants: Constants, rounded: Roundings = Roundings()) -> State:
    """The state after one step more; `decayed` as of `Layout`.

    Operations in torch's order: the gradient is clipped, θ decayed, m and v averaged, √v̂ + ε formed, and θ moved.
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
