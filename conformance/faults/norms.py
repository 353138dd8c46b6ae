"""Faults of LayerNorms, of their form, and of the residual sums that they normalize."""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial

import numpy as np

from conformance.faults.changes import Altered, with_rounded_parent
from conformance.faults.edits import (
    copied_from,
    has_parameters_of,
    in_layer,
    in_place_of,
    kept_share,
    operand,
    other_parameters,
    parameter,
    reads,
    recast,
    rewritten,
    variant,
    with_operand,
)
from conformance.faults.fault import ALONE, FAILED, Change, Fault, FaultContext, Parameter
from conformance.model.activations import layer_input
from conformance.model.architecture import Architecture
from conformance.numerics.formats import Array, as_array
from conformance.oracle import Step
from conformance.oracle.norm import Norm
from conformance.oracle.program import inverse_root, row_mean

NORMS = frozenset({"norm"})
WITH_RESIDUAL = (".output.LayerNorm",)
LAYER_OUTPUT = tuple(f"{digit}.output.LayerNorm" for digit in range(10))  # Excludes attention.output.LayerNorm.


class _EpsilonOutside(Norm):
    def inverse_of(self, x: Array, mean: Array, centred: Array) -> Array:
        """Return 1 / (σ + ε)."""
        return 1.0 / (np.sqrt(self.variance_in_any_form(x, centred)) + self.epsilon)


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


def _of_other_norm(step: Step) -> str | None:
    """Return where the other norm of the layer is."""
    layer, name = step.site.activation.layer, step.site.activation.name
    attended = f"encoder.layer.{layer}.attention.output.LayerNorm"
    return None if layer is None else f"encoder.layer.{layer}.output.LayerNorm" if name == attended else attended


def _scaled(step: Step, factor: float, *, parent: int) -> Step:
    """Return the norm with a parent multiplied by a factor; the product may be rounded to storage before the sum."""
    scaled = with_operand(step, factor * step.parents[parent], parent)
    return step if factor == 1.0 else with_rounded_parent(scaled, parent)


def _after_norm(step: Step, _: FaultContext) -> Step:
    skip = step.parents[1]
    return Altered(with_operand(step, 0.0 * skip, 1), lambda inner: inner.value + skip)


def _layer_input_added(step: Step, context: FaultContext) -> Step | None:
    layer = step.site.activation.layer
    entry = None if layer is None else context.values.get(layer_input(layer))
    if entry is None or entry.shape != step.value.shape:
        return None
    return with_operand(step, step.parents[1] + entry, 1)


def _bias_again(step: Step, context: FaultContext) -> Step | None:
    """Return the norm of the sum with the bias of the sub-layer's last product added once more."""
    if len(step.parents) != 2:
        return None
    table = context.network.table
    name = copied_from(table, step.site.activation.parents[0])
    bias = context.network.site(name).parameters.get("bias") if name in table else None
    x = step.parents[0]
    return None if bias is None or bias.shape != x.shape[-1:] else with_operand(step, x + bias)


def _again(step: Step, context: FaultContext) -> Step | None:
    """Return a copy of a norm's result as that norm of it; None if the copy is of another kind of step."""
    (name,) = step.site.activation.parents
    if name not in context.network.table or context.network.table[name].kind != "norm":
        return None
    return in_place_of(step, lambda inner: Norm(context.network.site(name), inner.parents[0]))


class _UncentredMoment(Norm):
    def inverse_of(self, x: Array, mean: Array, centred: Array) -> Array:
        """Return 1 / √(mean(x²) + ε)."""
        return inverse_root(row_mean(x * x) + self.epsilon)


def idle_lanes(width: int) -> int:
    """Return the number of lanes between the width and the next power of two."""
    return (1 << (width - 1).bit_length()) - width


class _IdleLanes(Norm):
    def inverse_of(self, x: Array, mean: Array, centred: Array) -> Array:
        """Return 1 / √(σ² + ε) with σ² = (Σ (x_h − μ)² + n μ²) / H, for n idle lanes of 0, from which the mean is subtracted."""
        share = idle_lanes(self.summed.shape[-1]) / self.summed.shape[-1]
        return inverse_root(self.variance_in_any_form(x, centred) + mean * mean * share + self.epsilon)


def _over(turned: Callable[[Array], Array], parts: int = 1) -> Change:
    """Return the change to the norm over the last axis of turned arrays (B, S, H); None where `parts` does not divide H."""

    def change(step: Step, _: FaultContext) -> Step | None:
        shape = step.value.shape
        if len(shape) < 3 or shape[-1] % parts:
            return None
        numbers = turned(np.arange(step.value.size, dtype=np.float64).reshape(shape))
        places = numbers.ravel().argsort().reshape(shape)  # of elements in the turned array

        def norm(inner: Step) -> Step:
            parameters = {role: turned(np.broadcast_to(p, shape)) for role, p in inner.site.parameters.items()}
            return Norm(replace(inner.site, parameters=parameters), *map(turned, inner.parents))

        return in_place_of(step, norm, lambda x: as_array(np.broadcast_to(x, numbers.shape).ravel()[places]))

    return change


