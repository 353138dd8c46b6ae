"""Faults of optimizer steps and schedules: epsilon, bias correction, weight decay, clipping and the learning rate."""

from typing import cast

import numpy as np

from conformance.faults.changes import first_parent, other_parameters, recast
from conformance.faults.fault import Change, Fault, FaultContext, Parameter, with_parameters
from conformance.model.training import ADAM, Training, at, decays, parameter_of, step_of
from conformance.numerics.formats import Array, as_array
from conformance.numerics.memo import cached_property
from conformance.oracle import Step
from conformance.oracle.optimizer import Adam
from conformance.oracle.training_run import TrainingRun

_STEPS = frozenset({ADAM})


class _EpsilonInRoot(Adam):
    @cached_property
    def denominator(self) -> Array:
        return as_array(np.sqrt(self.moments[1] / self.corrections[1] + self.number("epsilon")))


class _EpsilonBeforeCorrection(Adam):
    @cached_property
    def denominator(self) -> Array:
        return as_array((np.sqrt(self.moments[1]) + self.number("epsilon")) / np.sqrt(self.corrections[1]))


class _ClippedByParameter(Adam):
    @cached_property
    def coefficients(self) -> tuple[float, ...]:
        c, norms = self.number("clip"), (float(np.linalg.norm(g)) for g in self.parents[1 : self.step + 1])
        return tuple(min(1.0, c / n) if n > 0.0 else 1.0 for n in norms)


class _ClippedByValue(Adam):
    @cached_property
    def clipped(self) -> tuple[Array, ...]:
        c = self.number("clip")
        return tuple(np.clip(g, -c, c) for g in self.parents[1 : self.step + 1])


class _DecayNotScaled(Adam):
    @property
    def _decayed(self) -> Array:
        return (1.0 - self.number("decay")) * self.parents[0]


def _number(step: Step, role: str) -> float:
    return float(step.site.parameters[role])


def _training(context: FaultContext) -> Training:
    return cast(TrainingRun, context.network).training


def _decayed(step: Step, context: FaultContext) -> Step | None:
    """Return the step with weight decay for a parameter that is not to be decayed; None for other parameters."""
    if decays(parameter_of(step.site.activation.name)):
        return None
    return with_parameters(step, decay=as_array(_training(context).weight_decay))


def _coupled(step: Step, context: FaultContext) -> Step | None:
    """Return the step with λ θ added to the clipped gradient of every step, also for parameters that are not to be decayed."""
    name, decay = parameter_of(step.site.activation.name), _training(context).weight_decay
    before = [context.values.get(at(s, name)) for s in range(step_of(step.site.activation.name))]
    if any(parameter is None for parameter in before):
        return None

    class Coupled(Adam):
        @cached_property
        def clipped(self) -> tuple[Array, ...]:
            return tuple(k * g + decay * as_array(p) for k, g, p in zip(self.coefficients, self.parents[1:], before, strict=False))

    return with_parameters(step.recast(Coupled), decay=np.zeros(()))


def _at_rate_of(offset: int) -> Change:
    """Return the change to the learning rate of step t + offset; it gives None if the rate is the same."""

    def change(step: Step, context: FaultContext) -> Step | None:
        training, t = _training(context), step_of(step.site.activation.name)
        rate = training.rate(t + offset) if t + offset > 0 else 0.0
        return None if rate == training.rate(t) else with_parameters(step, rate=as_array(rate))

    return change


def _without_warmup(step: Step, context: FaultContext) -> Step | None:
    """Return the step without warm-up.

    The rate decreases linearly from the first step; in an inverse-square-root schedule, it is the largest rate during the warm-up.
    """
    training, t = _training(context), step_of(step.site.activation.name)
    if training.lr_scheduler_type != "inverse_sqrt":
        rate = training.learning_rate * (1.0 - (t - 1) / training.max_steps)
    elif t <= training.warmup_steps:
        rate = training.learning_rate
    else:
        return None
    return with_parameters(step, rate=as_array(rate))


