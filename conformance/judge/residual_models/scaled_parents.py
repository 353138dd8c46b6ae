"""A parent with a wrong factor inside a nonlinear step: the step's own equation is evaluated on a scaled parent.

The model is actual = f(…, a · parent, …), with a fitted by Gauss–Newton in units of sigma. a = 0: the parent is left out, a = 2: it
is added twice, a = −1: it is subtracted.
"""

from collections.abc import Callable, Iterator
from math import inf

import numpy as np

from conformance.judge.number_words import near, number, simple
from conformance.judge.residual_models.least_squares import fitted
from conformance.judge.residual_models.residual_problem import FittedNumber, ResidualFinding, ResidualProblem
from conformance.numerics.arrays import as_array
from conformance.numerics.formats import NUDGE, Array
from conformance.oracle.norm import Norm
from conformance.oracle.pointwise import Gelu, GeluTanh, Relu, Tanh
from conformance.oracle.softmax import Probabilities

STEPS = 8  # Gauss–Newton steps; convergence is quadratic near the solution
STARTS = (-1.0, 0.0, 0.5, 2.0)
MEANINGS = {0.0: "left out", 2.0: "it counts twice", -1.0: "its sign is wrong"}


def scaled_parents(case: ResidualProblem) -> Iterator[ResidualFinding]:
    """Yield a finding for each parent; none for a norm with one parent, which does not depend on the parent's scale."""
    step = case.step
    if not isinstance(step, (Norm, Probabilities, Gelu, GeluTanh, Relu, Tanh)) or (
        isinstance(step, Norm) and len(step.parents) == 1
    ):
        return
    found = [_scaled(case, index, name) for index, name in enumerate(step.site.activation.parents)]
    meant = [finding for finding, meaning in found if finding.explained and meaning]
    # For a norm, halving one parent equals doubling the other; the finding with a known meaning is reported.
    yield from meant or [finding for finding, _ in found]


def _scaled(case: ResidualProblem, index: int, name: str) -> tuple[ResidualFinding, str]:
    """Return the finding, and the meaning of the factor a if it is one of `MEANINGS`, else an empty string."""
    parents = _parents(case)

    def made_with(a: float) -> Array:
        return _again(case, (*parents[:index], a * parents[index], *parents[index + 1 :]))

    a, deviation = _estimated(case, made_with)
    meaning = next((f": {m}" for goal, m in MEANINGS.items() if near(a, deviation, goal)), "")
    known = None if meaning else simple(a, deviation, case.step.site.architecture)
    sentence = f"the result is the same equation with {number(a, deviation)}{f' ({known})' if known else ''} times {name}{meaning}"
    model = made_with(a)
    return case.finding_of("scaled input", sentence, model, case.noise_with(model), 1, (FittedNumber(name, a, deviation),)), meaning


def _parents(case: ResidualProblem) -> tuple[Array, ...]:
    """Return the parents; for steps that act on rows or elements, only the rows or elements that the fit uses."""
    if isinstance(case.step, Norm):
        return tuple(case.rows_of(p) for p in case.step.parents)
    return case.step.parents if isinstance(case.step, Probabilities) else tuple(case.rows(p) for p in case.step.parents)


def _again(case: ResidualProblem, parents: tuple[Array, ...]) -> Array:
    """Return the value of the step's equation on other parents, (R, F)."""
    value = type(case.step)(case.step.site, *parents).value
    if isinstance(case.step, Norm):
        return as_array(value[:, case.columns])
    return case.rows(value) if isinstance(case.step, Probabilities) else value


def _estimated(case: ResidualProblem, made_with: Callable[[float], Array]) -> tuple[float, float]:
    def energy(a: float) -> float:
        return float(((case.root_weights * np.where(case.kept, case.actual_rows - made_with(a), 0.0)) ** 2).sum())

    a, deviation = min(STARTS, key=energy), inf
    for _ in range(STEPS):
        here = made_with(a)
        slope = (made_with(a + NUDGE) - here) / NUDGE
        if not np.any(slope[case.kept]):
            break
        move, deviation = (float(v[0]) for v in fitted(case, [slope], case.actual_rows - here))
        a += move
        if abs(move) <= deviation / 10.0:
            break
    return a, deviation
