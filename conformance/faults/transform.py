"""The masked-LM head's transform: its activation function and its norm in the other order, or one of them passed by."""

from collections.abc import Iterator

import numpy as np

from conformance.faults.altered import Altered
from conformance.faults.changes import with_parent
from conformance.faults.fault import Fault, FaultContext
from conformance.faults.functions import FUNCTIONS
from conformance.faults.norms import NORMS
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array
from conformance.oracle import Step

_PATH = "cls.predictions.transform."
_DENSE, _ACT, _NORM = (f"{_PATH}{name}" for name in ("dense", "transform_act_fn", "LayerNorm"))
_ENDS = (_ACT, _NORM)
_FIX = "Apply to the hidden state transform.dense, the activation function and transform.LayerNorm, in this order."


def _in_place_of(step: Step, found: Step) -> Step:
    """Another step's result and roundings in the place of a step."""
    return Altered(step, lambda _: found.value, lambda _, arithmetic: _variance(found, arithmetic))


def _variance(step: Step, arithmetic: Arithmetic) -> Array:
    own = step.roundings(arithmetic)
    return np.asarray(own.variance() + np.asarray(own.bound) ** 2 / 3.0)


def _other_order(step: Step, place: FaultContext) -> Step:
    """What is shown first is the norm, what is shown second the function of it."""
    other = _ACT if step.site.activation.name == _NORM else _NORM
    return _in_place_of(step, place.network.step(other, step.parents[0]))


def _norm_first(step: Step, place: FaultContext) -> Step | None:
    """Each module shows what it makes, the norm from the product and the function from the norm."""
    if step.site.activation.name == _ACT:
        norm = place.network.step(_NORM, step.parents[0])

        def slack(altered: Altered, arithmetic: Arithmetic) -> Array:
            return altered.inner.jacobians()[0].variance(_variance(norm, arithmetic))

        return Altered(step.again(parents=(norm.value,)), lambda inner: inner.value, slack)
    return with_parent(step, place, _DENSE)


# fmt: off
def faults() -> Iterator[Fault]:
    """The faults of the transform."""
    made, cause = "constructed", "layers put together as product, norm, function"
    yield Fault("transform-order", FUNCTIONS | NORMS, "the head's norm stands before its activation function", made, _other_order,
                cause, _ENDS, late=True, equation="y = f(LayerNorm(x Wᵀ + b))", fix=_FIX)
    yield Fault("transform-norm-first", FUNCTIONS | NORMS, "the head's norm reads the product, and its function the norm",
                made, _norm_first, cause, _ENDS, late=True, equation="y = f(LayerNorm(x Wᵀ + b))", fix=_FIX)
    yield Fault("decoder-without-norm", frozenset({"linear"}), "the decoder reads the transform's function, past its norm",
                made, lambda step, place: with_parent(step, place, _ACT),
                "a norm left out, or before the function", ("predictions.decoder",), late=True,
                equation="y = f(x W₁ᵀ + b₁) Eᵀ + b", fix=_FIX)
# fmt: on
