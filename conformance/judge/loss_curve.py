"""Limits on the difference between a training loop's loss and the oracle's after each step, found by sampling.

A rounding error of one step moves the parameters, and with them the gradients of all later steps, whose Jacobians differ in each
step. Therefore the oracle trains several replicas beside the exact loop (Monte Carlo arithmetic; Parker 1997). In a replica

- every result of the forward and backward pass is moved by a uniform error, as roundings are, with the variance of the step's
  roundings and bounds;
- the optimizer rounds where the arithmetic does, to nearest: an update smaller than half an ulp of a parameter is lost, as in a
  candidate;
- settings that are rounded once are off by a relative error of at most u for the whole loop: β₁, β₂, ε, λ; the learning rate by a
  different error in each step. A rounding of β changes 1 − β too. To the norm of the gradient torch adds 10⁻⁶, the equation
  nothing; half of the replicas follow torch and half the equation.

In half-precision formats every other replica has the fused arithmetic, the others the modular one.

The spread at a step is the root mean square over M replicas of the distance between their loss and the exact one. For normal
errors, the distance of one correct candidate divided by the spread has Student's t-distribution with M degrees of freedom. An error
that all replicas share, such as updates that are lost in bfloat16, increases the spread and makes a false alarm less likely.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import stdtrit

from conformance.model.gradients import ancestors
from conformance.model.training import Training
from conformance.numerics.arithmetic import Arithmetic, hypotheses
from conformance.numerics.formats import Array, Single
from conformance.numerics.function_error_bounds import FunctionErrorBounds
from conformance.numerics.memo import cached_property
from conformance.oracle import Network
from conformance.oracle.optimizer import CLIP_EPSILON
from conformance.oracle.training_run import State, StepRoundings, VectorLayout, stepped

# At α = 1e-8 the threshold is 43 spreads with 6 replicas; with 4, in three quarters of the time, 157; with 12, in twice the time,
# 14. A rate that is 1 % off gives 147,000 spreads in float32 after two steps of `tiny` (the reason of `rate 1 % off` in
# `test_loss_curve.py`).
REPLICAS = 6
FIRST_SEED = 0  # seed of the first replica; any value will do

# The size of errors changes slowly, and costs as much as the passes of five replicas. With sizes of every step, the spreads differ
# by less than their own sampling error, 1/√(2 · 6) = 29 % (`test_loss_curve`: sizes of errors of every tenth step). They are
# computed in float64 and do not depend on the machine.
RENEWED = 10  # number of steps after which the sizes of errors are computed again


@dataclass(frozen=True)
class Expected:
    """The oracle's loss after one step, and the root mean square of the replicas' distances from it."""

    loss: float
    spread: float

    def deviation(self, loss: float) -> float:
        """Return the distance of a loss from the oracle's, in spreads; 0 if the two are equal."""
        distance = abs(loss - self.loss)
        return distance / self.spread if self.spread else np.inf * distance if distance else 0.0


def threshold(alpha: float) -> float:
    """Return the largest deviation of a correct candidate at false-alarm probability alpha: |t| of M degrees of freedom."""
    return -float(stdtrit(REPLICAS, alpha / 2.0))


@dataclass(frozen=True)
class TrainedLoss:
    """The loss from which a network's backward pass starts, as a function of some of its parameters.

    Attributes:
        network: the oracle's backward pass.
        layout: the layout of the parameters in a vector.
    """

    network: Network
    layout: VectorLayout

    def at(self, parameters: Array) -> Network:
        """Return the network with these parameters, given as a vector."""
        return self._with(self.network, parameters)

    def value(self, parameters: Array) -> float:
        """Return the loss at these parameters, given as a vector."""
        return sum(float(value) for name, value in self._with(self._forward, parameters).walk() if name in self._terms)

    def among(self, values: Mapping[str, Array]) -> float:
        """Return the loss, given the value of every step of the backward pass."""
        return sum(float(values[name]) for name in self._forward.table if name in self._terms)

    @cached_property
    def _terms(self) -> list[str]:
        assert self.network.source is not None
        return self.network.source.split(" + ")

    @cached_property
    def _forward(self) -> Network:
        """The forward pass up to the losses."""
        forward = replace(self.network, source=None)
        forward.__dict__["table"] = {row.name: row for term in self._terms for row in ancestors(forward.table, term)}
        return forward

    def _with(self, network: Network, parameters: Array) -> Network:
        other = replace(network, weights={**network.weights, **self.layout.parameters(parameters)})
        other.__dict__["table"] = network.table
        return other


