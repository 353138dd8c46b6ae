"""Faults of norms of another form: over halves, with the second moment, or with the bias first; and of what is added to them."""

from dataclasses import replace

import numpy as np

from conformance.faults.changes import Altered, copied_from, recast, variance_of, with_rounded_parent, with_slack
from conformance.faults.fault import ALONE, LINEARS, Fault, FaultContext, with_parameters
from conformance.faults.norms import LAYER_OUTPUT, NORMS
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array, as_array
from conformance.numerics.memo import cached_property
from conformance.oracle import Step
from conformance.oracle.norm import Norm


class _SecondMoment(Norm):
    @cached_property
    def inverse(self) -> Array:
        moment = np.mean(self.summed**2, -1, keepdims=True)
        return as_array(1.0 / np.sqrt(moment + self.site.architecture.layer_norm_eps))


def idle_lanes(width: int) -> int:
    """Return the number of lanes between the width and the next power of two."""
    return (1 << (width - 1).bit_length()) - width


class _IdleLanes(Norm):
    """σ² = (Σ (x_h − μ)² + n μ²) / H for n idle lanes, which hold 0 and from which the mean is subtracted as well."""

    @cached_property
    def inverse(self) -> Array:
        x = self.summed
        idle = idle_lanes(x.shape[-1]) / x.shape[-1] * self.mean**2
        return as_array(1.0 / np.sqrt(self.variance_of((x - self.mean) ** 2) + idle + self.site.architecture.layer_norm_eps))


def _by_halves(step: Step, _: FaultContext) -> Step | None:
    """Return the norm of each half of the features; None if their number is odd."""
    width = step.value.shape[-1]
    if width % 2:
        return None
    halves = []
    for half in (slice(None, width // 2), slice(width // 2, None)):
        parameters = {name: value[half] for name, value in step.site.parameters.items()}
        halves.append(Norm(replace(step.site, parameters=parameters), *(p[..., half] for p in step.parents)))

    def slack(_: Altered, arithmetic: Arithmetic) -> Array:
        return np.concatenate([variance_of(half, arithmetic) for half in halves], -1)

    return Altered(step, lambda _: np.concatenate([half.value for half in halves], -1), slack)


def _bias_first(step: Step, _: FaultContext) -> Step:
    """Return γ (z + β) of the normalized input z; z and the sum may each be rounded to storage."""
    gamma, beta = step.site.parameters["weight"], step.site.parameters["bias"]

    def slack(altered: Altered, arithmetic: Arithmetic) -> Array:
        total = altered.value / np.where(gamma == 0.0, 1.0, gamma)
        rounding = arithmetic.storage.rounding_variance
        return as_array(gamma**2 * (rounding(total) + rounding(total - beta)))

    return with_slack(with_parameters(step, bias=gamma * beta), slack)


def _before_norm(step: Step, context: FaultContext) -> Step | None:
    """Return a layer's last norm with the sum that the norm before it normalizes as the residual; it may have been rounded."""
    table, (product, skip) = context.network.table, step.parents
    before = step.site.activation.parents[1]
    parents = table[before].parents if before in table else ()
    found = [context.values.get(p, context.values.get(copied_from(table, p))) for p in parents]
    known = [x for x in found if x is not None and x.shape == skip.shape]
    if not known or len(known) < len(parents):
        return None
    return with_rounded_parent(step.replaced(parents=(product, as_array(sum(known[1:], start=known[0])))), 1)


def _affine_again(step: Step, context: FaultContext) -> Step | None:
    """Return the layer with γ x + β as input, γ and β those of the norm whose result x is; the folded weight may be rounded."""
    table = context.network.table
    name = copied_from(table, step.site.activation.parents[0])
    if name not in table or table[name].kind != "norm":
        return None
    affine, weight, x = context.network.site(name).parameters, step.site.parameters["weight"], step.parents[0]
    gamma, beta = affine["weight"], affine["bias"]
    folded = weight @ beta

    def slack(altered: Altered, arithmetic: Arithmetic) -> Array:
        rounding, inputs = arithmetic.storage.rounding_variance, x[:, 0] if x.ndim > altered.value.ndim else x
        of_sum = len(beta) * arithmetic.accumulate.rounding_variance(np.abs(weight) @ np.abs(beta))  # each partial sum is no larger
        of_bias = of_sum + rounding(folded) + rounding(folded + step.site.parameters.get("bias", 0.0))
        return as_array(inputs**2 @ rounding(weight * gamma).T + of_bias)

    return with_slack(step.replaced(parents=(gamma * x + beta,)), slack)


# fmt: off
FAULTS: tuple[Fault, ...] = (
    Fault("norm-second-moment", NORMS, "the variance is the mean square: the squared mean is not subtracted from it",
          recast(_SecondMoment), tried=ALONE),
    Fault("norm-idle-lanes", NORMS, "the variance includes the squared mean for each idle lane up to the next power of 2",
          lambda step, _: step.recast(_IdleLanes) if idle_lanes(step.value.shape[-1]) else None, tried=ALONE),
    Fault("norm-by-halves", NORMS, "each half of the features is normalised by itself", _by_halves, tried=ALONE),
    Fault("norm-bias-first", NORMS, "beta is added before the product with gamma", _bias_first, tried=ALONE),
    Fault("residual-before-norm", NORMS, "the residual is what goes into the attention's norm, not what comes out of it",
          _before_norm, only=LAYER_OUTPUT, tried=ALONE),
    Fault("norm-affine-again", LINEARS, "gamma and beta of the preceding norm are applied again to its result", _affine_again,
          tried=ALONE),
)
# fmt: on
