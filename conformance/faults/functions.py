"""Faults of activation functions: another function, another form or constant, or none."""

from collections.abc import Callable

import numpy as np
from scipy.special import expit

from conformance.faults.changes import Altered, run, with_rounded_parent
from conformance.faults.edits import copied_from, first_parent, function, in_place_of, recast, with_computed, with_operand
from conformance.faults.fault import (
    ALONE,
    ERF_FORM,
    FAILED,
    FUNCTIONS,
    GELUS,
    RELU,
    TANH_FORMS,
    Change,
    Fault,
    FaultContext,
    Parameter,
    SameFunction,
    ignored,
)
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array, as_array
from conformance.numerics.functions import SIGMOID_FACTOR, TANH_CUBIC, TANH_OUTER, erf
from conformance.oracle import Step
from conformance.oracle.pointwise import Gelu, GeluTanh, QuickGelu, Silu, gated, gelu_tanh, silu

TANH = frozenset({"tanh"})
_POOLER = ("pooler.activation",)


def _other_form(step: Step, _: FaultContext) -> Step:
    return step.recast(GeluTanh if step.site.activation.kind == "gelu" else Gelu)


def _again(step: Step, context: FaultContext) -> Step | None:
    """Return a step that reads f(y) in place of y = f(x), the result of an activation function; f(y) may be rounded to storage."""
    table = context.network.table
    name = copied_from(table, step.site.activation.parents[0])
    if name not in table or table[name].kind not in GELUS | {"tanh"}:
        return None
    return with_computed(step, context.network.step(name, step.parents[0]))


def _late(step: Step, context: FaultContext) -> Step | None:
    """Return f(y) for a linear layer's result y, with the function f that is applied to its input; y may be rounded to storage."""
    name = step.site.activation.parents[0]
    if context.network.table[name].kind not in FUNCTIONS:
        return None
    return in_place_of(step, lambda inner: with_rounded_parent(context.network.step(name, inner.value), 0))


def _of_magnitude(step: Step, _: FaultContext) -> Step:
    """Return x Φ(|x|), which is x − x Φ(x) for a negative x."""
    return Altered(step, lambda inner: np.where(inner.parents[0] < 0.0, inner.parents[0] - inner.value, inner.value))


_EIGHT_DIGITS = 0.79788456  # √(2/π) = 0.7978845608…


def _with_eight_digits(step: Step, context: FaultContext) -> Step | None:
    """Return the tanh form with √(2/π) to eight digits; None in formats in which that is the same number."""
    same = (context.storage.round(np.array([_EIGHT_DIGITS, TANH_OUTER])) == context.storage.round(np.array(TANH_OUTER))).all()
    return None if same else Altered(step.recast(GeluTanh), lambda inner: gelu_tanh(inner.parents[0], outer=_EIGHT_DIGITS))


def _with_bias(f: Callable[[Step, Array, FaultContext], Step]) -> Change:
    """Return the change to `f(step, b, context)`, where b is the bias of the linear layer whose result the function reads."""

    def change(step: Step, context: FaultContext) -> Step | None:
        (product,) = step.site.activation.parents
        bias = context.network.site(product).parameters.get("bias") if product in context.network.table else None
        return None if bias is None else f(step, bias, context)

    return change


def _bias_moved(step: Step, bias: Array, context: FaultContext) -> Step:
    """Return f(x − b) + b, where x contains the bias b.

    The product without bias may have other rounding errors than x, and be rounded to storage itself.
    """
    (name,) = step.site.activation.parents
    product = (run(context.network, [name], context.values) or {}).get(name)

    def slack(altered: Altered, arithmetic: Arithmetic) -> Array:
        (x,) = altered.inner.parents
        own = arithmetic.storage.rounding_variance(x) + arithmetic.storage.rounding_variance(x + bias)
        of_product = 0.0 if product is None else 2.0 * product.roundings(arithmetic).variance()
        return altered.inner.jacobians()[0].variance(as_array(own + of_product))

    return Altered(with_operand(step, step.parents[0] - bias), lambda inner: inner.value + bias, slack)


def _largest(step: Step) -> float:
    return float(step.value.max(initial=0.0))


def _numbered(equation: type[Step], form: Callable[[Array, float], Array]) -> Callable[[Step, float], Step]:
    """Return the function to a step with the result form(x, number), and with the rounding errors of an equation."""
    return lambda step, number: Altered(step.recast(equation), lambda inner: form(inner.parents[0], number))