def expected(
    loss: TrainedLoss, start: Array, training: Training, dtype: str, device: str, functions: FunctionErrorBounds
) -> Iterator[Expected]:
    """Yield the expected loss after each step of a training loop."""
    exact = State.initial(start)
    replicas = [Replica.of(number, FIRST_SEED + number, exact, training, dtype, device, functions) for number in range(REPLICAS)]
    for found, distances in followed(loss, exact, training, replicas):
        yield Expected(found, float(np.sqrt(np.mean([distance**2 for distance in distances]))))


def followed(
    loss: TrainedLoss, exact: State, training: Training, replicas: Sequence["Replica"]
) -> Iterator[tuple[float, list[float]]]:
    """Yield, after each step of a training loop, the exact loss and the distance of each replica's loss from it.

    The exact loss after a step is taken from the forward pass of the next step.
    """
    layout, decayed = loss.layout, loss.layout.decayed()
    network, widths = loss.at(exact.parameters), dict[str, Single]()
    values = dict(network.walk())
    for step in range(1, training.max_steps + 1):
        if (step - 1) % RENEWED == 0:
            widths = _widths(network, values, replicas[0].network_arithmetic)
        exact = stepped(exact, layout.gradient(values), decayed, training)
        for replica in replicas:
            replica.step(loss.at(replica.state.parameters), layout, widths, decayed)
        if step < training.max_steps:
            network = loss.at(exact.parameters)
            values = dict(network.walk())
            found = loss.among(values)
        else:
            found = loss.value(exact.parameters)
        yield found, [loss.value(replica.state.parameters) - found for replica in replicas]


def _widths(network: Network, values: Mapping[str, Array], arithmetic: Arithmetic) -> dict[str, Single]:
    """Return, for each step that rounds, the width of a uniform error with the variance of the step's roundings and bound."""
    found = dict[str, Single]()
    for name, row in network.table.items():
        if not row.exact:
            own = network.step(name, *(values[parent] for parent in row.parents)).roundings(arithmetic)
            found[name] = np.sqrt(12.0 * (own.variance() + np.square(own.bound))).astype(np.float32)
    return found


@dataclass
class Replica:
    """A training loop with rounding errors."""

    state: State
    training: Training
    clip_epsilon: float
    network_arithmetic: Arithmetic
    optimizer_arithmetic: Arithmetic
    rng: np.random.Generator

    @classmethod
    def of(
        cls, number: int, seed: int, start: State, training: Training, dtype: str, device: str, functions: FunctionErrorBounds
    ) -> "Replica":
        """Return a replica with its own rounded settings; the number decides on arithmetic and clipping, the seed on the errors."""
        rng = np.random.default_rng(seed)
        arithmetics = {h.arithmetic.rounding: h.arithmetic for h in hypotheses(dtype, device, functions)}
        modular = arithmetics["modular"]
        optimizer = arithmetics.get("fused", modular) if number % 2 else modular
        roles = ("adam_beta1", "adam_beta2", "adam_epsilon", "weight_decay")
        held: dict[str, Any] = {role: _off(getattr(training, role), optimizer, rng) for role in roles}
        return cls(start, replace(training, **held), CLIP_EPSILON * (number // 2 % 2), modular, optimizer, rng)

    def step(self, network: Network, layout: VectorLayout, widths: Mapping[str, Single], decayed: Array) -> None:
        """Perform one training step."""
        gradient = layout.gradient(self._walk(network, widths))
        rate = replace(self.training, learning_rate=_off(self.training.learning_rate, self.optimizer_arithmetic, self.rng))
        self.state = stepped(self.state, gradient, decayed, rate, self._roundings(), self.clip_epsilon)

    def _walk(self, network: Network, widths: Mapping[str, Single]) -> dict[str, Array]:
        """Return the value of every step of the network, with an error added to each."""
        held = dict[str, Array]()
        for name, row in network.table.items():
            value = network.step(name, *(held[parent] for parent in row.parents)).value
            if name in widths:
                error = self.rng.random(value.shape, np.float32)
                error -= 0.5
                error *= widths[name]
                value = value + error
            held[name] = value
        return held

    def _roundings(self) -> StepRoundings:
        model = self.optimizer_arithmetic
        call = model.accumulate.round if model.rounding == "fused" else model.storage.round
        return StepRoundings(model.elementwise_format.round, call, model.storage.round)


def _off(value: float, arithmetic: Arithmetic, rng: np.random.Generator) -> float:
    """Return a number with the relative error of rounding to the accumulation format."""
    return value * (1.0 + arithmetic.accumulate.unit_roundoff * rng.uniform(-1.0, 1.0))
