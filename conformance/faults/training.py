"""Faults of dropout in training mode: missing, at another rate or place, or with a wrong gradient."""

from collections.abc import Callable
from typing import cast

import numpy as np

from conformance.faults.changes import Altered
from conformance.faults.edits import first_parent, other_parameters, recast, rewritten, variant
from conformance.faults.fault import Change, Fault, FaultContext, Parameter, with_parameters
from conformance.model.activation import Activation
from conformance.model.activations import rate_of
from conformance.model.training import ADAM, Training, at, decays, parameter_of, step_of
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array, as_array
from conformance.oracle import Step
from conformance.oracle.optimizer import Adam
from conformance.oracle.trace import sum_variance
from conformance.oracle.training_run import TrainingRun

_FORWARD = frozenset({"dropout"})
_BACKWARD = frozenset({"dropout_backward"})
_NORMS = frozenset({"norm"})
_EMBEDDINGS = "embeddings.dropout"


def _rate(step: Step) -> float:
    return rate_of(step.site.activation.dropout, step.site.architecture)


def _kept(step: Step) -> Array:
    assert step.site.kept is not None
    return step.site.kept


def _factor(step: Step) -> Array:
    return _kept(step) / (1.0 - _rate(step))


def _drops(step: Step) -> bool:
    """Return whether any element is dropped; if not, the only fault that can be detected is that dropout is missing."""
    return not _kept(step).all()


def _where_it_drops(value: Callable[[Step], Array]) -> Change:
    return lambda step, context: rewritten(value)(step, context) if _drops(step) else None


def _missing(step: Step, _: FaultContext) -> Step | None:
    return None if _drops(step) else Altered(step, lambda inner: inner.parents[0])


def _at_rate(step: Step, rate: float) -> Step:
    return Altered(step, lambda inner: inner.value * (1.0 - _rate(inner)) / (1.0 - rate))


def _usual_rate(step: Step) -> float:
    """Return twice the rate, or half of it if twice the rate is 1 or more."""
    p = _rate(step)
    return 2.0 * p if 2.0 * p < 1.0 else p / 2.0


def _norm_of(name: str, context: FaultContext) -> Activation | None:
    """Return the norm that reads the result of a dropout; None if there is none."""
    return next((row for row in context.network.table.values() if row.kind == "norm" and name in row.parents), None)


def _skip(step: Step, context: FaultContext) -> Array | None:
    """Return the residual that is added to the result of a dropout; None if it is not known."""
    name = step.site.activation.name
    norm = _norm_of(name, context)
    others = [parent for parent in norm.parents if parent != name] if norm else []
    return context.values[others[0]] if others and others[0] in context.values else None


def _after_residual(step: Step, context: FaultContext) -> Step | None:
    skip = _skip(step, context)
    return None if skip is None else Altered(step, lambda inner: inner.value + _factor(inner) * skip)


def _after_norm(step: Step, context: FaultContext) -> Step | None:
    """Return the step with dropout after the norm: at the norm if the dropout's mask is known there, or at the dropout."""
    name = step.site.activation.name
    if step.site.activation.kind == "norm":
        kept = context.network.kept.get(name)
        factor = 1.0 - context.network.architecture.hidden_dropout_prob
        return None if kept is None else Altered(step, lambda inner: inner.value * kept / factor)
    norm, skip = _norm_of(name, context), _skip(step, context)
    if norm is None or skip is None:
        return None
    normal = context.network.step(norm.name, step.parents[0], skip)

    def slack(altered: Altered, arithmetic: Arithmetic) -> Array:
        return as_array(_factor(altered) ** 2 * normal.roundings(arithmetic).variance())

    return Altered(step, lambda inner: _factor(inner) * normal.value, slack)


def _before_norm(step: Step, context: FaultContext) -> Step | None:
    """Return the norm or the dropout of the embeddings, with dropout before the norm."""
    kept = context.network.kept.get(_EMBEDDINGS)
    table = context.network.table
    if kept is None or _EMBEDDINGS not in table:
        return None
    factor = kept / (1.0 - rate_of(_EMBEDDINGS, context.network.architecture))
    if step.site.activation.kind == "norm":
        return step.replaced(parents=tuple(factor * parent for parent in step.parents))
    parents = table[table[_EMBEDDINGS].parents[0]].parents
    if not all(parent in context.values for parent in parents):
        return None
    terms = tuple(context.values[parent] for parent in parents)
    return Altered(
        step, lambda _: factor * np.sum(terms, axis=0), lambda _, arithmetic: factor**2 * sum_variance(terms, arithmetic)
    )


_STEPS = frozenset({ADAM})


def _root(step: Adam) -> Array:
    """Return √v̂, the root of the corrected second moment."""
    return as_array(np.sqrt(step.moments[1] / step.corrections[1]))


