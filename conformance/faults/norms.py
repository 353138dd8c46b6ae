"""Faults of LayerNorms and of the residual sums that they normalize."""

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache, partial
from typing import ClassVar

import numpy as np

from conformance.faults.changes import (
    Altered,
    copied_from,
    kept_share,
    other_parameters,
    other_weight,
    recast,
    rewritten,
    variance_of,
    with_parent,
    with_rounded_parent,
    with_slack,
)
from conformance.faults.fault import Change, Fault, FaultContext, Parameter, parameters_of, with_parameters
from conformance.model.activations import layer_input
from conformance.model.architecture import Architecture
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array, as_array
from conformance.numerics.memo import cached_property
from conformance.oracle import Step
from conformance.oracle.linear_maps import LinearMap, Roundings, Source
from conformance.oracle.norm import Norm

NORM_FIX = "Normalise each token over its features, with epsilon inside the root, then multiply by γ and add β."

NORMS = frozenset({"norm"})
LAYER_OUTPUT = tuple(f"{digit}.output.LayerNorm" for digit in range(10))  # Excludes attention.output.LayerNorm.


class _UnbiasedVariance(Norm):
    degrees_lost = 1


class _EpsilonOutside(Norm):
    @cached_property
    def inverse(self) -> Array:
        deviation = np.sqrt(self.variance_of((self.summed - self.mean) ** 2))
        return as_array(1.0 / (deviation + self.site.architecture.layer_norm_eps))


class _UnbiasedDeviation(_EpsilonOutside):
    degrees_lost = 1


class _WithoutMean(Norm):
    centred = False


def _common(gain: Array, axes: int | tuple[int, ...]) -> LinearMap:
    """Return the map J e = gain · e, where one error e is shared by all elements along the axes."""
    return LinearMap(lambda v: as_array(gain**2 * v), lambda w: as_array((gain * w).sum(axes, keepdims=True)))


class _OverPositions(Norm):
    over: ClassVar[int | tuple[int, ...]] = 1

    @cached_property
    def mean(self) -> Array:
        return as_array(self.summed.mean(self.over, keepdims=True))

    @cached_property
    def inverse(self) -> Array:
        return as_array(1.0 / np.sqrt(self.summed.var(self.over, keepdims=True) + self.site.architecture.layer_norm_eps))

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """Return the rounding errors of the correct norm, with those of mean and inverse root shared along the axes `over`."""
        mean, inverse, *others = super().roundings(arithmetic).sources
        z, gamma = self.normal, self.site.parameters["weight"]
        shared = (
            Source(as_array(np.mean(s.variance, self.over, keepdims=True)), _common(-gamma * by, self.over))
            for s, by in ((mean, np.broadcast_to(self.inverse, z.shape)), (inverse, z))
        )
        return Roundings((*shared, *others))


class _OverSequence(_OverPositions):
    over = (1, 2)


def with_epsilon(step: Step, epsilon: float) -> Step:
    """Return the norm with another epsilon."""
    return step.replaced(site=replace(step.site, architecture=_architecture(step.site.architecture, epsilon)))


@lru_cache(maxsize=1024)
def _architecture(right: Architecture, epsilon: float) -> Architecture:
    """Return the architecture with another epsilon; the same few are asked for at every norm."""
    return right.with_(layer_norm_eps=epsilon)


def _epsilon() -> Parameter:
    return Parameter(
        "epsilon",
        lambda step: step.site.architecture.layer_norm_eps,
        lambda step: 1e-12 if step.site.architecture.layer_norm_eps > 1e-6 else 1e-5,
        with_epsilon,
        setting="layer_norm_eps",
        defaults=(1e-12, 1e-6, 1e-5, 1e-3),  # Those of BERT and of the LayerNorms of Flax, PyTorch and Keras.
        quantity="LayerNorm's epsilon",
    )


def _epsilon_outside(norm: type[Norm], usual: float, quantity: str = "") -> Parameter:
    return Parameter(
        "epsilon",
        lambda _: 0.0,
        lambda step: max(step.site.architecture.layer_norm_eps, usual),
        lambda step, epsilon: with_epsilon(step.recast(norm), epsilon),
        quantity=quantity,
    )


