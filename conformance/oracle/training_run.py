"""A run of optimizer steps as a network, whose activations are parameters and gradients, step by step; and what it starts from."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from conformance.model.activation import Activation
from conformance.model.activations import parameter_shapes
from conformance.model.initialization import initial_table
from conformance.model.training import ADAM, GRADIENT, INITIAL, Training, decays, parameter_of, run_table, step_of
from conformance.numerics.formats import Array
from conformance.numerics.memo import cached_property
from conformance.oracle.network import Network
from conformance.oracle.step import Site


@dataclass(frozen=True)
class TrainingRun(Network):
    """An architecture's parameters, trained for some steps.

    Attributes:
        training: the settings.
        gradients: of each step, in order, by the parameters' names: of those that learn.
        judged: names of those of them that are judged; all, if empty.
    """

    training: Training = field(default_factory=Training, kw_only=True)
    gradients: tuple[Mapping[str, Array], ...] = field(default=(), kw_only=True)
    judged: tuple[str, ...] = field(default=(), kw_only=True)

    @property
    def is_repeatable(self) -> bool:
        """No: the gradients are the candidate's."""
        return False

    @cached_property
    def table(self) -> dict[str, Activation]:
        """The rows of `run_table`."""
        known = self.gradients[0]
        shapes = {name: shape for name, shape in parameter_shapes(self.architecture).items() if name in known}
        return run_table(shapes, len(self.gradients), self.judged or tuple(shapes))

    def site(self, name: str) -> Site:
        """As of a network; of a step of Adam the parameters are its settings, of a gradient what was left there."""
        row, parameters = self.table[name], dict[str, Array]()
        if row.kind == INITIAL:
            return super().site(name)
        step, of = step_of(name), parameter_of(name)
        if row.kind == GRADIENT:
            parameters["weight"] = self.gradients[step - 1][row.parameters["weight"]]
        elif row.kind == ADAM:
            parameters = {role: np.asarray(value) for role, value in self._settings(step, of).items()}
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
        """No: what is drawn does not come again."""
        return False

    @cached_property
    def table(self) -> dict[str, Activation]:
        """The rows of `initial_table`."""
        return initial_table(self.architecture)
