"""Faults of activation functions: another function, another form or constant, or none."""

from collections.abc import Iterator

import numpy as np
from scipy.special import expit

from conformance.faults.changes import (
    Altered,
    copied_from,
    first_parent,
    function,
    recast,
    rewritten,
    variance_of,
    with_rounded_parent,
    with_slack_of_parent,
)
from conformance.faults.fault import (
    ERF_FORM,
    FUNCTIONS,
    GELUS,
    RELU,
    TANH_FORMS,
    Fault,
    FaultContext,
    Parameter,
    SameFunction,
    ignored,
)
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array, as_array
from conformance.numerics.functions import TANH_CUBIC, TANH_OUTER, erf
from conformance.oracle import Step
from conformance.oracle.pointwise import Gelu, GeluTanh, QuickGelu, Silu, gated, gelu_tanh

_HIDDEN_ACT = (
    "Choose the function by the config's hidden_act: gelu is the erf form (torch.nn.functional.gelu(x)), gelu_new and "
    "gelu_pytorch_tanh are the tanh form (approximate='tanh'), relu is max(x, 0). A Dense module of "
    "sentence-transformers has its own, activation_function in 2_Dense/config.json."
)

_POOLER = "Apply tanh to the pooler's linear layer."


def _other_form(step: Step, _: FaultContext) -> Step:
    return step.recast(GeluTanh if step.site.activation.kind == "gelu" else Gelu)


def _twice(step: Step, _: FaultContext) -> Step:
    """Return the function applied twice, with the rounding errors of the first application propagated through the second."""
    return with_slack_of_parent(step.replaced(parents=(step.value,)), lambda _, arithmetic: variance_of(step, arithmetic))


def _again(step: Step, context: FaultContext) -> Step | None:
    """Return a step that reads f(y) in place of y = f(x), the result of an activation function; f(y) may be rounded to storage."""
    table = context.network.table
    name = copied_from(table, step.site.activation.parents[0])
    if name not in table or table[name].kind not in GELUS | {"tanh"}:
        return None
    again = context.network.step(name, step.parents[0])
    read = step.replaced(parents=(again.value, *step.parents[1:]))
    return with_slack_of_parent(read, lambda _, arithmetic: variance_of(again, arithmetic))


def _late(step: Step, context: FaultContext) -> Step | None:
    """Return f(y) for a linear layer's result y, with the function f that is applied to its input; y may be rounded to storage."""
    name = step.site.activation.parents[0]
    if context.network.table[name].kind not in FUNCTIONS:
        return None

    def applied(inner: Step) -> Step:
        return context.network.step(name, inner.value)

    def slack(altered: Altered, arithmetic: Arithmetic) -> Array:
        function = applied(altered.inner)
        stored = function.jacobians()[0].variance(arithmetic.storage.rounding_variance(altered.inner.value))
        return as_array(variance_of(function, arithmetic) + stored)

    return Altered(step, lambda inner: applied(inner).value, slack)


def _of_magnitude(step: Step, _: FaultContext) -> Step:
    """Return x Φ(|x|), which is x − x Φ(x) for a negative x."""
    return Altered(step, lambda inner: np.where(inner.parents[0] < 0.0, inner.parents[0] - inner.value, inner.value))


def _with_argument(step: Step, k: float) -> Step:
    return Altered(step, lambda inner: gated(inner.parents[0], erf(k * inner.parents[0])))


def _with_cubic(step: Step, c: float) -> Step:
    return Altered(step, lambda inner: gelu_tanh(inner.parents[0], cubic=c))


_EIGHT_DIGITS = 0.79788456  # √(2/π) = 0.7978845608…


def _with_eight_digits(step: Step, context: FaultContext) -> Step | None:
    """Return the tanh form with √(2/π) to eight digits; None in formats in which that is the same number."""
    same = (context.storage.round(np.array([_EIGHT_DIGITS, TANH_OUTER])) == context.storage.round(np.array(TANH_OUTER))).all()
    return None if same else Altered(step.recast(GeluTanh), lambda inner: gelu_tanh(inner.parents[0], outer=_EIGHT_DIGITS))