def _sum(step: Step) -> Array:
    return as_array(sum(step.parents[1:], start=step.parents[0]))


def _plus_one(step: Step, context: FaultContext) -> Step:
    """Return the norm with the scale 1 + γ.

    1 + γ may be rounded to storage, with an error of at most half an ulp, which is multiplied by the normalized input. The error
    is the same in every row, so the square of its bound is used as its variance.
    """
    gamma, beta = step.site.parameters["weight"], step.site.parameters["bias"]
    rounded = context.storage.ulp(1.0 + gamma) ** 2 / 4.0
    scaled = with_parameters(step, weight=1.0 + gamma)
    return with_slack(scaled, lambda altered, _: rounded * ((altered.value - beta) / (1.0 + gamma)) ** 2)


def _shared(step: Step, context: FaultContext) -> Step | None:
    """Return the norm with the parameters of the layer's norm after attention, or, for that one, of the layer's last norm."""
    layer, name = step.site.activation.layer, step.site.activation.name
    if layer is None:
        return None
    attended = f"encoder.layer.{layer}.attention.output.LayerNorm"
    parameters = parameters_of(context, f"encoder.layer.{layer}.output.LayerNorm" if name == attended else attended, step)
    return None if parameters is None else with_parameters(step, **parameters)


def _sum_of(sublayer: float, skip: float) -> Change:
    """Return the change to the norm of `sublayer` · x + `skip` · residual; it gives None for a norm without a residual."""

    def change(step: Step, _: FaultContext) -> Step | None:
        return _weighted(step, sublayer, skip) if len(step.parents) == 2 else None

    return change


def _weighted(step: Step, sublayer: float, skip: float) -> Step:
    x, residual = step.parents
    return step.replaced(parents=(sublayer * x, skip * residual))


def _scaled(step: Step, factor: float, *, parent: int) -> Step:
    """Return the norm with a parent multiplied by a factor; the product may be rounded to storage before the sum."""
    factors = (factor, 1.0) if parent == 0 else (1.0, factor)
    return step if factor == 1.0 else with_rounded_parent(_weighted(step, *factors), parent)


def _after_norm(step: Step, _: FaultContext) -> Step | None:
    if len(step.parents) != 2:
        return None
    skip = step.parents[1]
    return Altered(_weighted(step, 1.0, 0.0), lambda inner: inner.value + skip)


def _from_layer_input(step: Step, context: FaultContext) -> Step | None:
    layer = step.site.activation.layer
    return None if layer is None else with_parent(step, context, layer_input(layer), parent=1)


def _layer_input_added(step: Step, context: FaultContext) -> Step | None:
    layer = step.site.activation.layer
    found = None if layer is None else context.values.get(layer_input(layer))
    if found is None or found.shape != step.value.shape:
        return None
    x, skip = step.parents
    return step.replaced(parents=(x, skip + found))


def _bias_again(step: Step, context: FaultContext) -> Step | None:
    """Return the norm of the sum with the bias of the sub-layer's last product added once more."""
    if len(step.parents) != 2:
        return None
    table = context.network.table
    name = copied_from(table, step.site.activation.parents[0])
    bias = context.network.site(name).parameters.get("bias") if name in table else None
    x, skip = step.parents
    return None if bias is None or bias.shape != x.shape[-1:] else step.replaced(parents=(x + bias, skip))


def _again(step: Step, context: FaultContext) -> Step | None:
    """Return a copy of a norm's result as that norm of it; None if the copy is of another kind of step."""
    (name,) = step.site.activation.parents
    if name not in context.network.table or context.network.table[name].kind != "norm":
        return None
    norm = Norm(context.network.site(name), step.parents[0])
    return Altered(step, lambda _: norm.value, lambda _, arithmetic: variance_of(norm, arithmetic))


