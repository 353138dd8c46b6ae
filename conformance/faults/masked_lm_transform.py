"""Faults of the transform of the masked-LM head: activation function and norm in the other order, or a norm that is bypassed."""

from collections.abc import Iterator

from conformance.faults.altered import Altered, with_slack
from conformance.faults.changes import variance_of, with_parent, with_rounded_parent
from conformance.faults.fault import FUNCTIONS, Fault, FaultContext
from conformance.faults.norms import NORMS
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array
from conformance.oracle import Step

_PATH = "cls.predictions.transform."
_DENSE, _ACT, _NORM = (f"{_PATH}{name}" for name in ("dense", "transform_act_fn", "LayerNorm"))
_ENDS = (_ACT, _NORM)
_FIX = "Apply to the hidden state transform.dense, the activation function and transform.LayerNorm, in this order."


def _in_place_of(step: Step, found: Step) -> Step:
    """Return the step with the result and the rounding errors of another step, `found`."""
    return Altered(step, lambda _: found.value, lambda _, arithmetic: variance_of(found, arithmetic))


def _with_hidden_state(step: Step, context: FaultContext) -> Step | None:
    """Return the norm of the sum with the transform's input; the sum may be rounded to storage."""
    (hidden,) = context.network.table[_DENSE].parents
    found = context.values.get(hidden)
    if found is None or found.shape != step.value.shape:
        return None
    return with_rounded_parent(step.replaced(parents=(step.parents[0] + found,)), 0)


def _other_order(step: Step, context: FaultContext) -> Step:
    """Return the steps in the other order, where the activation exposed first is the norm and the second is the function of it."""
    other = _ACT if step.site.activation.name == _NORM else _NORM
    return _in_place_of(step, context.network.step(other, step.parents[0]))


def _norm_first(step: Step, context: FaultContext) -> Step | None:
    """Return the steps in the other order, each exposed under its own name: the norm of the product, the function of the norm."""
    if step.site.activation.name == _ACT:
        norm = context.network.step(_NORM, step.parents[0])

        def slack(altered: Altered, arithmetic: Arithmetic) -> Array:
            return altered.inner.jacobians()[0].variance(variance_of(norm, arithmetic))

        return with_slack(step.replaced(parents=(norm.value,)), slack)
    return with_parent(step, context, _DENSE)


# fmt: off
def faults() -> Iterator[Fault]:
    """Yield the faults of the transform."""
    made, cause = "constructed", "layers in the order product, norm, function"
    yield Fault("transform-order", FUNCTIONS | NORMS, "the head's norm comes before its activation function", made, _other_order,
                cause, _ENDS, after_failure=True, equation="y = f(LayerNorm(x Wᵀ + b))", fix=_FIX)
    yield Fault("transform-norm-first", FUNCTIONS | NORMS,
                "the head's norm reads the product, and its activation function reads the norm", made, _norm_first,
                cause, _ENDS, after_failure=True, equation="y = f(LayerNorm(x Wᵀ + b))", fix=_FIX)
    yield Fault("decoder-without-norm", frozenset({"linear"}),
                "the decoder reads the transform's activation function, bypassing its norm", made,
                lambda step, context: with_parent(step, context, _ACT),
                "a norm left out, or before the function", ("predictions.decoder",), after_failure=True,
                equation="y = f(x W₁ᵀ + b₁) Eᵀ + b", fix=_FIX)
    yield Fault("transform-residual", NORMS, "the hidden state is added before the head's norm", made, _with_hidden_state,
                "the module of a layer's residual norm, used for the head", (_NORM,), after_failure=True,
                equation="y = LayerNorm(f(x Wᵀ + b) + x)", fix=_FIX)
# fmt: on
