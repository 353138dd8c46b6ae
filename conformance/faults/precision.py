"""Faults of reduced precision: operands, weights or results rounded to a narrower format than the declared one."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from conformance.faults.changes import Altered
from conformance.faults.edits import other_weight
from conformance.faults.fault import COMPUTED, FAILED, LINEARS, PRODUCTS, Change, Fault, FaultContext, with_parameters
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import FORMATS, Array, as_array
from conformance.oracle import Step
from conformance.oracle.linear_maps import Roundings, Source
from conformance.oracle.norm import Norm
from conformance.oracle.step import Site

_WEIGHTED = LINEARS | {"word_lookup", "position_lookup", "token_type_lookup"}

Rounding = Callable[[Array], Array]

TF32_BITS = 11  # Significant bits of TensorFloat-32 (NVIDIA 2020, A100 whitepaper): 10 stored and the leading one.


def _tf32(x: Array, *, truncated: bool = False) -> Array:
    """Return x rounded to 11 significant bits: to nearest, or towards zero if `truncated`."""
    mantissa, exponent = np.frexp(x)
    scaled = mantissa * 2.0**TF32_BITS
    return as_array(np.ldexp(np.trunc(scaled) if truncated else np.rint(scaled), exponent - TF32_BITS), np.float64)


def _narrow(name: str) -> tuple[Rounding, Callable[[Array], Array]]:
    return FORMATS[name].round, FORMATS[name].rounding_variance


def _is_narrower(name: str, context: FaultContext) -> bool:
    return FORMATS[name].unit_roundoff > context.storage.unit_roundoff


def _operands(step: Step, rounding: Rounding) -> Step:
    """Return the step with rounded operands.

    For a norm, the sum of the parents is rounded, since the residual is added first. The bias of a linear layer is not rounded,
    since it is added to the accumulator.
    """
    parents = step.parents
    if isinstance(step, Norm):
        parents = (step.summed, *(np.zeros_like(p) for p in parents[1:]))
    rounded = ("weight", "bias") if isinstance(step, Norm) else ("weight",)
    parameters = {name: rounding(step.site.parameters[name]) for name in rounded if name in step.site.parameters}
    return with_parameters(step.replaced(parents=tuple(rounding(p) for p in parents)), **parameters)


def _in_format(name: str) -> Change:
    """Return the change to operands rounded to a format, with the result computed in float32 and possibly rounded to the format."""
    rounding, variance = _narrow(name)

    def slack(altered: Altered, _: Arithmetic) -> Array:
        return variance(altered.value) + _of_ties(altered.inner, variance)

    def change(step: Step, context: FaultContext) -> Step | None:
        if not _is_narrower(name, context) or not all(np.isfinite(p).all() for p in _operands(step, rounding).parents):
            return None
        return Altered(step, lambda inner: _operands(inner, rounding).value, slack)

    return change


def _of_ties(product: Step, variance: Rounding) -> Array | float:
    """Return the variance from rounding the probabilities that a fused attention kernel computes itself; 0 for other steps.

    A probability next to a tie may be rounded either way, and such kernels round exponentials before dividing by their sum (Dao et
    al. 2022, *FlashAttention*, algorithm 1).
    """
    if product.site.activation.kind != "context":
        return 0.0
    return product.jacobians()[0].variance(variance(product.parents[0]))


def _in_tf32(*, truncated: bool) -> Change:
    def rounding(x: Array) -> Array:
        return _tf32(x, truncated=truncated)

    def change(step: Step, context: FaultContext) -> Step | None:
        if context.storage != FORMATS["float32"]:
            return None
        return _EitherWay(_operands(step, rounding), () if truncated else tuple(_tied(p) for p in step.parents))

    return change


def _tied(x: Array) -> Array:
    """Return the square of one TensorFloat-32 ulp where x is halfway between two TensorFloat-32 numbers, else 0."""
    mantissa, exponent = np.frexp(x)
    scaled = mantissa * 2.0**TF32_BITS
    return np.where(scaled - np.floor(scaled) == 0.5, np.ldexp(1.0, exponent - TF32_BITS) ** 2, 0.0)


class _EitherWay(Altered):
    """A product of TensorFloat-32 operands whose ties may be rounded to even or away from zero.

    NVIDIA's conversion rounds ties away from zero (PTX, cvt.rna.tf32). `ties` has, for each operand, an upper bound of the variance
    of the difference. Only matrix units multiply such operands, so sums may be truncated (`numerics.arithmetic`).
    """

    def __init__(self, inner: Step, ties: tuple[Array, ...]) -> None:
        super().__init__(inner, lambda step: step.value)
        self._ties = ties

    def replaced(self, *, site: Site | None = None, parents: tuple[Array, ...] | None = None) -> Step:
        return _EitherWay(self.inner.replaced(site=site, parents=parents), self._ties)

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        own = self.inner.roundings(replace(arithmetic, summation="truncated"))
        ties = (Source(tie, j) for tie, j in zip(self._ties, self.inner.jacobians(), strict=False) if tie.any())
        return Roundings((*own.sources, *ties), own.bound)


def _if_narrower(name: str, change: Change) -> Change:
    """Return the change; it gives None unless the format is narrower than that of the candidate."""
    return lambda step, context: change(step, context) if _is_narrower(name, context) else None


def _held_in(name: str) -> Change:
    return _if_narrower(name, other_weight(FORMATS[name].round))


def _result(name: str) -> Change:
    """Return the change that rounds the result to a format; a result next to a tie may be rounded either way."""
    rounding, variance = _narrow(name)
    return _if_narrower(
        name, lambda step, _: Altered(step, lambda inner: rounding(inner.value), lambda altered, _: variance(altered.value))
    )


# fmt: off
FAULTS: tuple[Fault, ...] = (
    *(
        Fault(f"precision-tf32{end}", PRODUCTS,
              f"operands are {rendered} to TensorFloat-32: reduced precision, not a wrong equation", _in_tf32(truncated=bool(end)),
              tried=FAILED)
        for end, rendered in (("", "rounded"), ("-truncated", "truncated"))
    ),
    *(
        Fault(f"{what}-{name}", kinds, sentence.format(name), change(name), tried=FAILED)
        for name in ("bfloat16", "float16")
        for what, kinds, sentence, change in (
            ("precision", COMPUTED, "operands are rounded to {}: reduced precision, not a wrong equation", _in_format),
            ("weights", _WEIGHTED, "the weights are those of the checkpoint rounded to {}", _held_in),
            ("result", COMPUTED, "the result is rounded to {}: reduced precision, not a wrong equation", _result),
        )
    ),
)
# fmt: on