# fmt: off
def faults() -> Iterator[Fault]:
    """Yield the faults of norms and residuals."""
    own = (".output.LayerNorm",)  # The norms of a layer, which have a residual.
    yield Fault(
        "epsilon", NORMS, "epsilon is {value}, the checkpoint says {right}",
                "keras-hub#642, gluon-nlp#1214, gpt4all#1946, nntile#378",
        cause="a LayerNorm left at its default", parameter=_epsilon(),
        equation="y = γ · (x − μ) / √(σ² + ε′) + β, ε′ ≠ ε",
        fix="Pass the config's layer_norm_eps to every LayerNorm: nn.LayerNorm(hidden_size, eps=config.layer_norm_eps).",
    )
    yield Fault(
        "epsilon-outside-root", NORMS, "epsilon = {value} is added to the deviation, not to the variance under the root",
        "constructed, after the Annotated Transformer", cause="(x − μ) / (σ + ε) as in the Annotated Transformer",
        parameter=_epsilon_outside(_EpsilonOutside, 1e-5, "epsilon added outside the root"),
        equation="y = γ · (x − μ) / (σ + ε) + β",
        fix=NORM_FIX,
    )
    yield Fault(
        "norm-unbiased-deviation", NORMS, "the variance is divided by n − 1, and epsilon = {value} is added to its root",
        "constructed, after the Annotated Transformer", cause="the Annotated Transformer's LayerNorm, x.std(-1) + eps",
        parameter=_epsilon_outside(_UnbiasedDeviation, 1e-6),
        equation="y = γ · (x − μ) / (s + ε) + β, s² = Σ (x − μ)² / (n − 1)",
        fix=NORM_FIX,
    )
    yield Fault("norm-variance", NORMS, "the variance is divided by n − 1, not by n", "constructed",
                recast(_UnbiasedVariance), "var() and std() are unbiased by default in PyTorch",
                equation="σ² = Σ (x − μ)² / (n − 1)",
                fix="Divide by n: var(-1, unbiased=False).")
    yield Fault("norm-missing", NORMS, "there is no LayerNorm: the result is the sum", "constructed", rewritten(_sum),
                "a norm left out",
                equation="y = x",
                fix=NORM_FIX)
    yield Fault("norm-without-mean", NORMS, "the mean is not subtracted (RMSNorm)", "constructed",
                recast(_WithoutMean), "the norm of later models",
                equation="y = γ · x / √(mean(x²) + ε) + β",
                fix=NORM_FIX)
    yield Fault("norm-affine-missing", NORMS, "gamma is 1 and beta is 0: no affine part, or its parameters were never loaded",
                "constructed", other_parameters(lambda p: {"weight": np.ones_like(p["weight"]), "bias": np.zeros_like(p["bias"])}),
                "elementwise_affine=False, or names that do not match in load_state_dict(strict=False)",
                equation="y = (x − μ) / √(σ² + ε)",
                fix="Load γ and β; old checkpoints call them gamma and beta. Let load_state_dict be strict.")
    yield Fault("norm-bias-missing", NORMS, "beta is not added", "constructed",
                other_parameters(lambda p: {"bias": np.zeros_like(p["bias"])}), "bias=False",
                equation="y = γ · (x − μ) / √(σ² + ε)",
                fix="Give the LayerNorm a bias and load it.")
    yield Fault("norm-weight-missing", NORMS, "gamma is 1", "constructed", other_weight(np.ones_like),
                "a scale that was not loaded", after_failure=True, equation="y = (x − μ) / √(σ² + ε) + β",
                fix="Load γ; old checkpoints call it gamma.")
    yield Fault("norm-affine-exchanged", NORMS, "gamma and beta are exchanged", "constructed",
                other_parameters(lambda p: {"weight": p["bias"], "bias": p["weight"]}),
                "arguments passed by position in another order", after_failure=True,
                equation="y = β · (x − μ) / √(σ² + ε) + γ",
                fix="Pass the norm's weight and bias by keyword.")
    yield Fault("norm-weight-plus-one", NORMS, "the scale is 1 + gamma", "constructed", _plus_one,
                "another model family's convention",
                equation="y = (1 + γ) · (x − μ) / √(σ² + ε) + β",
                fix="Multiply by γ itself.")
    yield Fault("norm-over-positions", NORMS, "mean and variance are taken over the positions, not over the features",
                "constructed",
                recast(_OverPositions), "a wrong axis",
                equation="μ and σ² over the positions of each feature",
                fix=NORM_FIX)
    yield Fault("norm-over-sequence", NORMS, "mean and variance are taken over positions and features together", "constructed",
                lambda step, _: step.recast(_OverSequence) if step.value.ndim > 2 else None, "normalized_shape=x.shape[1:]",
                equation="μ and σ² over all positions and features of a row",
                fix=NORM_FIX)
    yield Fault("norm-shared", NORMS, "it has the parameters of the layer's other norm", "`demystified`'s tutorial", _shared,
                "one LayerNorm object serves both residuals", own,
                fix="Give each layer two LayerNorms, attention.output.LayerNorm and output.LayerNorm, and load both.")
    yield Fault("residual-after-norm", NORMS, "the residual is added after the norm: LayerNorm(x) + skip", "constructed",
                _after_norm, "norm and sum in the wrong order", own,
                equation="y = LayerNorm(x) + skip",
                fix="Add the residual before the norm: LayerNorm(x + skip).")
    yield Fault("residual-missing", NORMS, "the residual is not added", "constructed", _sum_of(1.0, 0.0), "", own,
                equation="y = LayerNorm(x)",
                fix="Add the residual before the norm: LayerNorm(x + skip).")
    yield Fault("residual-doubled", NORMS, "the residual is added twice", "constructed", _sum_of(1.0, 2.0),
                "added in the sub-layer and again outside it", own,
                equation="y = LayerNorm(x + 2 skip)",
                fix="Add the residual once.")
    yield Fault("sublayer-missing", NORMS, "only the residual is normalised; the sub-layer's result is not added", "constructed",
                _sum_of(0.0, 1.0), "", own,
                equation="y = LayerNorm(skip)",
                fix="Add the sub-layer's result to the residual.")
    yield Fault(
        "residual-scaled", NORMS, "the residual is multiplied by {value}", "constructed", only=own,
        parameter=Parameter("factor", lambda _: 1.0, lambda _: 0.5**0.5, partial(_scaled, parent=1),
                least=-16.0, quantity="factor of the residual"),
        equation="y = LayerNorm(x + c skip)",
        fix="Add the residual without a factor.",
    )
    yield Fault(
        "sublayer-scaled", NORMS, "the sub-layer's result is multiplied by {value}", "constructed, after Srivastava et al. 2014",
        cause="multiplication by dropout's keep probability, 1 − p = 0.9, at inference; a layer scale", only=own,
        after_failure=True,
        parameter=Parameter("factor", lambda _: 1.0, kept_share,
                partial(_scaled, parent=0), least=-16.0),
        equation="y = LayerNorm(c x + skip)",
        fix="Add the sub-layer's result without a factor: at inference dropout changes nothing.",
    )
    yield Fault("residual-from-layer-input", NORMS, "the residual is the layer's input, not the attention's output", "constructed",
                _from_layer_input, "one variable kept for both residuals",
                LAYER_OUTPUT,
                equation="y = LayerNorm(x + layer input)",
                fix="Add the output of attention.output.LayerNorm after the feed-forward network.")
    yield Fault("layer-input-added", NORMS, "the layer's input is added as well: LayerNorm(x + skip + layer input)", "constructed",
                _layer_input_added, "a residual around the whole layer", LAYER_OUTPUT, after_failure=True,
                combined_after_failure=True,
                equation="y = LayerNorm(x + skip + layer input)",
                fix="Add only the output of attention.output.LayerNorm after the feed-forward network.")
    yield Fault("sublayer-bias-twice", NORMS, "the bias of the preceding product is added again before the norm", "constructed",
                _bias_again, "a fused kernel of bias, residual and norm after a product that has a bias", after_failure=True,
                equation="y = LayerNorm(x W + b + b + skip)",
                fix="Add the bias once: in the product, or in the fused kernel.")
    yield Fault("norm-repeated", frozenset({"copy"}), "the norm is applied again to its own result", "constructed", _again,
                "a norm in front of the encoder besides that of the embeddings", after_failure=True,
                equation="y = LayerNorm(LayerNorm(x))",
                fix="Apply the embeddings' LayerNorm once.")
# fmt: on