def _bias_after(step: Step, context: FaultContext) -> Step | None:
    """Return f(x) + b, where b is the bias of the linear layer whose result is x."""
    bias = _bias_of_product(step, context)
    return None if bias is None else Altered(step, lambda inner: inner.value + bias)


def _bias_again(step: Step, context: FaultContext) -> Step | None:
    """Return f(x + b), where x contains the bias b of the linear layer already; the sum may be rounded to storage."""
    bias = _bias_of_product(step, context)
    if bias is None:
        return None
    return with_rounded_parent(step.replaced(parents=(step.parents[0] + bias,)), 0)


def _bias_of_product(step: Step, context: FaultContext) -> Array | None:
    (product,) = step.site.activation.parents
    return context.network.site(product).parameters.get("bias") if product in context.network.table else None


def _bias_moved(step: Step, context: FaultContext) -> Step | None:
    """Return f(x − b) + b, where b is the bias of the linear layer whose result is x.

    The product without bias may have other rounding errors than x, and be rounded to storage itself.
    """
    bias = _bias_of_product(step, context)
    if bias is None:
        return None
    (name,) = step.site.activation.parents
    reads = context.network.table[name].parents
    known = [context.values[p] for p in reads if p in context.values]
    product = context.network.step(name, *known) if len(known) == len(reads) else None

    def slack(altered: Altered, arithmetic: Arithmetic) -> Array:
        (x,) = altered.inner.parents
        own = arithmetic.storage.rounding_variance(x) + arithmetic.storage.rounding_variance(x + bias)
        of_product = 0.0 if product is None else 2.0 * product.roundings(arithmetic).variance()
        return altered.inner.jacobians()[0].variance(as_array(own + of_product))

    return Altered(step.replaced(parents=(step.parents[0] - bias,)), lambda inner: inner.value + bias, slack)


def _clipped(step: Step, bound: float) -> Step:
    return Altered(step, lambda inner: np.minimum(inner.value, bound))


def _largest(step: Step) -> float:
    return float(step.value.max(initial=0.0))


def _half(inner: Step) -> Array:
    kept = np.arange(inner.value.shape[-1]) < inner.value.shape[-1] // 2
    return np.where(kept, inner.value, 0.0)


