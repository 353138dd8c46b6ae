"""A run of optimizer steps as a network of parameters and gradients, step by step, and the initialization of the parameters.

A `TrainingRun` contains the steps of a candidate, each computed from the candidate's own gradients. In a complete training loop
(`stepped`), the gradients are those of the network at the parameters reached by the preceding steps, and the arithmetic may round.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from math import prod

import numpy as np

from conformance.model.activation import Activation
from conformance.model.activations import parameter_shapes
from conformance.model.gradients import grad
from conformance.model.training import ADAM, GRADIENT, INITIAL, Training, decays, initial_table, parameter_of, run_table, step_of
from conformance.numerics.formats import Array, as_array
from conformance.numerics.memo import cached_property
from conformance.oracle.network import Network
from conformance.oracle.step import Site, Step


@dataclass(frozen=True)
class KeptSteps(Network):
    """A network whose steps are kept, with their roundings, for judgements that are all computed from the same inputs."""

    @cached_property
    def _kept(self) -> dict[str, Step]:
        return {}

    def step(self, name: str, *parents: Array) -> Step:
        """Return the step that computes `name`: the one returned before if it is computed from the same arrays."""
        kept = self._kept.get(name)
        if kept is None or any(a is not b for a, b in zip(kept.parents, parents, strict=True)):
            kept = self._kept[name] = super().step(name, *parents)
            kept.__dict__["roundings"] = cache(kept.roundings)
        return kept


@dataclass(frozen=True)
class TrainingRun(Network):
    """Several training steps of an architecture's parameters.

    Attributes:
        training: the settings.
        gradients: for each step, in order, the gradients of the trained parameters, by parameter name.
        judged: names of the trained parameters that are judged; all of them if empty.
        untrained: names of the parameters that the candidate yields without a gradient.
    """

    training: Training = field(default_factory=Training, kw_only=True)
    gradients: tuple[Mapping[str, Array], ...] = field(default=(), kw_only=True)
    judged: tuple[str, ...] = field(default=(), kw_only=True)
    untrained: tuple[str, ...] = field(default=(), kw_only=True)

    @property
    def is_repeatable(self) -> bool:
        """False, since the gradients are the candidate's."""
        return False

    @cached_property
    def table(self) -> dict[str, Activation]:
        """The rows of `run_table`."""
        known = self.gradients[0]
        shapes = {name: shape for name, shape in parameter_shapes(self.architecture).items() if name in known}
        return run_table(shapes, len(self.gradients), self.judged or tuple(shapes))

    def site(self, name: str) -> Site:
        """Return the site of an activation.

        The parameters of an Adam step are its settings, and the parameter of a gradient is the gradient that the candidate
        computed.
        """
        row, parameters = self.table[name], dict[str, Array]()
        if row.kind == INITIAL:
            return super().site(name)
        step, of = step_of(name), parameter_of(name)
        if row.kind == GRADIENT:
            parameters["weight"] = self.gradients[step - 1][row.parameters["weight"]]
        elif row.kind == ADAM:
            parameters = {role: as_array(value) for role, value in self._settings(step, of).items()}
        return Site(replace(row, parameters={}), self.architecture, parameters, self.batch)

    def _settings(self, step: int, parameter: str) -> dict[str, float]:
        training = self.training
        return {
            "rate": training.rate(step),
            "beta1": training.adam_beta1,
            "beta2": training.adam_beta2,
            "epsilon": training.adam_epsilon,
            "decay": training.weight_decay if decays(parameter) else 0.0,
            "clip": training.max_grad_norm,
            "corrected": float(training.bias_correction),
        }


@dataclass(frozen=True)
class Initialization(Network):
    """The parameters of an architecture before training."""

    @property
    def is_repeatable(self) -> bool:
        """False, since the parameters are drawn at random."""
        return False

    @cached_property
    def table(self) -> dict[str, Activation]:
        """The rows of `initial_table`."""
        return initial_table(self.architecture)


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
            size = prod(shape)
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


def stepped(
    state: State,
    gradient: Array,
    decayed: Array,
    training: Training,
    rounded: StepRoundings = StepRoundings(),
    clip_epsilon: float = 0.0,
) -> State:
    """Return the state after one more step; operations are in torch's order.

    The gradient is clipped, θ is decayed, m and v are updated, √v̂ + ε is computed, and θ is updated.

    Args:
        state: the state before the step.
        gradient: the gradient at the parameters of the state.
        decayed: 1 for elements that weight decay applies to, else 0 (`Layout.decayed`).
        training: settings of the loop.
        rounded: the roundings of the step.
        clip_epsilon: added to the norm of the gradient before c is divided by it; 0 in the equation.
    """
    op, call, store, t = rounded.operation, rounded.call, rounded.store, state.steps + 1
    b1, b2, rate = training.adam_beta1, training.adam_beta2, training.rate(t)
    norm = float(np.sqrt(np.square(gradient).sum())) + clip_epsilon
    g = call(gradient * min(1.0, training.max_grad_norm / norm)) if norm > 0.0 else gradient
    kept = call(state.parameters * (1.0 - rate * training.weight_decay * decayed))
    m = store(op(b1 * state.first) + op((1.0 - b1) * g))
    v = store(call(b2 * state.second) + op((1.0 - b2) * op(g * g)))
    first, second = (1.0 - b1**t, 1.0 - b2**t) if training.bias_correction else (1.0, 1.0)
    denominator = call(call(call(np.sqrt(v)) / np.sqrt(second)) + training.adam_epsilon)
    update = op(op(rate / first * m) / denominator)
    return replace(state, parameters=store(kept - update), first=m, second=v, steps=t)