def _of_each_parameter(step: Adam) -> tuple[float, ...]:
    """Return the factors by which gradients are clipped, of each by the norm of this parameter's gradient alone."""
    c, norms = step.number("clip"), (float(np.linalg.norm(g)) for g in step.parents[1 : step.step + 1])
    return tuple(min(1.0, c / n) if n > 0.0 else 1.0 for n in norms)


def _by_element(step: Adam) -> tuple[Array, ...]:
    c = step.number("clip")
    return tuple(np.clip(g, -c, c) for g in step.parents[1 : step.step + 1])


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

    def clipped(adam: Adam) -> tuple[Array, ...]:
        return tuple(k * g + decay * as_array(p) for k, g, p in zip(adam.coefficients, adam.parents[1:], before, strict=False))

    return with_parameters(step.recast(variant(Adam, clipped=clipped)), decay=np.zeros(()))


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
DROPOUT: tuple[Fault, ...] = (
    Fault("dropout-missing", _FORWARD | _BACKWARD, "nothing is dropped", _missing),
    Fault("dropout-not-scaled", _FORWARD, "the elements that dropout keeps are not scaled",
          _where_it_drops(lambda step: _kept(step) * step.parents[0])),
    Fault("dropout-scaled-by-rate", _FORWARD | _BACKWARD, "the elements that dropout keeps are divided by p, not by 1 − p",
          _where_it_drops(lambda step: _kept(step) * step.parents[0] / _rate(step))),
    Fault("dropout-rate", _FORWARD | _BACKWARD, "the dropout rate is p = {value}, not {right}",
          parameter=Parameter("p", _rate, _usual_rate, _at_rate, defaults=(0.1, 0.2, 0.5), quantity="dropout rate")),
    Fault("dropout-after-residual", _FORWARD, "dropout acts on the residual sum, not on the sub-layer's result alone",
          _after_residual, only=(".output.dropout",)),
    Fault("dropout-after-norm", _FORWARD | _NORMS, "dropout acts after the norm, not before the residual is added", _after_norm,
          only=(".output.dropout", ".output.LayerNorm")),
    Fault("dropout-before-norm", _FORWARD | _NORMS, "the embeddings' dropout acts before their norm, not after it", _before_norm,
          only=(_EMBEDDINGS, "embeddings.LayerNorm")),
    Fault("dropout-gradient-unmasked", _BACKWARD, "the backward pass of dropout does not apply the mask",
          _where_it_drops(lambda step: step.parents[0] / (1.0 - _rate(step)))),
    Fault("dropout-gradient-not-scaled", _BACKWARD, "the gradient of the elements that dropout keeps is not scaled",
          _where_it_drops(lambda step: _kept(step) * step.parents[0])),
    Fault("dropout-gradient-identity", _BACKWARD, "the gradient passes dropout unchanged (straight through)", first_parent),
)
# fmt: on

# fmt: off
OPTIMIZER: tuple[Fault, ...] = (
    Fault("adam-epsilon-in-root", _STEPS, "Adam's epsilon is inside the root",
          recast(variant(Adam, denominator=lambda a: as_array(np.sqrt(_root(a) ** 2 + a.number("epsilon")))))),
    Fault("adam-epsilon-before-correction", _STEPS, "Adam's epsilon is added before the bias of v is corrected",
          recast(variant(Adam, denominator=lambda a: _root(a) + a.number("epsilon") / np.sqrt(a.corrections[1])))),
    Fault("adam-correction-missing", _STEPS, "the bias of Adam's moments is not corrected",
          lambda step, _: with_parameters(step, corrected=np.zeros(())) if _number(step, "corrected") else None),
    Fault("adam-corrected", _STEPS, "the bias of Adam's moments is corrected, although it should not be",
          lambda step, _: None if _number(step, "corrected") else with_parameters(step, corrected=np.ones(()))),
    Fault("decay-coupled", _STEPS, "the weight decay is added to the gradient (L2), not subtracted from the parameter", _coupled),
    Fault("decay-missing", _STEPS, "there is no weight decay",
          lambda step, _: with_parameters(step, decay=np.zeros(())) if _number(step, "decay") else None),
    Fault("decay-on-all", _STEPS, "weight decay is applied to biases and norms", _decayed),
    Fault("decay-not-scaled", _STEPS, "the weight decay is not multiplied by the learning rate",
          recast(variant(Adam, _decayed=lambda a: (1.0 - a.number("decay")) * a.parents[0]))),
    Fault("clip-missing", _STEPS, "the gradient is not clipped", other_parameters(lambda _: {"clip": as_array(np.inf)})),
    Fault("clip-by-parameter", _STEPS, "each gradient is clipped by its own norm, not by the norm of all gradients",
          recast(variant(Adam, coefficients=_of_each_parameter))),
    Fault("clip-by-value", _STEPS, "the gradient is clipped element by element", recast(variant(Adam, clipped=_by_element))),
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
