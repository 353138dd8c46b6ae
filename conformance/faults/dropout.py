"""Faults of dropout in training mode: missing, at another rate or place, or with a wrong gradient."""

from collections.abc import Callable, Iterator

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
_INVERTED = "Use the framework's dropout, or divide the kept elements by 1 − p."


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
def faults() -> Iterator[Fault]:
    """Yield the faults of dropout."""
    made = "constructed"
    yield Fault("dropout-missing", _FORWARD | _BACKWARD, "nothing is dropped", made, _missing,
                "no dropout at this place, or train() does not reach it",
                equation="y = x", fix="Apply dropout there; register it as a submodule, so that train() reaches it.")
    yield Fault("dropout-not-scaled", _FORWARD, "the elements that dropout keeps are not scaled", made,
                _where_it_drops(lambda step: _kept(step) * step.parents[0]), "a mask applied by hand",
                equation="y = x m", fix=_INVERTED)
    yield Fault("dropout-scaled-by-rate", _FORWARD | _BACKWARD, "the elements that dropout keeps are divided by p, not by 1 − p",
                made, _where_it_drops(lambda step: _kept(step) * step.parents[0] / _rate(step)),
                "the rate taken for the probability of keeping, as in TensorFlow 1", equation="y = x m / p", fix=_INVERTED)
    yield Fault("dropout-rate", _FORWARD | _BACKWARD, "the dropout rate is p = {value}, not {right}", made,
                cause="a rate that is hard-coded, or that of another dropout",
                parameter=Parameter("p", _rate, _usual_rate, _at_rate, defaults=(0.1, 0.2, 0.5), quantity="dropout rate"),
                equation="y = x m / (1 − p′)",
                fix="Take the rate from the config: hidden_dropout_prob, or attention_probs_dropout_prob for the probabilities.")
    yield Fault("dropout-after-residual", _FORWARD, "dropout acts on the residual sum, not on the sub-layer's result alone",
                made, _after_residual, "norm(dropout(x + skip))", (".output.dropout",),
                equation="y = (x + skip) m / (1 − p)", fix="Compute norm(dropout(x) + skip).")
    yield Fault("dropout-after-norm", _FORWARD | _NORMS, "dropout acts after the norm, not before the residual is added",
                "Devlin et al. 2019, appendix A.2; constructed", _after_norm, "dropout(norm(x + skip))",
                (".output.dropout", ".output.LayerNorm"),
                equation="y = norm(x + skip) m / (1 − p)", fix="Compute norm(dropout(x) + skip).")
    yield Fault("dropout-before-norm", _FORWARD | _NORMS, "the embeddings' dropout acts before their norm, not after it",
                "transformers#17842", _before_norm, "norm(dropout(word + token type + position))",
                (_EMBEDDINGS, "embeddings.LayerNorm"),
                equation="norm(x m / (1 − p))", fix="Compute dropout(norm(word + token type + position)).")
    yield Fault("dropout-gradient-unmasked", _BACKWARD, "the backward pass of dropout does not apply the mask", made,
                _where_it_drops(lambda step: step.parents[0] / (1.0 - _rate(step))), "a hand-written backward pass",
                equation="∂x = ∂y / (1 − p)", fix="Keep the mask of the forward pass, and multiply by it.")
    yield Fault("dropout-gradient-not-scaled", _BACKWARD, "the gradient of the elements that dropout keeps is not scaled", made,
                _where_it_drops(lambda step: _kept(step) * step.parents[0]), "a hand-written backward pass",
                equation="∂x = ∂y m", fix="Divide by 1 − p, as in the forward pass.")
    yield Fault("dropout-gradient-identity", _BACKWARD, "the gradient passes dropout unchanged (straight through)", made,
                first_parent, "dropout computed on .data", equation="∂x = ∂y",
                fix="Remove detach(), no_grad() or .data from the path of the gradient.")