# fmt: off
FAULTS: tuple[Fault, ...] = (
    Fault("gelu-variant", GELUS, "GELU takes the other form (tanh for erf, or erf for tanh)", _other_form,
          sentences={kind: f"GELU is computed with {form}, where the architecture has {other}"
                     for kinds, form, other in ((ERF_FORM, "tanh", "erf"), (TANH_FORMS, "erf", "tanh")) for kind in kinds}),
    Fault("activation-quick-gelu", FUNCTIONS, "the activation is x · sigmoid(1.702 x)", recast(QuickGelu)),
    Fault("activation-silu", FUNCTIONS, "the activation is SiLU, x · sigmoid(x)", recast(Silu)),
    Fault("bias-after-activation", FUNCTIONS | TANH, "the bias of the preceding product is added after the function",
          _with_bias(lambda step, bias, _: Altered(step, lambda inner: inner.value + bias)), only=("_act_fn", "pooler.activation")),
    Fault("bias-again-before-activation", FUNCTIONS | TANH,
          "the bias of the preceding product is added to it a second time, before the function",
          _with_bias(lambda step, bias, _: with_rounded_parent(with_operand(step, step.parents[0] + bias), 0)),
          only=("_act_fn", "pooler.activation"), tried=ALONE),
    Fault("bias-moved-after-activation", FUNCTIONS | TANH,
          "the bias of the preceding product is added after the function, and not before it", _with_bias(_bias_moved),
          only=("_act_fn", "pooler.activation"), tried=ALONE),
    *(
        Fault(name, RELU, f"the activation is GELU in its {form} form, the checkpoint says ReLU{ignored('hidden_act')}",
              recast(gelu), only=("_act_fn",))
        for name, form, gelu in (("activation-gelu", "erf", Gelu), ("activation-gelu-tanh", "tanh", GeluTanh))
    ),
    Fault("activation-relu", GELUS, "the activation is ReLU", function(lambda x: np.maximum(x, 0.0))),
    Fault("activation-missing", FUNCTIONS | TANH, "there is no activation function", first_parent,
          only=("_act_fn", "activation_function", "sentence_embedding")),
    Fault("activation-leaky-relu", FUNCTIONS, "the activation is leaky ReLU", function(lambda x: np.maximum(x, 0.01 * x))),
    Fault("activation-twice", GELUS | TANH, "the activation function is applied twice", lambda step, _: with_computed(step, step),
          tried=ALONE),
    Fault("activation-again", frozenset({"linear", "norm"}), "the activation function is applied to its result again", _again,
          only=(".output.dense", "transform.LayerNorm", "seq_relationship", "classifier"), tried=ALONE,
          same_as=SameFunction("activation-twice", "the activation function is applied to its result again")),
    Fault("activation-late", frozenset({"linear"}), "the activation function is applied to its result as well", _late,
          only=(".output.dense",), tried=ALONE),
    Fault("activation-squared-relu", FUNCTIONS, "the activation is ReLU squared", function(lambda x: np.maximum(x, 0.0) ** 2),
          tried=ALONE),
    Fault("activation-tanh", FUNCTIONS, "the activation is tanh", function(np.tanh)),
    Fault("gelu-argument", frozenset({"gelu"}), "GELU is x/2 · (1 + erf(k x)) with k = {value}, not 1/√2 = {right}",
          parameter=Parameter("k", lambda _: 0.5**0.5, lambda _: 1.0, _numbered(Gelu, lambda x, k: gated(x, erf(k * x))),
                              quantity="factor in the erf of GELU")),
    Fault("gelu-tanh-constant", TANH_FORMS, "the cubic term of GELU has the factor {value}, not {right}",
          parameter=Parameter("factor", lambda _: TANH_CUBIC, lambda _: 0.44715,
                              _numbered(GeluTanh, lambda x, c: gelu_tanh(x, cubic=c)),
                              quantity="factor of x³ in GELU")),
    Fault("gelu-tanh-cubic", ERF_FORM, "GELU takes its tanh form, with the factor {value} of x³, not {right}",
          parameter=Parameter("factor", lambda _: TANH_CUBIC, lambda _: 0.44715,
                              _numbered(GeluTanh, lambda x, c: gelu_tanh(x, cubic=c))), tried=ALONE),
    Fault("gelu-tanh-outer", GELUS, "GELU takes its tanh form, with the factor {value}, not √(2/π) = {right}",
          parameter=Parameter("factor", lambda _: TANH_OUTER, lambda _: 0.8, _numbered(GeluTanh, gelu_tanh)), tried=ALONE),
    Fault("gelu-sigmoid-factor", GELUS, "the activation is x · sigmoid({value} x)",
          parameter=Parameter("factor", lambda _: SIGMOID_FACTOR, lambda _: 1.7, _numbered(Gelu, silu)), tried=ALONE),
    Fault("gelu-tanh-eight-digits", GELUS, "GELU is computed with tanh, and with √(2/π) to eight digits, 0.79788456",
          _with_eight_digits, tried=ALONE),
    Fault("gelu-of-magnitude", GELUS, "the error function, or tanh, inside GELU is that of |x|", _of_magnitude, tried=ALONE),
    Fault("result-clipped", FUNCTIONS, "the result is at most {value}",
          parameter=Parameter("bound", _largest, lambda step: 0.9 * _largest(step),
                              lambda step, bound: Altered(step, lambda inner: np.minimum(inner.value, bound))), tried=FAILED),
    Fault("pooler-activation-missing", TANH, "the pooler has no tanh", first_parent, only=_POOLER),
    Fault("pooler-relu", TANH, "the pooler's activation is ReLU, not tanh", function(lambda x: np.maximum(x, 0.0)), only=_POOLER),
    Fault("pooler-sigmoid", TANH, "the pooler's activation is a sigmoid, not tanh", function(expit), only=_POOLER),
    Fault("activation-hard-tanh", TANH, "tanh is a hard tanh: x limited to −1 … 1", function(lambda x: np.clip(x, -1.0, 1.0)),
          tried=ALONE),
    Fault("pooler-gelu", TANH, "the pooler's activation is GELU, not tanh", recast(Gelu), only=_POOLER, tried=ALONE),
)
# fmt: on