# fmt: off
def faults() -> Iterator[Fault]:
    """Yield the faults of activation functions."""
    yield Fault(
        "gelu-variant", GELUS, "GELU takes the other form (tanh for erf, or erf for tanh)",
        "candle#900, mlx-embeddings#81, transformers#11364", _other_form, "two functions are called gelu; the config says which",
        equation="y = x/2 · (1 + tanh(√(2/π) (x + 0.044715 x³))) for gelu; y = x/2 · (1 + erf(x/√2)) for the tanh forms",
        fix=_HIDDEN_ACT,
        sentences=dict.fromkeys(ERF_FORM, "GELU is computed with tanh, where the architecture has erf")
        | dict.fromkeys(TANH_FORMS, "GELU is computed with erf, where the architecture has tanh"),
    )
    yield Fault(
        "activation-quick-gelu", FUNCTIONS, "the activation is x · sigmoid(1.702 x)", "constructed, after CLIP's quick_gelu",
        recast(QuickGelu), "a third function is called gelu, the quick one",
        equation="y = x / (1 + exp(−1.702 x))",
        fix=_HIDDEN_ACT,
    )
    yield Fault("activation-silu", FUNCTIONS, "the activation is SiLU, x · sigmoid(x)", "constructed", recast(Silu),
                "the function of later models",
                equation="y = x / (1 + exp(−x))",
                fix=_HIDDEN_ACT)
    yield Fault("bias-after-activation", FUNCTIONS | {"tanh"}, "the bias of the preceding product is added after the function",
                "constructed", _bias_after, "the epilogue of a fused product in another order",
                ("_act_fn", "pooler.activation"),
                equation="y = f(z) + b, z the exposed product",
                fix="Add the bias to the product, before the function, and only there.")
    yield Fault("bias-again-before-activation", FUNCTIONS | {"tanh"},
                "the bias of the preceding product is added to it a second time, before the function", "constructed", _bias_again,
                "a fused kernel of bias and function, given a product that has its bias", ("_act_fn", "pooler.activation"),
                after_failure=True,
                equation="y = f(z + b), z the exposed product",
                fix="Add the bias once: in the product or in the fused function.")
    yield Fault("bias-moved-after-activation", FUNCTIONS | {"tanh"},
                "the bias of the preceding product is added after the function, and not before it",
                "constructed", _bias_moved, "the epilogue of a fused product in another order",
                ("_act_fn", "pooler.activation"), after_failure=True,
                equation="y = f(W x) + b",
                fix="Add the bias to the product, before the function.")
    for name, form, step, equation in (
        ("activation-gelu", "erf", Gelu, "y = x/2 · (1 + erf(x/√2))"),
        ("activation-gelu-tanh", "tanh", GeluTanh, "y = x/2 · (1 + tanh(√(2/π) (x + 0.044715 x³)))"),
    ):
        yield Fault(name, RELU, f"the activation is GELU in its {form} form, the checkpoint says ReLU{ignored('hidden_act')}",
                    "constructed", recast(step), "GELU hard-coded, as BERT has it", ("_act_fn",), equation=equation,
                    fix=_HIDDEN_ACT)
    yield Fault("activation-relu", GELUS, "the activation is ReLU", "constructed", function(lambda x: np.maximum(x, 0.0)),
                "the default of most feed-forward layers, such as nn.TransformerEncoderLayer's",
                equation="y = max(x, 0)",
                fix=_HIDDEN_ACT)
    yield Fault("activation-missing", FUNCTIONS | {"tanh"}, "there is no activation function", "constructed", first_parent,
                "left out between the two products", ("_act_fn", "activation_function", "sentence_embedding"),
                equation="y = x",
                fix=_HIDDEN_ACT)
    yield Fault("activation-leaky-relu", FUNCTIONS, "the activation is leaky ReLU", "constructed",
                function(lambda x: np.maximum(x, 0.01 * x)),
                equation="y = max(x, 0.01 x)",
                fix=_HIDDEN_ACT)
    yield Fault("activation-twice", GELUS | {"tanh"}, "the activation function is applied twice", "constructed", _twice,
                "the epilogue of a fused product applies it, and the layer applies it again", after_failure=True,
                equation="y = f(f(x))",
                fix="Apply the function once: in the product's epilogue or after the product.")
    yield Fault("activation-again", frozenset({"linear", "norm"}), "the activation function is applied to its result again",
                "constructed", _again, "a fused operation that has the function in it, with the function left in the graph as well",
                (".output.dense", "transform.LayerNorm", "seq_relationship", "classifier"), after_failure=True,
                equation="it reads f(f(x)), and f(x) is exposed",
                fix="Apply the function once: in the product's epilogue or after the product.",
                same_as=SameFunction("activation-twice", "the activation function is applied to its result again"))
    yield Fault("activation-late", frozenset({"linear"}), "the activation function is applied to its result as well",
                "constructed", _late, "one helper, linear layer and function, for both linear layers of a feed-forward block",
                (".output.dense",), after_failure=True,
                equation="y = f(f(x W₁ᵀ + b₁) W₂ᵀ + b₂)",
                fix="Apply the function between the two linear layers alone.")
    yield Fault("activation-squared-relu", FUNCTIONS, "the activation is ReLU squared", "constructed, after So et al. 2021",
                function(lambda x: np.maximum(x, 0.0) ** 2), "the function of later models", after_failure=True,
                equation="y = max(x, 0)²",
                fix=_HIDDEN_ACT)
    yield Fault("activation-tanh", FUNCTIONS, "the activation is tanh", "constructed", function(np.tanh),
                equation="y = tanh(x)",
                fix=_HIDDEN_ACT)
    yield Fault(
        "gelu-argument", frozenset({"gelu"}), "GELU is x/2 · (1 + erf(k x)) with k = {value}, not 1/√2 = {right}", "constructed",
        cause="the √2 left out, or a constant with too few digits",
        parameter=Parameter("k", lambda _: 0.5**0.5, lambda _: 1.0, _with_argument, quantity="factor in the erf of GELU"),
        equation="y = x/2 · (1 + erf(k x))",
        fix="Divide the argument of erf by √2, in full precision.",
    )
    yield Fault(
        "gelu-tanh-constant", TANH_FORMS, "the cubic term of GELU has the factor {value}, not {right}", "constructed",
        cause="a typing error in 0.044715",
        parameter=Parameter("factor", lambda _: TANH_CUBIC, lambda _: 0.44715, _with_cubic, quantity="factor of x³ in GELU"),
        equation="y = x/2 · (1 + tanh(√(2/π) (x + c x³))), c the wrong factor",
        fix="Set the factor of x³ to 0.044715.",
    )
    yield Fault(
        "gelu-tanh-eight-digits", GELUS, "GELU is computed with tanh, and with √(2/π) to eight digits, 0.79788456",
        "the GELU of cuBLASLt in float64, by which PyTorch's fast path computes on CUDA (pytorch#104061)", _with_eight_digits,
        "a kernel of single precision that is used in float64", after_failure=True,
        equation="y = x/2 · (1 + tanh(0.79788456 (x + 0.044715 x³)))",
        fix=f"{_HIDDEN_ACT} Compute √(2/π) in the format of the results.",
    )
    yield Fault("gelu-of-magnitude", GELUS, "the error function, or tanh, inside GELU is that of |x|", "constructed", _of_magnitude,
                "a polynomial for x ≥ 0, such as Abramowitz and Stegun's, without the sign of x", after_failure=True,
                equation="y = x/2 · (1 + erf(|x|/√2))",
                fix="Multiply the polynomial's result by the sign of x: erf(−x) = −erf(x).")
    yield Fault(
        "result-clipped", FUNCTIONS, "the result is at most {value}", "constructed, after Krishnamoorthi 2018",
        cause="ReLU6, GELU10, or a range calibrated for a quantised graph", after_failure=True, combined_after_failure=True,
        parameter=Parameter("bound", _largest, lambda step: 0.9 * _largest(step), _clipped),
        equation="y = min(f(x), c)",
        fix="Return the function's result without an upper limit.",
    )
    yield Fault("features-dropped", FUNCTIONS | {"linear"}, "the second half of the intermediate features is zero", "constructed",
                rewritten(_half), "half of a gated feed-forward layer",
                ("intermediate.dense", "_act_fn"),
                equation="y_i = 0 for i ≥ intermediate_size / 2",
                fix="Use all intermediate_size features.")
    for name, change, sentence, equation in (
        ("pooler-activation-missing", first_parent, "the pooler has no tanh", "y = x"),
        ("pooler-relu", function(lambda x: np.maximum(x, 0.0)), "the pooler's activation is ReLU, not tanh", "y = max(x, 0)"),
        ("pooler-sigmoid", function(expit), "the pooler's activation is a sigmoid, not tanh", "y = 1 / (1 + exp(−x))"),
    ):
        yield Fault(name, frozenset({"tanh"}), sentence, "constructed", change, only=("pooler.activation",), equation=equation,
                    fix=_POOLER)
    yield Fault("activation-hard-tanh", frozenset({"tanh"}), "tanh is a hard tanh: x limited to −1 … 1", "constructed",
                function(lambda x: np.clip(x, -1.0, 1.0)), "a device or a quantised graph without tanh", after_failure=True,
                equation="y = min(max(x, −1), 1)",
                fix="Apply torch.tanh, not torch.nn.functional.hardtanh.")
    yield Fault("pooler-gelu", frozenset({"tanh"}), "the pooler's activation is GELU, not tanh", "constructed", recast(Gelu),
                "hidden_act also used for the pooler", ("pooler.activation",), after_failure=True,
                equation="y = x/2 · (1 + erf(x/√2))",
                fix=_POOLER)
# fmt: on
