"""Faults of LayerNorms and of the residual sums that they normalize."""

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
from conformance.faults.fault import ALONE, FAILED, Change, Fault, FaultContext, Parameter, parameters_of, with_parameters
from conformance.model.activations import layer_input
from conformance.model.architecture import Architecture
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array, as_array
from conformance.numerics.memo import cached_property
from conformance.oracle import Step
from conformance.oracle.linear_maps import LinearMap, Roundings, Source
from conformance.oracle.norm import Norm

NORMS = frozenset({"norm"})
WITH_RESIDUAL = (".output.LayerNorm",)
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
FAULTS: tuple[Fault, ...] = (
    Fault("epsilon", NORMS, "epsilon is {value}, the checkpoint says {right}", parameter=_epsilon()),
    Fault("epsilon-outside-root", NORMS, "epsilon = {value} is added to the deviation, not to the variance under the root",
          parameter=_epsilon_outside(_EpsilonOutside, 1e-5, "epsilon added outside the root")),
    Fault("norm-unbiased-deviation", NORMS, "the variance is divided by n − 1, and epsilon = {value} is added to its root",
          parameter=_epsilon_outside(_UnbiasedDeviation, 1e-6)),
    Fault("norm-variance", NORMS, "the variance is divided by n − 1, not by n", recast(_UnbiasedVariance)),
    Fault("norm-missing", NORMS, "there is no LayerNorm: the result is the sum", rewritten(_sum)),
    Fault("norm-without-mean", NORMS, "the mean is not subtracted (RMSNorm)", recast(_WithoutMean)),
    Fault("norm-affine-missing", NORMS, "gamma is 1 and beta is 0: no affine part, or its parameters were never loaded",
          other_parameters(lambda p: {"weight": np.ones_like(p["weight"]), "bias": np.zeros_like(p["bias"])})),
    Fault("norm-bias-missing", NORMS, "beta is not added", other_parameters(lambda p: {"bias": np.zeros_like(p["bias"])})),
    Fault("norm-weight-missing", NORMS, "gamma is 1", other_weight(np.ones_like), tried=ALONE),
    Fault("norm-affine-exchanged", NORMS, "gamma and beta are exchanged",
          other_parameters(lambda p: {"weight": p["bias"], "bias": p["weight"]}), tried=ALONE),
    Fault("norm-weight-plus-one", NORMS, "the scale is 1 + gamma", _plus_one),
    Fault("norm-over-positions", NORMS, "mean and variance are taken over the positions, not over the features",
          recast(_OverPositions)),
    Fault("norm-over-sequence", NORMS, "mean and variance are taken over positions and features together",
          lambda step, _: step.recast(_OverSequence) if step.value.ndim > 2 else None),
    Fault("norm-shared", NORMS, "it has the parameters of the layer's other norm", _shared, only=WITH_RESIDUAL),
    Fault("residual-after-norm", NORMS, "the residual is added after the norm: LayerNorm(x) + skip", _after_norm,
          only=WITH_RESIDUAL),
    Fault("residual-missing", NORMS, "the residual is not added", _sum_of(1.0, 0.0), only=WITH_RESIDUAL),
    Fault("residual-doubled", NORMS, "the residual is added twice", _sum_of(1.0, 2.0), only=WITH_RESIDUAL),
    Fault("sublayer-missing", NORMS, "only the residual is normalised; the sub-layer's result is not added", _sum_of(0.0, 1.0),
          only=WITH_RESIDUAL),
    Fault("residual-scaled", NORMS, "the residual is multiplied by {value}",
          parameter=Parameter("factor", lambda _: 1.0, lambda _: 0.5**0.5, partial(_scaled, parent=1), least=-16.0,
                              quantity="factor of the residual"), only=WITH_RESIDUAL),
    Fault("sublayer-scaled", NORMS, "the sub-layer's result is multiplied by {value}",
          parameter=Parameter("factor", lambda _: 1.0, kept_share, partial(_scaled, parent=0), least=-16.0), only=WITH_RESIDUAL,
          tried=ALONE),
    Fault("residual-from-layer-input", NORMS, "the residual is the layer's input, not the attention's output", _from_layer_input,
          only=LAYER_OUTPUT),
    Fault("layer-input-added", NORMS, "the layer's input is added as well: LayerNorm(x + skip + layer input)", _layer_input_added,
          only=LAYER_OUTPUT, tried=FAILED),
    Fault("sublayer-bias-twice", NORMS, "the bias of the preceding product is added again before the norm", _bias_again,
          tried=ALONE),
    Fault("norm-repeated", frozenset({"copy"}), "the norm is applied again to its own result", _again, tried=ALONE),
)
# fmt: on