def _parameter(
    name: str, quantity: str, role: str, setting: str, usual: float, defaults: tuple[float, ...], most: float = np.inf
) -> Parameter:
    """Return the parameter of a fault in a setting of the optimizer.

    Args:
        name: name of the number in reports.
        quantity: the number in words.
        role: role of the setting among the step's parameters.
        setting: its name in the config.
        usual: the usual wrong value; if it is the correct one, twice that value is used.
        defaults: values that are usually hard-coded.
        most: upper limit of the value.
    """

    def wrong(step: Step) -> float:
        right = _number(step, role)
        return usual if right != usual else 2.0 * right

    return Parameter(
        name,
        lambda step: _number(step, role),
        wrong,
        lambda step, value: with_parameters(step, **{role: as_array(min(value, most))}),
        setting=setting,
        defaults=defaults,
        quantity=quantity,
    )


# fmt: off
FAULTS: tuple[Fault, ...] = (
    Fault("adam-epsilon-in-root", _STEPS, "Adam's epsilon is inside the root", recast(_EpsilonInRoot)),
    Fault("adam-epsilon-before-correction", _STEPS, "Adam's epsilon is added before the bias of v is corrected",
          recast(_EpsilonBeforeCorrection)),
    Fault("adam-correction-missing", _STEPS, "the bias of Adam's moments is not corrected",
          lambda step, _: with_parameters(step, corrected=np.zeros(())) if _number(step, "corrected") else None),
    Fault("adam-corrected", _STEPS, "the bias of Adam's moments is corrected, although it should not be",
          lambda step, _: None if _number(step, "corrected") else with_parameters(step, corrected=np.ones(()))),
    Fault("decay-coupled", _STEPS, "the weight decay is added to the gradient (L2), not subtracted from the parameter", _coupled),
    Fault("decay-missing", _STEPS, "there is no weight decay",
          lambda step, _: with_parameters(step, decay=np.zeros(())) if _number(step, "decay") else None),
    Fault("decay-on-all", _STEPS, "weight decay is applied to biases and norms", _decayed),
    Fault("decay-not-scaled", _STEPS, "the weight decay is not multiplied by the learning rate", recast(_DecayNotScaled)),
    Fault("clip-missing", _STEPS, "the gradient is not clipped", other_parameters(lambda _: {"clip": as_array(np.inf)})),
    Fault("clip-by-parameter", _STEPS, "each gradient is clipped by its own norm, not by the norm of all gradients",
          recast(_ClippedByParameter)),
    Fault("clip-by-value", _STEPS, "the gradient is clipped element by element", recast(_ClippedByValue)),
    Fault("rate-one-step-ahead", _STEPS, "the learning rate is that of the next step", _at_rate_of(1)),
    Fault("rate-one-step-behind", _STEPS, "the learning rate is that of the previous step", _at_rate_of(-1)),
    Fault("warmup-missing", _STEPS, "the learning rate does not warm up", _without_warmup),
    Fault("rate-constant", _STEPS, "the learning rate is constant",
          lambda step, context: with_parameters(step, rate=as_array(_training(context).learning_rate))),
    Fault("parameter-not-updated", _STEPS, "the parameter has a gradient but is not updated", first_parent),
    Fault("adam-epsilon", _STEPS, "Adam's epsilon is {value}, not {right}",
          parameter=_parameter("epsilon", "Adam's epsilon", "epsilon", "adam_epsilon", 1e-8, (1e-8, 1e-6, 1e-7))),
    Fault("adam-beta1", _STEPS, "Adam's β₁ is {value}, not {right}",
          parameter=_parameter("beta1", "Adam's β₁", "beta1", "adam_beta1", 0.95, (0.9,), most=1.0 - 1e-6)),
    Fault("adam-beta2", _STEPS, "Adam's β₂ is {value}, not {right}",
          parameter=_parameter("beta2", "Adam's β₂", "beta2", "adam_beta2", 0.98, (0.999, 0.98, 0.95), most=1.0 - 1e-6)),
    Fault("decay-other", _STEPS, "the weight decay is {value}, not {right}",
          parameter=_parameter("decay", "weight decay", "decay", "weight_decay", 0.01, (0.01,))),
    Fault("rate-other", _STEPS, "the learning rate is {value}, not {right}",
          parameter=_parameter("rate", "learning rate", "rate", "learning_rate", 1e-4, ())),
)
# fmt: on
