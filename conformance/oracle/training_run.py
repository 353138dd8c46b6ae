"""A run of optimizer steps as a network of parameters and gradients, step by step, and the initialization of the parameters."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from conformance.model.activation import Activation
from conformance.model.activations import parameter_shapes
from conformance.model.training import ADAM, GRADIENT, INITIAL, Training, decays, initial_table, parameter_of, run_table, step_of
from conformance.numerics.arrays import as_array
from conformance.numerics.formats import Array
from conformance.numerics.memo import cached_property
from conformance.oracle.network import Network
from conformance.oracle.step import Site


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
