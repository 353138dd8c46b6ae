"""Faults of an additive mask with the wrong sign: a large number is added at masked keys, not subtracted.

Only masked keys are attended to. Where c is added, a score keeps the digits that the sum s + c has in the format.
"""

from collections.abc import Callable

import numpy as np

from conformance.faults.attention import PROBS, keys_of, softmax
from conformance.faults.changes import Altered, variance_of
from conformance.faults.fault import ALONE, Change, Fault, FaultContext
from conformance.faults.masks import unmasked
from conformance.faults.quantized import distance_to_tie
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array, Mask, as_array
from conformance.oracle import Step
from conformance.oracle.softmax import jacobian_of_softmax

CONSTANT = 10000.0  # That of the code of Devlin et al. 2019 (modeling.py): adder = (1.0 - attention_mask) * -10000.0.


def _raised(step: Step, context: FaultContext) -> Mask | None:
    """Return the masked keys that the order of a decoder's tokens allows, (B, 1, Q, S); None if no key is masked."""
    without = unmasked(step, context)
    return None if without is None else as_array(keys_of(without) & ~keys_of(step))


def _over(step: Step, raised: Mask, read: Callable[[Array], Array], slack: Callable[[Step, Arithmetic], Array] | None) -> Step:
    """Return the softmax over the raised keys of each query, with scores `read(s)`; that of a query without any is right.

    `slack` is the variance of read scores at raised keys, from the step and the arithmetic.
    """
    some = raised.any(-1, keepdims=True)

    def value(inner: Step) -> Array:
        s = inner.parents[0]
        return softmax(np.where(some, read(s), s), np.where(some, raised, keys_of(inner)))

    def variance(altered: Altered, arithmetic: Arithmetic) -> Array:
        assert slack is not None
        return jacobian_of_softmax(altered.value).variance(np.where(raised, slack(altered, arithmetic), 0.0))

    return Altered(step, value, variance if slack else None)


def _absorbed(step: Step, context: FaultContext) -> Step | None:
    """Return the softmax over masked keys, of equal scores: the sum s + c is c."""
    raised = _raised(step, context)
    return None if raised is None else _over(step, raised, np.zeros_like, None)


def _added(constant: float) -> Change:
    """Return the change to the softmax over masked keys of fl(s + c) − c, for c in the format; None if all these are equal.

    A score near a tie of the sum may be rounded to either neighbour, a spacing g apart. With an error of variance σ², it passes a
    tie at distance d with probability at most σ² / (σ² + d²) (Cantelli's inequality), so the variance is g² σ² / (σ² + d²).
    """

    def change(step: Step, context: FaultContext) -> Step | None:
        raised, storage = _raised(step, context), context.storage
        c = float(storage.round(as_array(constant)))
        spacing = float(storage.ulp(as_array(c)))

        def read(s: Array) -> Array:
            return storage.round(s + c) - c

        def slack(altered: Step, arithmetic: Arithmetic) -> Array:
            scores = altered.site.activation.parents[0]
            own = _variance(scores, context, arithmetic, 1)
            distance = spacing * distance_to_tie(altered.parents[0] / spacing)
            total = own + distance**2
            return spacing**2 * np.divide(own, total, out=np.zeros_like(total), where=total > 0.0)

        if raised is None or _are_equal(read(step.parents[0]), raised):
            return None
        return _over(step, raised, read, slack)

    return change


def _are_equal(scores: Array, keys: Mask) -> bool:
    """Return whether the scores of each query are equal at these keys."""
    highest = np.where(keys, scores, -np.inf).max(-1)
    lowest = np.where(keys, scores, np.inf).min(-1)
    return bool((highest <= lowest).all())


def _variance(name: str, context: FaultContext, arithmetic: Arithmetic, generations: int) -> Array:
    """Return the variance of an activation by its own roundings, and by those of this many generations of its parents.

    It is that of as many generations as are known, and 0 if its own parents are not: it is then taken as exact.
    """
    network, values = context.network, context.values
    parents = network.table[name].parents
    if not all(parent in values for parent in parents):
        return np.zeros(values[name].shape)
    step = network.step(name, *(values[parent] for parent in parents))
    total = variance_of(step, arithmetic)
    if generations:
        for parent, jacobian in zip(parents, step.jacobians(), strict=True):
            total = total + jacobian.variance(_variance(parent, context, arithmetic, generations - 1))
    return as_array(total)


# fmt: off
FAULTS: tuple[Fault, ...] = (
    Fault("mask-sign", PROBS, "a large number is added at masked keys, not subtracted: they alone are attended to, all equally",
          _absorbed, tried=ALONE),
    Fault("mask-sign-10000", PROBS, "10000 is added at masked keys, not subtracted: only they are attended to", _added(CONSTANT),
          tried=ALONE),
)
# fmt: on