def _before_norm(step: Step, context: FaultContext) -> Step | None:
    """Return a layer's last norm with the sum that the norm before it normalizes as the residual; it may have been rounded."""
    table, skip = context.network.table, step.parents[1]
    before = step.site.activation.parents[1]
    parents = table[before].parents if before in table else ()
    terms = [context.values.get(p, context.values.get(copied_from(table, p))) for p in parents]
    known = [x for x in terms if x is not None and x.shape == skip.shape]
    if not known or len(known) < len(parents):
        return None
    return with_rounded_parent(with_operand(step, as_array(sum(known[1:], start=known[0])), 1), 1)


# fmt: off
FAULTS: tuple[Fault, ...] = (
    Fault("epsilon", NORMS, "epsilon is {value}, the checkpoint says {right}", parameter=_epsilon()),
    Fault("epsilon-outside-root", NORMS, "epsilon = {value} is added to the deviation, not to the variance under the root",
          parameter=_epsilon_outside(_EpsilonOutside, 1e-5, "epsilon added outside the root")),
    Fault("norm-unbiased-deviation", NORMS, "the variance is divided by n − 1, and epsilon = {value} is added to its root",
          parameter=_epsilon_outside(variant(_EpsilonOutside, degrees_lost=1), 1e-6)),
    Fault("norm-variance", NORMS, "the variance is divided by n − 1, not by n", recast(variant(Norm, degrees_lost=1))),
    Fault("norm-missing", NORMS, "there is no LayerNorm: the result is the sum", rewritten(_sum)),
    Fault("norm-without-mean", NORMS, "the mean is not subtracted (RMSNorm)", recast(variant(Norm, centred=False))),
    Fault("norm-affine-missing", NORMS, "gamma is 1 and beta is 0: no affine part, or its parameters were never loaded",
          other_parameters(lambda p: {"weight": np.ones_like(p["weight"]), "bias": np.zeros_like(p["bias"])})),
    Fault("norm-bias-missing", NORMS, "beta is not added", parameter("bias", lambda beta, _: 0.0 * beta)),
    *(
        Fault(f"norm-over-{axes}", NORMS, f"mean and variance are taken over {which}", _over(turned))
        for axes, which, turned in (
            ("positions", "the positions, not over the features", lambda x: x.swapaxes(1, 2)),
            ("sequence", "positions and features together", lambda x: x.reshape(len(x), -1)),
        )
    ),
    Fault("norm-shared", NORMS, "it has the parameters of the layer's other norm", has_parameters_of(_of_other_norm),
          only=WITH_RESIDUAL),
    Fault("residual-after-norm", NORMS, "the residual is added after the norm: LayerNorm(x) + skip", _after_norm,
          only=WITH_RESIDUAL),
    Fault("residual-missing", NORMS, "the residual is not added", operand(lambda x, _: 0.0 * x, 1), only=WITH_RESIDUAL),
    Fault("residual-doubled", NORMS, "the residual is added twice", operand(lambda x, _: 2.0 * x, 1), only=WITH_RESIDUAL),
    Fault("sublayer-missing", NORMS, "only the residual is normalised; the sub-layer's result is not added",
          operand(lambda x, _: 0.0 * x, 0), only=WITH_RESIDUAL),
    Fault("residual-scaled", NORMS, "the residual is multiplied by {value}",
          parameter=Parameter("factor", lambda _: 1.0, lambda _: 0.5**0.5, partial(_scaled, parent=1), least=-16.0,
                              quantity="factor of the residual"), only=WITH_RESIDUAL),
    Fault("sublayer-scaled", NORMS, "the sub-layer's result is multiplied by {value}",
          parameter=Parameter("factor", lambda _: 1.0, kept_share, partial(_scaled, parent=0), least=-16.0), only=WITH_RESIDUAL,
          tried=ALONE),
    Fault("residual-from-layer-input", NORMS, "the residual is the layer's input, not the attention's output",
          reads(in_layer(""), 1), only=LAYER_OUTPUT),
    Fault("layer-input-added", NORMS, "the layer's input is added as well: LayerNorm(x + skip + layer input)", _layer_input_added,
          only=LAYER_OUTPUT, tried=FAILED),
    Fault("sublayer-bias-twice", NORMS, "the bias of the preceding product is added again before the norm", _bias_again,
          tried=ALONE),
    Fault("norm-repeated", frozenset({"copy"}), "the norm is applied again to its own result", _again, tried=ALONE),
)
# fmt: on

# fmt: off
FORMS: tuple[Fault, ...] = (
    Fault("norm-second-moment", NORMS, "the variance is the mean square: the squared mean is not subtracted from it",
          recast(_UncentredMoment), tried=ALONE),
    Fault("norm-idle-lanes", NORMS, "the variance includes the squared mean for each idle lane up to the next power of 2",
          lambda step, _: step.recast(_IdleLanes) if idle_lanes(step.value.shape[-1]) else None, tried=ALONE),
    Fault("norm-by-halves", NORMS, "each half of the features is normalised by itself",
          _over(lambda x: x.reshape(*x.shape[:-1], 2, -1), parts=2), tried=ALONE),
    Fault("residual-before-norm", NORMS, "the residual is what goes into the attention's norm, not what comes out of it",
          _before_norm, only=LAYER_OUTPUT, tried=ALONE),
)
# fmt: on
