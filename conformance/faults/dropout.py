"""Faults of dropout in training mode: missing, at another rate or place, or with a wrong gradient."""

from collections.abc import Callable

import numpy as np

from conformance.faults.changes import Altered, first_parent, rewritten
from conformance.faults.fault import Change, Fault, FaultContext, Parameter
from conformance.model.activation import Activation
from conformance.model.activations import rate_of
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array, as_array
from conformance.oracle import Step
from conformance.oracle.embeddings import sum_variance

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
    found = context.network.step(norm.name, step.parents[0], skip)

    def slack(altered: Altered, arithmetic: Arithmetic) -> Array:
        return as_array(_factor(altered) ** 2 * found.roundings(arithmetic).variance())

    return Altered(step, lambda inner: _factor(inner) * found.value, slack)


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


# fmt: off
FAULTS: tuple[Fault, ...] = (
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
